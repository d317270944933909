"""What the kernel lets this process have, and what follows from it for the limits that clients are told.

The one rule: a daemon with few descriptors serves few connections; it never takes so many that no log can be opened.
"""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from dshd.settings import CannotStartError

if TYPE_CHECKING:
    from dsh_protocol.limits import Limits

_M_MMAP_THRESHOLD = -3
_LARGE_BLOCK = 128 * 1024
FEWEST_DESCRIPTORS = 32
_MOST = 65_536
_OWN = 16  # standard streams, event loop, locks, listener
_PASSING = 4  # what one call has open while it runs


def raise_descriptor_limit() -> int:
    """Ask for as many descriptors as the hard limit gives; return how many there are.

    Raises:
        CannotStartError: Too few to serve anybody.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft < FEWEST_DESCRIPTORS:
        raise CannotStartError(
            f"the process may have {soft} open files and dshd needs {FEWEST_DESCRIPTORS};"
            " raise `ulimit -n` or LimitNOFILE="
        )
    return soft


def limits_within(limits: Limits, descriptors: int) -> Limits:
    """The limits with no more connections (a quarter) and open sessions (two each) than there are descriptors for."""
    connections = min(limits.max_connections, (descriptors - _OWN) // 4)
    sessions = (descriptors - _OWN - _PASSING - connections) // 2
    return msgspec.structs.replace(
        limits,
        max_connections=connections,
        max_open_sessions=min(limits.max_open_sessions, sessions),
    )


def return_large_blocks() -> None:
    """Have the C library give every large block back when it is freed, so that one busy hour is not kept for ever.

    Only glibc knows the setting; elsewhere nothing changes.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
