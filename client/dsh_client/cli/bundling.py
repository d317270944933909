"""A session as a bundle: a tar of its log as JSON Lines, and of a manifest with the checksum of it.

The rule: with `--no-redact` the log in it is byte for byte the one that is stored; otherwise the manifest says how much
was hidden. The same session makes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from typing import TYPE_CHECKING, Any

from dsh_client.cli.values import as_object
from dsh_protocol.version import FORMAT_VERSION, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsh_client.cli.context import Context
    from dsh_client.cli.reading import Source

MANIFEST, LOG = "manifest.json", "session.jsonl"
KIND, BUNDLE_VERSION = "dshd-bundle", 1
_PIECE = 1 << 20
_IN_MEMORY = 8 << 20


def bundle(source: Source, lines: Iterable[str], context: Context) -> Iterator[bytes]:
    """Yield the bundle in pieces. The log is kept aside first: its size stands in front of it."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as log:
        digest = hashlib.sha256()
        size = count = 0
        for line in lines:
            data = line.encode("utf-8", "replace")
            digest.update(data)
            size += log.write(data)
            count += 1
        manifest: dict[str, Any] = {
            "kind": KIND,
            "version": BUNDLE_VERSION,
            "id": source.id,
            "formatVersion": FORMAT_VERSION,
            "events": count - 1,
            "redacted": 0 if context.redactor is None else context.redactor.total,
            "labels": as_object(source.session.get("labels")),
            "by": f"dshctl {VERSION}",
            "files": {LOG: {"bytes": size, "sha256": digest.hexdigest()}},
        }
        told = json.dumps(manifest, indent=2).encode() + b"\n"
        yield _head(MANIFEST, len(told)) + told + _padding(len(told))
        yield _head(LOG, size)
        log.seek(0)
        while piece := log.read(_PIECE):
            yield piece
        yield _padding(size) + bytes(2 * tarfile.BLOCKSIZE)


def _head(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
