"""Writes the manual pages dshd(8) and dshctl(1) anew from the parsers: `make man`.

The rule: no word of a page that the parser could say is written by hand, so that a page cannot lag behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh_client.cli.grammar import Grammar, Option, grammar, of_verbs, shared
from dsh_client.cli.verbs import VERBS
from dsh_protocol.version import VERSION
from dshd import main as daemon

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "man"
ENVIRONMENT = {
    "DSHD_SOCKET": "the daemon's socket, where --socket does not say",
    "DSHD_STATE_DIR": "the state folder; else dshd below $XDG_STATE_HOME, else ~/.local/state/dshd",
    "XDG_RUNTIME_DIR": "the socket is dshd/dshd.sock below it, where neither says otherwise",
}
OF_DAEMON = {"DSHD_ROOT": "the folder of the sessions, where --root does not say"}
OF_CLIENT = {
    "COLUMNS": "the width of tables on a terminal",
    "DSHD_PAGER, PAGER": "what shows more than a screen; else less; empty or cat: nothing does",
    "NO_COLOR": "honoured by nature: dshctl prints no colour",
}
CODES = {
    "0": "ok",
    "1": "failure, lost output among them, or damage found",
    "2": "usage, or an ambiguous id",
    "3": "the daemon does not run",
    "4": "no such session",
    "5": "conflict: busy, writer lost, seq",
    "6": "a checkpoint was refused",
    "78": "cannot start: configuration, socket, root",
}


def escaped(text: str) -> str:
    """Return text that groff takes as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = "".join(f"\\[u{ord(char):04X}]" if ord(char) > 0x7F else char for char in text)
    return f"\\&{text}" if text.startswith(".") else text


def page(name: str, section: int, summary: str, body: Iterable[str]) -> str:
    """Return a page. It bears the version and no date: the same tree makes the same page."""
    head = [
        f'.TH {name.upper()} {section} "" "dshd {VERSION}" "dshd"',
        ".nh",
        ".SH NAME",
        f"{name} \\- {escaped(summary)}",
    ]
    return "\n".join([*head, *body]) + "\n"


def option_lines(options: Iterable[Option]) -> Iterator[str]:
    for option in options:
        names = ", ".join(f"\\fB{escaped(name)}\\fR" for name in option.names)
        value = "" if option.value is None else f" \\fI{escaped(option.value)}\\fR"
        yield ".TP"
        yield names + value
        yield escaped(option.text) or "\\&"


def epilog_lines(text: str) -> Iterator[str]:
    if not text:
        return
    yield ".PP"
    yield ".nf"
    yield from (escaped(line) if line.strip() else ".sp" for line in text.split("\n"))
    yield ".fi"


def verb_lines(
    title: str, verb: Grammar, summary: str, common: set[tuple[str, ...]]
) -> Iterator[str]:
    own = [option for option in verb.options if option.names not in common]
    shape = " ".join(["[OPTION…]", *(operand.shape for operand in verb.operands)])
    yield f".SS {escaped(title)}"
    yield f".B {escaped(title)}"
    yield escaped(shape)
    yield ".PP"
    yield escaped(f"{summary[:1].upper()}{summary[1:]}.")
    for operand in verb.operands:
        yield ".TP"
        yield f"\\fI{escaped(operand.name)}\\fR"
        yield escaped(operand.text) or "\\&"
    yield from option_lines(own)
    yield from epilog_lines(verb.epilog)


def pairs(title: str, entries: dict[str, str]) -> Iterator[str]:
    yield f".SH {title}"
    for name, text in entries.items():
        yield ".TP"
        yield f"\\fB{escaped(name)}\\fR"
        yield escaped(text)


def dshctl() -> str:
    program = shared()
    common = {option.names for option in program.options}
    summaries = {verb.name: verb for verb in VERBS}

    def body() -> Iterator[str]:
        yield from (".SH SYNOPSIS", ".B dshctl", escaped("[OPTION…] VERB [ARGUMENT…]"))
        yield from (".SH DESCRIPTION", escaped(program.text))
        yield escaped("A session is named by its id, a beginning that only one id has, or @last.")
        yield ".SH OPTIONS"
        yield from option_lines(program.options)
        yield ".SH VERBS"
        for verb in of_verbs():
            found = summaries[verb.name]
            title = ", ".join(f"dshctl {name}" for name in (verb.name, *found.aliases))
            yield from verb_lines(title, verb, found.summary, {*common, ("-h", "--help")})
        yield from pairs("EXIT STATUS", CODES)
        yield from pairs("ENVIRONMENT", {**ENVIRONMENT, **OF_CLIENT})
        yield from (".SH SEE ALSO", ".BR dshd (8)")

    return page("dshctl", 1, "look at and mend the sessions that dshd keeps", body())


def dshd() -> str:
    made: Any = daemon
    parser = made._parser()  # noqa: SLF001  # the page is made of it
    program = grammar("dshd", parser)
    verbs: dict[str, argparse.ArgumentParser] = {}
    summaries: dict[str, str] = {}
    for action in parser._actions:  # noqa: SLF001  # argparse has no other way to ask
        if hasattr(action.choices, "items"):
            verbs = action.choices
            told = action._get_subactions()  # noqa: SLF001  # likewise
            summaries = {one.dest: one.help or "" for one in told}

    def body() -> Iterator[str]:
        yield from (".SH SYNOPSIS", ".B dshd", escaped("[VERB] [OPTION…]"))
        yield from (".SH DESCRIPTION", escaped(program.text), escaped(program.epilog))
        yield ".SH OPTIONS"
        yield from option_lines(program.options)
        yield ".SH VERBS"
        for name, one in verbs.items():
            yield from verb_lines(
                f"dshd {name}", grammar(name, one), summaries[name], {("-h", "--help")}
            )
        codes = {
            number: text for number, text in CODES.items() if number in {"0", "1", "2", "4", "78"}
        }
        yield from pairs("EXIT STATUS", codes)
        yield from pairs("ENVIRONMENT", {**ENVIRONMENT, **OF_DAEMON})
        yield from (".SH SEE ALSO", ".BR dshctl (1)")

    return page("dshd", 8, "the daemon that keeps the sessions of AI agents", body())


PAGES = {"dshctl.1": dshctl, "dshd.8": dshd}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), "ascii")


if __name__ == "__main__":
    main()
