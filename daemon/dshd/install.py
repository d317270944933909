"""`dshd install`: the user units of this very program, written, shown or removed.

The one rule: nothing runs and nothing is enabled unless `--now` asks for it, and only files of ours are removed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dsh_protocol.errors import EXIT_CANNOT_START, EXIT_FAILURE, EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNITS = ("dshd.service", "dshd.socket")
_UNSAFE = frozenset(" \t\n%\\\"'$;")
_LIMIT_S = 30
_LINGER = (
    "without lingering the daemon ends at your last logout (nothing acknowledged is lost):"
    " loginctl enable-linger"
)


class _RefusedError(Exception):
    """It cannot be done; the text says why, in one line."""


def install(*, now: bool, environ: Mapping[str, str] | None = None) -> int:
    """Write the units; with `now` enable and start the socket, which starts the daemon with its first client."""
    env = os.environ if environ is None else environ
    try:
        units, folder = texts(), unit_folder(env)
        folder.mkdir(parents=True, exist_ok=True)
        places = {name: _place(folder / name) for name in units}
        for name, text in units.items():
            draft = places[name].with_name(f".{name}.new")
            draft.unlink(missing_ok=True)
            draft.write_text(text, "utf-8")
            draft.replace(places[name])
    except (_RefusedError, OSError) as error:
        return _say(f"dshd: {error}", EXIT_CANNOT_START)
    _say(f"installed {' and '.join(UNITS)} in {folder}")
    reloaded = _systemctl("daemon-reload")
    if not reloaded:
        _say("no user manager answers here; where one runs: systemctl --user daemon-reload")
        _say("without one, dshd runs as it is: dshd serve")
    elif now and not _systemctl("enable", "--now", "dshd.socket"):
        return _say("dshd: systemctl --user enable --now dshd.socket failed", EXIT_FAILURE)
    if not (now and reloaded):
        _say("then: systemctl --user enable --now dshd.socket")
    if not _lingers():
        _say(_LINGER)
    return EXIT_FAILURE if now and not reloaded else EXIT_OK


def _place(unit: Path) -> Path:
    """Where a unit is written: at the end of the links of those who keep theirs elsewhere; no link is replaced."""
    place = Path(os.path.realpath(unit))
    if place == Path(os.devnull):
        raise _RefusedError(f"{unit} is masked; run: systemctl --user unmask {unit.name}")
    if os.path.lexists(place) and not place.is_file():
        raise _RefusedError(f"{place} is no regular file; move it away")
    return place


def show() -> int:
    """Print the units as they would be written."""
    try:
        units = texts()
    except (_RefusedError, OSError) as error:
        return _say(f"dshd: {error}", EXIT_CANNOT_START)
    for name, text in units.items():
        sys.stdout.write(f"# {name}\n{text}\n")
    return EXIT_OK


def uninstall(environ: Mapping[str, str] | None = None) -> int:
    """Stop, disable and remove the units. Sessions and drop-ins stay."""
    folder = unit_folder(os.environ if environ is None else environ)
    _systemctl("disable", "--now", *UNITS)
    removed: list[str] = []
    for name in UNITS:
        try:
            (folder / name).unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            return _say(f"dshd: {error}", EXIT_FAILURE)
        removed.append(name)
    _systemctl("daemon-reload")
    _say(f"removed {' and '.join(removed)} from {folder}" if removed else "nothing was installed")
    _say("sessions stay where they are")
    return EXIT_OK


def unit_folder(environ: Mapping[str, str]) -> Path:
    """Where a user's own units lie."""
    given = environ.get("XDG_CONFIG_HOME", "")
    config = Path(given) if given.startswith("/") else Path.home() / ".config"
    return config / "systemd/user"


def texts(program: Path | None = None) -> dict[str, str]:
    """The units by name, for the program that runs.

    Raises:
        _RefusedError: The program's path cannot stand in a unit, or the units are not to be found.
    """
    command = program or _program()
    if _UNSAFE & set(str(command)):
        raise _RefusedError(f"{str(command)!r} cannot stand in a unit; move it to a plainer path")
    folder = _templates()
    found = {name: (folder / name).read_text("utf-8") for name in UNITS}
    lines = found["dshd.service"].split("\n")
    found["dshd.service"] = "\n".join(
        f"ExecStart={command} serve" if line.startswith("ExecStart=") else line for line in lines
    )
    return found


def _program() -> Path:
    """The `dshd` of this interpreter, else the one on the path."""
    beside = Path(sys.executable).parent / "dshd"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("dshd")
    if found is None:
        raise _RefusedError("the program dshd is not to be found; install the package first")
    return Path(found).absolute()


def _templates() -> Path:
    """Where the package has its units: in a checkout, or installed."""
    tried = (
        Path(__file__).resolve().parents[2] / "systemd",
        Path(sys.prefix) / "share/dshd/systemd",
    )
    for folder in tried:
        if all((folder / name).is_file() for name in UNITS):
            return folder
    raise _RefusedError(f"the units are not to be found in {tried[1]}; install the package again")


def _systemctl(*words: str) -> bool:
    return _run(["systemctl", "--user", *words]) is not None


def _lingers() -> bool:
    """Whether the user manager outlives the last login; yes where nobody can tell."""
    told = _run(["loginctl", "show-user", str(os.getuid()), "-P", "Linger"])
    return told is None or told.strip() == "yes"


def _run(command: Sequence[str]) -> str | None:
    """What a program prints; None where there is no such program, or it fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603  # the words are constants of this module
            command, capture_output=True, text=True, check=True, timeout=_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _say(text: str, code: int = EXIT_OK) -> int:
    stream = sys.stdout if code == EXIT_OK else sys.stderr
    stream.write(text + "\n")
    return code
