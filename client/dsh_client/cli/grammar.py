"""What a parser takes, as plain values: for completions and manuals, which are made of it and so never lag behind.

The rule: only what a person may type; what argparse keeps for itself stays here.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple


class Option(NamedTuple):
    """An option.

    Attributes:
        names: As typed, the short ones too.
        value: What stands for its value in a help text; None where it takes none.
        choices: The only values, where these are few.
        text: Its help.
    """

    names: tuple[str, ...]
    value: str | None
    choices: tuple[str, ...]
    text: str


class Operand(NamedTuple):
    """A word that is no option. `shape` is how it stands in a synopsis."""

    name: str
    shape: str
    choices: tuple[str, ...]
    text: str


class Grammar(NamedTuple):
    """One command: `dshctl list`, or a program as a whole."""

    name: str
    text: str
    options: tuple[Option, ...]
    operands: tuple[Operand, ...]
    epilog: str


_SHAPES = {"?": "[{}]", "*": "[{}…]", "+": "{}…"}


def grammar(name: str, parser: argparse.ArgumentParser) -> Grammar:
    """Return what a parser takes."""
    options: list[Option] = []
    operands: list[Operand] = []
    for action in parser._actions:  # noqa: SLF001  # argparse has no other way to ask
        if isinstance(action.choices, dict) or action.help == argparse.SUPPRESS:
            continue  # the verbs are parsers of their own
        choices = tuple(map(str, action.choices or ()))
        text = _expanded(action)
        value = "|".join(choices) if choices and not action.metavar else _metavar(action)
        if action.option_strings:
            taken = None if action.nargs == 0 else value
            options.append(Option(tuple(action.option_strings), taken, choices, text))
        else:
            shape = _SHAPES.get(str(action.nargs), "{}").format(value)
            operands.append(Operand(value, shape, choices, text))
    return Grammar(
        name, parser.description or "", tuple(options), tuple(operands), parser.epilog or ""
    )


def of_verbs() -> list[Grammar]:
    """Return every verb of `dshctl`, with the options that all share among its own."""
    from dsh_client.cli.main import verb_parser
    from dsh_client.cli.verbs import VERBS

    return [grammar(verb.name, verb_parser(verb, load=True)) for verb in VERBS]


def shared() -> Grammar:
    """Return what may stand in front of a verb."""
    from dsh_client.cli.main import build_parser

    return grammar("dshctl", build_parser())


def _metavar(action: argparse.Action) -> str:
    given: Any = action.metavar
    return given if isinstance(given, str) else action.dest.upper()


def _expanded(action: argparse.Action) -> str:
    text = action.help or ""
    return text % vars(action) if "%" in text else text
