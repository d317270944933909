"""Where the socket, the state and the sessions lie: decided here for daemon and clients alike.

What is named in the environment is used or refused, never passed over: a daemon that quietly keeps its sessions
somewhere else is worse than one that does not start. Nothing ever falls back to /tmp. Standard library only.
"""

from __future__ import annotations

import os
import pwd
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_POINTER = 4096
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class PathUnusableError(ValueError):
    """A path that was asked for by name and cannot be used; the text says which, why, and the remedy."""


def state_dir(environ: Mapping[str, str]) -> str:
    """Return the directory of what the daemon keeps. It need not exist.

    Raises:
        PathUnusableError: The variable that decides is not an absolute path.
    """
    own = _from_variable(environ, "DSHD_STATE_DIR")
    if own is not None:
        return own
    xdg = _from_variable(environ, "XDG_STATE_HOME")
    if xdg is not None:
        return _under(xdg, "dshd")
    return _under(_home(environ), ".local/state/dshd")


def root_dir(environ: Mapping[str, str], flag: str | None = None) -> str:
    """Return the directory under which the sessions lie: the flag, `$DSHD_ROOT`, or below the state directory.

    Raises:
        PathUnusableError: What decides is not a usable path.
    """
    asked = _from_flag("--root", flag) or _from_variable(environ, "DSHD_ROOT")
    return asked or _under(state_dir(environ), "sessions")


def socket_path(environ: Mapping[str, str], flag: str | None = None) -> str:
    """Return where a daemon puts its socket.

    `$XDG_RUNTIME_DIR`, where it decides, must be a directory of this user that nobody else can write to.

    Raises:
        PathUnusableError: What decides is not a usable path.
    """
    asked = _from_flag("--socket", flag) or _from_variable(environ, "DSHD_SOCKET")
    if asked is not None:
        return asked
    runtime = _from_variable(environ, "XDG_RUNTIME_DIR")
    if runtime is None:
        return _under(state_dir(environ), "dshd.sock")
    _check_runtime_dir(runtime)
    return _under(runtime, "dshd/dshd.sock")


def client_socket_paths(environ: Mapping[str, str], flag: str | None = None) -> list[str]:
    """Return where a client may find the daemon, in the order to try.

    A socket asked for by name is the only one. Otherwise it is the daemon's usual places, then the path that the last
    daemon of this state directory wrote down: its environment may have been another than the client's.

    Raises:
        PathUnusableError: What decides is not a usable path.
    """
    asked = _from_flag("--socket", flag) or _from_variable(environ, "DSHD_SOCKET")
    if asked is not None:
        return [asked]
    state = state_dir(environ)
    runtime = _from_variable(environ, "XDG_RUNTIME_DIR")
    found = [] if runtime is None else [_under(runtime, "dshd/dshd.sock")]
    found.append(_under(state, "dshd.sock"))
    pointed = _read_pointer(_under(state, "socket"))
    if pointed is not None and pointed not in found:
        found.append(pointed)
    return found


def client_socket_path(environ: Mapping[str, str], flag: str | None = None) -> str:
    """Return the first of `client_socket_paths` where there is anything, else the first.

    Raises:
        PathUnusableError: What decides is not a usable path.
    """
    places = client_socket_paths(environ, flag)
    return next((place for place in places if os.path.lexists(place)), places[0])


def _under(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


def _from_flag(name: str, flag: str | None) -> str | None:
    """A flag is typed by somebody who sees the working directory, so it may be relative."""
    if flag is None:
        return None
    if not flag:
        raise PathUnusableError(f"{name} is empty; name a path, or leave it out")
    if "\0" in flag:
        raise PathUnusableError(f"{name} holds a NUL character; name another path")
    return os.path.join(os.getcwd(), flag)  # noqa: PTH109, PTH118  # pathlib costs a command 5 ms at its start


def _from_variable(environ: Mapping[str, str], name: str) -> str | None:
    value = environ.get(name)
    if value is None:
        return None
    if not value:
        if name.startswith("XDG_"):  # the XDG specification: empty is the same as not set
            return None
        raise PathUnusableError(
            f"${name} is set but empty; set it to an absolute path, or unset it"
        )
    if not value.startswith("/"):
        raise PathUnusableError(
            f"${name} is '{value}', which is not an absolute path; set one, or unset it"
        )
    return value.rstrip("/") or "/"


def _home(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME")
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            raise PathUnusableError(
                f"$HOME is not set and user {os.getuid()} is in no user database; set $DSHD_STATE_DIR"
            ) from None
    if not home.startswith("/"):
        raise PathUnusableError(
            f"the home directory '{home}' is not an absolute path; set $HOME or $DSHD_STATE_DIR"
        )
    return home.rstrip("/") or "/"


def _check_runtime_dir(path: str) -> None:
    remedy = "repair it, unset $XDG_RUNTIME_DIR, or name a socket with --socket"
    try:
        found = os.lstat(path)
    except OSError as error:
        reason = error.strerror or "unreachable"
        raise PathUnusableError(
            f"$XDG_RUNTIME_DIR '{path}' cannot be used: {reason.lower()}; {remedy}"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        defect = "it is not a directory"
    elif found.st_uid != os.getuid():
        defect = f"it belongs to user {found.st_uid}, not to user {os.getuid()}"
    elif found.st_mode & _WRITABLE_BY_OTHERS:
        defect = f"others can write to it (mode {stat.S_IMODE(found.st_mode):04o})"
    else:
        return
    raise PathUnusableError(f"$XDG_RUNTIME_DIR '{path}' cannot be used: {defect}; {remedy}")


def _read_pointer(path: str) -> str | None:
    """A pointer that is missing or odd points nowhere: it is a convenience, not something asked for."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # likewise
            content = file.read(_LONGEST_POINTER + 1)
    except OSError:
        return None
    named = content.removesuffix(b"\n")
    if len(content) > _LONGEST_POINTER or not named.startswith(b"/") or b"\0" in named:
        return None
    return os.fsdecode(named)
