"""Making a session of a bundle: everything in it is checked before anything of it appears.

The rule that holds here: a bundle makes one whole session or none, and never over another. What a tar may hold beside
the two files of a bundle is refused, unread.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from dsh_protocol.errors import FormatUnsupportedError, SessionNotFoundError
from dshd.storage.jsonl.faults import corrupt, read_error
from dshd.storage.jsonl.salvage import salvage
from dshd.storage.jsonl.verify import Looker, verify

if TYPE_CHECKING:
    from dshd.storage.jsonl.salvage import Salvage

MANIFEST, LOG = "manifest.json", "session.jsonl"
_KIND, _VERSION = "dshd-bundle", 1
_LARGEST_MANIFEST = 1 << 20
_PIECE = 1 << 20


class _File(msgspec.Struct):
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, rename="camel"):
    """What a bundle says of itself."""

    kind: str
    version: int
    id: str
    events: int
    files: dict[str, _File]
    redacted: int = 0
    labels: dict[str, Any] = {}


def restore(path: Path, root: Path, new_id: str | None, looker: Looker) -> tuple[Manifest, Salvage]:
    """Make the session of a bundle, and return what the bundle says with what was made.

    Args:
        path: The bundle.
        root: Gets the session; a daemon may run on it.
        new_id: Of the session; that of the one that was exported by default.
        looker: Says which events do not fit those before.

    Raises:
        SessionNotFoundError: There is no such file.
        SessionExistsError: There is a session of that id already.
        LogCorruptError: The bundle is not what it was; nothing was made.
        FormatUnsupportedError: It is of another version.
        NoSpaceError, WriteFailedError: Nothing was made.
    """
    staging = Path(tempfile.mkdtemp(prefix="dshd-restore-"))
    try:
        manifest = _unpack(path, staging)
        log = staging / LOG
        report = verify(str(log), root, looker)
        if not report.whole:
            first = report.findings[0]
            raise corrupt(
                str(path), first.offset or 0, f"the log in it is not whole: {first.message}"
            )
        wanted = manifest.id if new_id is None else new_id
        return manifest, salvage(str(log), root, root, wanted, looker)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _unpack(path: Path, staging: Path) -> Manifest:
    """Put the log of a bundle aside, its checksum compared."""
    try:
        with tarfile.open(path, "r:") as tar:
            told = _member(tar, path, MANIFEST)
            manifest = _manifest(told.read(_LARGEST_MANIFEST), path)
            found = _member(tar, path, LOG)
            digest = hashlib.sha256()
            size = 0
            with (staging / LOG).open("xb") as log:
                while piece := found.read(_PIECE):
                    digest.update(piece)
                    size += log.write(piece)
            if tar.next() is not None:
                raise corrupt(str(path), 0, "there is more in it than a manifest and a log")
    except FileNotFoundError as error:
        raise SessionNotFoundError(f"there is no {str(path)!r}") from error
    except tarfile.TarError as error:
        raise corrupt(str(path), 0, f"it is no bundle, or not all of one: {error}") from error
    except OSError as error:
        raise read_error(error, str(path)) from error
    stated = manifest.files[LOG]
    if (size, digest.hexdigest()) != (stated.bytes, stated.sha256):
        raise corrupt(
            str(path), 0, "the log in it is not the one whose checksum stands in the manifest"
        )
    return manifest


def _member(tar: tarfile.TarFile, path: Path, name: str) -> IO[bytes]:
    member = tar.next()
    file = (
        None
        if member is None or member.name != name or not member.isreg()
        else tar.extractfile(member)
    )
    if file is None:
        raise corrupt(str(path), 0, f"{name} is not where a bundle has it")
    return file


def _manifest(told: bytes, path: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode(told, type=Manifest)
    except (RecursionError, msgspec.DecodeError) as error:
        raise corrupt(str(path), 0, f"its manifest cannot be read: {error}") from error
    if manifest.kind != _KIND or LOG not in manifest.files:
        raise corrupt(str(path), 0, "its manifest is not that of a bundle")
    if manifest.version != _VERSION:
        raise FormatUnsupportedError(
            f"bundle {str(path)!r} is of version {manifest.version}, and this dshd reads {_VERSION}: upgrade it"
        )
    return manifest
