"""Logs of later format versions, which stand beside one of version 0 and go before it.

The rule that holds here: a session that a newer program took over is not written to by this one. Only a log with a
header of another version counts; any other file of such a name is a stranger and left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_protocol.errors import DshdError, FormatUnsupportedError
from dshd.storage.files import READ
from dshd.storage.jsonl.layout import NEWER_LOG
from dshd.storage.jsonl.source import Source, read_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dshd.storage.jsonl.site import Site


def refuse_newer(site: Site, directory: int, names: Sequence[str]) -> None:
    """Raise where a log of a later version stands in the session's open directory.

    Raises:
        FormatUnsupportedError: It does; the text names it.
    """
    for name in sorted(names):
        if NEWER_LOG.fullmatch(name) and _is_newer(site, directory, name):
            raise FormatUnsupportedError(
                f"beside log {site.path!r} stands {name!r} of a later format, which goes before it; "
                "use a newer version",
                path=site.path,
            )


def _is_newer(site: Site, directory: int, name: str) -> bool:
    try:
        fd = site.disk.open(name, READ, at=directory)
    except OSError:
        return False
    try:
        size = site.disk.fstat(fd).st_size
        read_header(Source(site.disk, fd, name, name.endswith(".zstd")), size)
    except FormatUnsupportedError:
        return True
    except (OSError, DshdError):
        return False
    finally:
        site.disk.close(fd)
    return False
