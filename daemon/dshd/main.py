"""The command `dshd`: parse, prepare, run, and turn every way to end into an exit code.

The one rule: what keeps the daemon from starting is one line on standard error and exit code 78.
"""

from __future__ import annotations

import argparse
import errno
import gc
import io
import os
import sys
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dsh_protocol.errors import EXIT_CANNOT_START, EXIT_FAILURE, EXIT_OK, RootLockedError
from dsh_protocol.version import FORMAT_VERSION, PROTOCOL_VERSION, VERSION
from dshd.settings import (
    DEFAULT_BATCH_WINDOW_S,
    CannotStartError,
    Settings,
    load_settings,
    parse_batch_window,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dshd.settings import ServeFlags

_VERBS = ("serve", "check-config", "install", "verify", "salvage", "restore")
_EXIT_PIPE = 141  # as of dshctl
_SWITCH_S = 0.0005
_LOG_LEVELS = ("debug", "info", "warning", "error")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `dshd` with these arguments (the process's own by default) and return its exit code."""
    closed = sys.stdout is None
    fill_standard_fds()
    words = list(sys.argv[1:] if argv is None else argv)
    with suppress(AttributeError):  # not a text file of the interpreter's own
        cast("Any", sys.stdout).reconfigure(errors="backslashreplace")
    told = io.StringIO()
    runs = {"check-config": _check_config, "install": _install}
    try:
        with redirect_stdout(told):
            flags = _parser().parse_args(_with_verb(words))
            code = None if flags.verb == "serve" else runs.get(flags.verb, _offline)(flags)
    except SystemExit as end:  # of the parser, its help or refusal printed
        raise SystemExit(end.code or _print(told.getvalue(), closed=closed)) from None
    return _serve(flags) if code is None else _print(told.getvalue(), closed=closed) or code


def _print(text: str, *, closed: bool) -> int:
    """Print what a verb has to say; return the exit code, which is not 0 where it is lost.

    At its end and in one piece: an output that takes no more keeps nothing from being done.
    """
    reason = os.strerror(errno.EBADF) if closed and text else None
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as exc:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # kept for the process
        if isinstance(exc, BrokenPipeError):
            return _EXIT_PIPE
        reason = exc.strerror
    if reason is None:
        return EXIT_OK
    sys.stderr.write(f"dshd: cannot write to standard output: {reason}\n")
    return EXIT_FAILURE


def fill_standard_fds() -> None:
    """Open /dev/null in place of closed descriptors 0 to 2, so that no log or socket ever gets such a number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004  # standard error is 2
        os.set_inheritable(fd, True)  # noqa: FBT003  # the standard library's signature
    os.close(fd)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # kept for the process
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # kept for the process


def _with_verb(words: list[str]) -> list[str]:
    """Plain `dshd`, with or without flags, is `dshd serve`."""
    if words and (words[0] in _VERBS or words[0] in {"-h", "--help", "-V", "--version"}):
        return words
    if words and not words[0].startswith("-"):
        return words  # argparse says which verbs there are
    return ["serve", *words]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dshd",
        description="Keep the sessions of AI agents: nothing acknowledged is lost, nothing is blindly run twice.",
        epilog="Plain `dshd` is `dshd serve`. Talk to a running daemon with `dshctl`.",
    )
    version = f"dshd {VERSION} (protocol {PROTOCOL_VERSION}, log format {FORMAT_VERSION})"
    parser.add_argument("-V", "--version", action="version", version=version)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    serve = verbs.add_parser("serve", help="run the daemon in the foreground (the default)")
    _add_settings(serve)
    check = verbs.add_parser("check-config", help="say whether `serve` would start, and on what")
    _add_settings(check)
    _add_install(verbs.add_parser("install", help="write the systemd user units of this program"))
    verify = verbs.add_parser(
        "verify", help="check stored sessions without a daemon; changes nothing"
    )
    salvage = verbs.add_parser(
        "salvage", help="write a new session from what can be read of a damaged one"
    )
    _add_offline(verify, salvage)
    _add_restore(
        verbs.add_parser("restore", help="make a session of a bundle, whole or not at all")
    )
    return parser


def _add_restore(restore: argparse.ArgumentParser) -> None:
    restore.add_argument("target", metavar="FILE", help="what dshctl export --format bundle wrote")
    restore.add_argument("--id", help="of the new session (default: that of the one in the bundle)")
    restore.add_argument(
        "--root",
        metavar="DIR",
        help="where sessions are kept (default: $DSHD_ROOT, …); a daemon may run",
    )
    restore.add_argument("--json", action="store_true", help="print one JSON document")
    restore.add_argument("--said-by", default="dshd", help=argparse.SUPPRESS)  # dshctl import is


def _add_settings(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--socket", metavar="PATH", help="where clients connect (default: $DSHD_SOCKET, …)"
    )
    serve.add_argument(
        "--root", metavar="DIR", help="where sessions are kept (default: $DSHD_ROOT, …)"
    )
    serve.add_argument(
        "--compression", choices=("zstd", "none"), default="zstd", help="how new logs are written"
    )
    serve.add_argument(
        "--batch-window",
        type=_seconds,
        default=DEFAULT_BATCH_WINDOW_S,
        metavar="SECONDS",
        help="longest wait of an event for its write when nobody asks sooner (default: %(default)s)",
    )
    serve.add_argument(
        "--journal-fields",
        action="store_true",
        help="where standard error is the journal: each value of its own log as a field (DSHD_SESSION=…)",
    )
    serve.add_argument(
        "--traces",
        action="store_true",
        help="send OpenTelemetry spans of its own work to $OTEL_EXPORTER_OTLP_ENDPOINT (needs dshd[otel])",
    )
    serve.add_argument(
        "--log-level", choices=_LOG_LEVELS, default="info", help="what the daemon's own log tells"
    )


def _add_install(units: argparse.ArgumentParser) -> None:
    choice = units.add_mutually_exclusive_group()
    choice.add_argument("--now", action="store_true", help="enable and start the socket, too")
    choice.add_argument("--print", action="store_true", help="show the units, write nothing")
    choice.add_argument("--uninstall", action="store_true", help="stop and remove the units")


def _add_offline(verify: argparse.ArgumentParser, salvage: argparse.ArgumentParser) -> None:
    verify.add_argument(
        "target",
        metavar="PATH|ID",
        nargs="?",
        help="a log file, a session's folder or its id, a project's folder in a root, or a root "
        "(default: the whole root)",
    )
    salvage.add_argument(
        "target", metavar="PATH|ID", help="a log file, a session's folder, or a session's id"
    )
    salvage.add_argument(
        "--to",
        metavar="DIR",
        help="the root that gets the new session (default: the same, while no daemon runs)",
    )
    salvage.add_argument("--id", help="of the new session (default with --to: the old one's)")
    for verb in (verify, salvage):
        verb.add_argument(
            "--root", metavar="DIR", help="where sessions are kept (default: $DSHD_ROOT, …)"
        )
        verb.add_argument("--json", action="store_true", help="print one JSON document")


def _seconds(text: str) -> float:
    try:
        return parse_batch_window(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _check_config(flags: argparse.Namespace) -> int:
    from dshd.checking import check_config

    return check_config(cast("ServeFlags", flags))


def _install(flags: argparse.Namespace) -> int:
    from dshd import install

    if flags.print:
        return install.show()
    return install.uninstall() if flags.uninstall else install.install(now=flags.now)


def _serve(flags: argparse.Namespace) -> int:
    """Prepare the folders and run the event loop until the daemon is told to stop."""
    # Imported here: `verify` and `--help` need neither the event loop nor the logger.
    import trio

    from dshd import lifecycle, logs
    from dshd.ceilings import limits_within, raise_descriptor_limit, return_large_blocks
    from dshd.directories import make_private_dir
    from dshd.journal import Journal

    logs.configure_logs(flags.log_level, journal=Journal() if flags.journal_fields else None)
    try:
        settings: Settings = load_settings(cast("ServeFlags", flags))
        limits = limits_within(settings.limits, raise_descriptor_limit())
        settings = replace(settings, limits=limits)
        # Reads decode in threads: the event loop must not wait 5 ms for each of them whenever it wants to go on.
        sys.setswitchinterval(_SWITCH_S)
        return_large_blocks()
        make_private_dir(settings.state_dir, "the state folder")
        make_private_dir(settings.root, "the root")
        gc.freeze()  # what is loaded stays; looking through it again and again only delays the loop
        return trio.run(lifecycle.serve, settings)
    except (CannotStartError, RootLockedError) as exc:
        return _cannot_start(str(exc))
    except BaseExceptionGroup as group:
        refused = _first_refusal(group)
        if refused is None:
            raise
        return _cannot_start(str(refused))


def _first_refusal(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """Return why the start was refused, when that is all that the group holds."""
    refusals, others = group.split((CannotStartError, RootLockedError))
    if refusals is None or others is not None:
        return None
    first: BaseException = refusals
    while isinstance(first, BaseExceptionGroup):
        first = cast("BaseExceptionGroup[BaseException]", first).exceptions[0]
    return first


def _cannot_start(reason: str) -> int:
    sys.stderr.write(f"dshd: {_one_line(reason)}\n")
    return EXIT_CANNOT_START


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _offline(flags: argparse.Namespace) -> int:
    """Run a verb that needs no daemon."""
    from dsh_protocol import paths
    from dshd import offline

    try:
        root = Path(paths.root_dir(os.environ, flags.root))
    except paths.PathUnusableError as exc:
        return _cannot_start(str(exc))
    runs = {
        "verify": offline.run_verify,
        "salvage": offline.run_salvage,
        "restore": offline.run_restore,
    }
    return runs[flags.verb](flags, root)


if __name__ == "__main__":
    sys.exit(main())
