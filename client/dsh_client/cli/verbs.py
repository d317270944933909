"""The table of the verbs of `dshctl`: one line each, which is all that is known of a verb until it runs.

The rule: adding a verb is a module `commands/<name>.py` with `add_arguments(parser)` and `run(arguments, context)`,
and a line here. Nothing is imported by reading this table.
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """A verb.

    Attributes:
        name: As it is typed; its module has the same.
        summary: For `dshctl --help`.
        aliases: Other names.
    """

    name: str
    summary: str
    aliases: tuple[str, ...] = ()


VERBS = (
    Verb("list", "list sessions, newest activity first", ("ls",)),
    Verb("search", "find sessions by what was said in them"),
    Verb("show", "one session: state, owner, open calls, repairs due"),
    Verb("log", "the events of a session"),
    Verb("tail", "the last events of a session, and what comes; resumes from ID:SEQ"),
    Verb("steps", "a line for each step: model, tools, tokens, time"),
    Verb("stats", "turns, calls, errors and tokens of one, some or all sessions"),
    Verb("diff", "where two sessions, or two points of one, part"),
    Verb("export", "a session as HTML, Markdown, JSON Lines, ATIF, or a chat request"),
    Verb("import", "archives of what other programs kept, and bundles"),
    Verb("owner", "who may write to a session, and whether that process lives"),
    Verb("du", "how much room sessions take"),
    Verb("top", "live sessions, checkpoints a second, fsync times"),
    Verb("messages", "the history that a model would be sent"),
    Verb("recover", "show, and with --apply close, an interrupted turn"),
    Verb("fork", "a session that begins with another's events, up to a point"),
    Verb("rename", "give a session a title of your own"),
    Verb("archive", "leave sessions out of the list"),
    Verb("unarchive", "put archived sessions back into the list"),
    Verb("pin", "keep sessions from ever being pruned"),
    Verb("unpin", "let sessions be pruned like others"),
    Verb("rm", "put sessions into the trash"),
    Verb("undelete", "bring sessions back from the trash"),
    Verb("trash", "what lies in the trash; with empty --older-than, remove it for good"),
    Verb("prune", "show, and with --apply put into the trash, what was not used for long"),
    Verb("status", "whether the daemon runs, and how it fares"),
    Verb("doctor", "what is not well: socket, units, versions, disk, sessions; and what to try"),
    Verb("stop", "end the daemon, after what was admitted is durable"),
    Verb("metrics", "the daemon's figures, for people and scrapers"),
    Verb("completion", "a script with which bash, zsh or fish completes, ids too"),
    Verb("rpc", "call a method of the daemon"),
    Verb("version", "versions of dshctl, daemon, protocol and format"),
)
BY_NAME = {name: verb for verb in VERBS for name in (verb.name, *verb.aliases)}
"""Every verb by each of its names."""
