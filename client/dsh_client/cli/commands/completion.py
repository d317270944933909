"""`dshctl completion`: a script with which a shell completes verbs, options and the ids of sessions.

The rule: the script is made of the parser, so it knows all that this `dshctl` takes; ids are asked when they are
needed, and a daemon that does not answer costs nothing but their completion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_client.cli.grammar import of_verbs, shared
from dsh_client.cli.verbs import VERBS
from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from dsh_client.cli.context import Context
    from dsh_client.cli.grammar import Grammar, Option

_SESSIONS = {"ID", "ID[:SEQ]", "A[@SEQ]", "B[@SEQ]"}
_FILES = {"FILE", "PATH", "DIR"}
_IDS = "dshctl --timeout 3 list --all -q -n 1000 2>/dev/null"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `completion` takes."""
    parser.add_argument(
        "shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish"
    )
    parser.epilog = (
        "examples:\n"
        "  dshctl completion bash > ~/.local/share/bash-completion/completions/dshctl\n"
        "  dshctl completion zsh > ~/.zfunc/_dshctl\n"
        "  dshctl completion fish > ~/.config/fish/completions/dshctl.fish"
    )


def run(arguments: Namespace, context: Context) -> int:
    """Print the script."""
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell]()
    context.out.document("\n".join(script) + "\n")
    return EXIT_OK


def _names() -> dict[str, tuple[str, ...]]:
    """Return each verb's names."""
    return {verb.name: (verb.name, *verb.aliases) for verb in VERBS}


def _takes_sessions(verb: Grammar) -> bool:
    return any(operand.name in _SESSIONS for operand in verb.operands)


def _flags(verb: Grammar) -> str:
    return " ".join(name for option in verb.options for name in option.names)


def _own(verb: Grammar) -> Iterator[Option]:
    """Yield the options that are not those of all verbs."""
    common = {option.names for option in shared().options}
    return (option for option in verb.options if option.names not in common)


def _after(option: Option) -> str:
    """Return what a shell does behind an option that takes a value."""
    if option.choices:
        return f"values='{' '.join(option.choices)}'"
    return "kind=files options=''" if option.value in _FILES else "return"


def _body(verbs: list[Grammar], words: str, first: int) -> Iterator[str]:
    """Yield what finds the verb and what may come; the same in bash and zsh but for the words' array."""
    valued = [option for option in shared().options if option.value is not None]
    skipped = "|".join(name for option in valued for name in option.names)
    yield "  local verb='' options='' kind=words offered='' values='' word i skip=0"
    yield f"  for ((i = {first}; i < at; i++)); do"
    yield f"    word=${{{words}[i]}}"
    yield "    if ((skip)); then skip=0; continue; fi"
    yield f'    case "$word" in {skipped}) skip=1 ;; -*) ;; *) verb=$word; break ;; esac'
    yield "  done"
    yield '  case "$verb" in'
    names = _names()
    for verb in verbs:
        words = " ".join(word for operand in verb.operands for word in operand.choices)
        kind = "ids" if _takes_sessions(verb) else "words"
        kind = "files" if any(operand.name in _FILES for operand in verb.operands) else kind
        patterns = "|".join(names[verb.name])
        yield f"    {patterns}) options='{_flags(verb)}' kind={kind} offered='{words}' ;;"
    every = " ".join(name for several in names.values() for name in several)
    yield f"    '') options='{_flags(shared())}' offered='{every}' ;;"
    yield "  esac"
    yield '  case "$verb $prev" in'
    for verb in verbs:
        for option in _own(verb):
            if option.value is not None:
                places = [f"'{one} {name}'" for one in names[verb.name] for name in option.names]
                yield f"    {'|'.join(places)}) {_after(option)} ;;"
    for option in valued:
        ends = "|".join(f"*' {name}'" for name in option.names)
        yield f"    {ends}) {_after(option)} ;;"
    yield "  esac"


def _bash() -> Iterator[str]:
    verbs = of_verbs()
    yield "# bash completion of dshctl, made by: dshctl completion bash"
    yield "_dshctl() {"
    yield "  local cur=${COMP_WORDS[COMP_CWORD]} prev='' at=$COMP_CWORD"
    yield "  ((at > 0)) && prev=${COMP_WORDS[at-1]}"
    yield "  COMPREPLY=()"
    yield from _body(verbs, "COMP_WORDS", 1)
    yield '  if [[ -n $values ]]; then COMPREPLY=($(compgen -W "$values" -- "$cur")); return; fi'
    yield '  if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W "$options" -- "$cur")); return; fi'
    yield "  case $kind in"
    yield '    files) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")) ;;'
    yield '    ids) while IFS= read -r word; do [[ $word == "$cur"* ]] && COMPREPLY+=("$(printf %q "$word")")'
    yield f"      done < <(echo @last; {_IDS}) ;;"
    yield '    *) COMPREPLY=($(compgen -W "$offered" -- "$cur")) ;;'
    yield "  esac"
    yield "}"
    yield "complete -F _dshctl dshctl"


def _zsh() -> Iterator[str]:
    verbs = of_verbs()
    yield "#compdef dshctl"
    yield "# zsh completion of dshctl, made by: dshctl completion zsh"
    yield "_dshctl() {"
    yield "  local cur=${words[CURRENT]} prev=${words[CURRENT-1]} at=$CURRENT"
    yield "  ((CURRENT == 2)) && prev=''"
    yield from _body(verbs, "words", 2)
    yield "  if [[ -n $values ]]; then compadd -- ${=values}; return; fi"
    yield "  if [[ $cur == -* ]]; then compadd -- ${=options}; return; fi"
    yield "  case $kind in"
    yield "    files) _files ;;"
    yield f'    ids) compadd -- @last ${{(f)"$({_IDS})"}} ;;'
    yield "    *) compadd -- ${=offered} ;;"
    yield "  esac"
    yield "}"
    yield 'if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _dshctl "$@"; else compdef _dshctl dshctl; fi'


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_option(option: Option, condition: str) -> str:
    parts = ["complete", "-c dshctl", f"-n {_quoted(condition)}"]
    parts += [
        f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
    ]
    if option.choices:
        parts.append(f"-x -a {_quoted(' '.join(option.choices))}")
    elif option.value is not None:
        parts.append("-r" if option.value in _FILES else "-x")
    parts.append(f"-d {_quoted(option.text)}")
    return " ".join(parts)


def _fish() -> Iterator[str]:
    yield "# fish completion of dshctl, made by: dshctl completion fish"
    every = " ".join(name for several in _names().values() for name in several)
    yield f"function __dshctl_no_verb; not __fish_seen_subcommand_from {every}; end"
    yield "complete -c dshctl -f"
    for option in shared().options:
        yield _fish_option(option, "__dshctl_no_verb")
    summaries = {verb.name: verb.summary for verb in VERBS}
    for verb in of_verbs():
        names = _names()[verb.name]
        for name in names:
            text = _quoted(summaries[verb.name])
            yield f"complete -c dshctl -n __dshctl_no_verb -a {name} -d {text}"
        condition = f"__fish_seen_subcommand_from {' '.join(names)}"
        for option in verb.options:
            yield _fish_option(option, condition)
        if _takes_sessions(verb):
            yield f"complete -c dshctl -n {_quoted(condition)} -a {_quoted(f'@last ({_IDS})')}"
        for operand in verb.operands:
            if operand.choices:
                yield f"complete -c dshctl -n {_quoted(condition)} -a {_quoted(' '.join(operand.choices))}"
            elif operand.name in _FILES:
                yield f"complete -c dshctl -n {_quoted(condition)} -F"
