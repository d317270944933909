"""`dshctl doctor`: socket, folders, units, versions, disk and sessions; for each that is not well what to try.

The rule: it works whatever does not, also without a daemon or with one of another age; and what it says can be shown to
others, for likely secrets are hidden.
"""

from __future__ import annotations

import os
from argparse import SUPPRESS
from typing import TYPE_CHECKING, Any

from dsh_client.cli import checks
from dsh_client.cli.checks import FAILURE, OK, UNKNOWN, WARNING, Check
from dsh_client.cli.hints import command, hint
from dsh_client.cli.text import shell_word
from dsh_client.cli.values import as_list, as_object
from dsh_client.errors import ClientError, DaemonUnavailableError
from dsh_protocol.errors import EXIT_FAILURE, EXIT_NOT_RUNNING, EXIT_OK, DshdError
from dsh_protocol.paths import client_socket_paths, root_dir, state_dir
from dsh_protocol.version import FORMAT_VERSION, PROTOCOL_VERSION, VERSION

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context

_MARKS = {OK: "ok", WARNING: "warning", FAILURE: "FAILURE", UNKNOWN: "unknown"}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `doctor` takes. A daemon of another age is asked, too."""
    parser.add_argument(
        "--json",
        dest="output",
        action="store_const",
        const="json",
        default=SUPPRESS,
        help="the same as -o json",
    )
    parser.set_defaults(any_version=True)
    parser.epilog = (
        "The exit code is 0 where nothing has failed, 1 where something has, 3 where no daemon runs.\n\n"
        "example:\n  dshctl doctor --json > report.json"
    )


def run(arguments: Namespace, context: Context) -> int:
    """Look at everything, and print it."""
    found = Examination(context, arguments.socket)
    found.look()
    shown = [Check(*(context.clean(part) for part in one)) for one in found.checks]
    bad = sum(one.status == FAILURE for one in shown)
    if context.out.is_table:
        _print(shown, context)
    elif context.out.form == "jsonl":
        for one in shown:
            context.out.json(_document(one))
    else:
        context.out.json(
            {"ok": bad == 0, "checks": [_document(one) for one in shown], **found.facts}
        )
    if not found.runs:
        return EXIT_NOT_RUNNING
    return EXIT_FAILURE if bad else EXIT_OK


class Examination:
    """What is looked at, in the order in which it is told.

    Attributes:
        checks: What was found.
        facts: The figures among it, for programs.
        runs: Whether a daemon answers.
    """

    def __init__(self, context: Context, socket: str | None) -> None:
        """Look at nothing yet."""
        self.checks: list[Check] = []
        self.facts: dict[str, Any] = {
            "client": {
                "version": VERSION,
                "protocolVersion": PROTOCOL_VERSION,
                "formatVersion": FORMAT_VERSION,
            },
            "server": None,
            "socket": None,
            "root": None,
            "freeBytes": None,
            "fsyncMs": None,
        }
        self.runs = True
        self._context = context
        self._socket = socket
        self._status: dict[str, Any] = {}

    def look(self) -> None:
        """Look at everything."""
        self._daemon()
        self._places()
        self.checks += [*checks.units(), checks.linger()]
        self._disk()
        if self._status:
            self._sessions()

    def _daemon(self) -> None:
        try:
            self._status = as_object(self._context.call("daemon.status"))
        except DaemonUnavailableError as error:
            self.runs = False
            self.checks.append(Check("daemon", FAILURE, error.message, hint(error)))
            return
        except (DshdError, ClientError) as error:
            self.checks.append(Check("daemon", FAILURE, error.message, hint(error)))
            return
        server = as_object(self._status.get("server"))
        self.facts["server"] = server or None
        text = f"{server.get('name')} {server.get('version')}, pid {server.get('pid')}"
        self.checks.append(Check("daemon", OK, text))
        self.checks.append(self._versions(server))

    def _versions(self, server: dict[str, Any]) -> Check:
        spoken = self._context.greeting.get("protocolVersion")
        text = f"dshctl {VERSION}, daemon {server.get('version')}; protocol {PROTOCOL_VERSION} and {spoken}"
        if spoken != PROTOCOL_VERSION:
            remedy = "upgrade the older one, then: dshctl stop"
            return Check("versions", FAILURE, f"{text}: they do not understand each other", remedy)
        if server.get("version") != VERSION:
            remedy = "dshctl stop, and start it anew where the daemon is the older one"
            return Check("versions", WARNING, text, remedy)
        return Check("versions", OK, text)

    def _places(self) -> None:
        try:
            named = client_socket_paths(os.environ, self._socket)
            socket = str(self._status.get("socket") or named[0])
            root = str(self._status.get("root") or root_dir(os.environ))
            state = state_dir(os.environ)
        except ValueError as error:
            self.checks.append(Check("places", FAILURE, str(error)))
            return
        self.facts["socket"], self.facts["root"] = socket, root
        if self._status or os.path.lexists(socket):
            self.checks.append(checks.place("socket", socket, socket=True))
            folder = os.path.dirname(socket)  # noqa: PTH120  # pathlib costs 5 ms at start
            self.checks.append(checks.place("socket's folder", folder))
        if os.path.lexists(state):  # that of a daemon with another environment may be elsewhere
            self.checks.append(checks.place("state folder", state))
        if self._status or os.path.lexists(root):
            self.checks.append(checks.place("sessions", root))

    def _disk(self) -> None:
        root = self.facts["root"]
        if root is None or not os.path.isdir(root):  # noqa: PTH112  # pathlib costs 5 ms at start
            return
        room, self.facts["freeBytes"] = checks.room(root)
        speed, self.facts["fsyncMs"] = checks.flushing(root)
        self.checks += [room, speed]

    def _sessions(self) -> None:
        counts = as_object(self._status.get("sessions"))
        told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        self.checks.append(Check("all sessions", OK, told or "none yet"))
        try:
            pages = list(self._context.sessions({}))
        except (DshdError, ClientError) as error:
            self.checks.append(Check("all sessions", FAILURE, error.message, hint(error)))
            return
        sessions = {one["id"]: one for page in pages for one in page["sessions"]}.values()
        theirs = [as_object(one.get("problem")) for one in sessions]
        for problem in map(as_object, as_list(self._status.get("problems"))):
            if problem and problem not in theirs:
                text = f"{problem.get('kind')}: {problem.get('message')}"
                self.checks.append(Check("the daemon's state", FAILURE, text, "dshctl status"))
        self.checks += filter(None, map(_session, sessions))


def _session(session: dict[str, Any]) -> Check | None:
    """Return what is wrong with a session, and the next step; None where nothing is."""
    session_id, state = str(session["id"]), session.get("state")
    name = f"session {session_id}"
    problem = as_object(session.get("problem"))
    if problem:
        remedy = (
            command("log", session_id)
            if state == "unsupported"
            else f"dshd verify {shell_word(session_id)}"
        )
        text = f"{problem.get('kind')}: {problem.get('message')}"
        return Check(name, WARNING if state == "unsupported" else FAILURE, text, remedy)
    if state == "interrupted":
        calls = len(as_list(session.get("pendingCalls")))
        text = f"interrupted in turn {session.get('openTurn')}, {calls} calls unanswered"
        return Check(name, WARNING, text, command("recover", session_id))
    return None


def _document(one: Check) -> dict[str, Any]:
    return {"name": one.name, "status": one.status, "text": one.text, "try": one.remedy}


def _print(found: list[Check], context: Context) -> None:
    out = context.out
    for one in found:
        out.line(f"{_MARKS[one.status]:8} {one.name}: {one.text}")
        if one.remedy is not None and one.status != OK:
            out.line(f"         try: {one.remedy}")
    bad = sum(one.status == FAILURE for one in found)
    odd = sum(one.status == WARNING for one in found)
    out.line(f"{len(found)} checks: {bad} failed, {odd} with a warning")
