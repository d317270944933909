"""Every event that the daemon's log can hold: its name, and what it tells.

The one rule: a name that is not here is not logged; a test compares the table with every call in the source.
"""

from __future__ import annotations

LOG_EVENTS = {
    "daemon.ready": "The root is locked and clients are answered.",
    "daemon.stopping": "Nothing new is accepted; admitted events are being made durable.",
    "daemon.stopped": "The end; `written` says whether everything admitted is durable.",
    "daemon.fault": "A defect, or no memory at all, ended the daemon; it is to be started again.",
    "listener.exhausted": "Accepting pauses for want of descriptors or memory; told once a minute.",
    "listener.displaced": "The socket was removed or replaced, and cannot be bound again.",
    "listener.renewed": "The socket was removed, and is bound again.",
    "listener.pointer_not_written": "Clients without a flag will not find the socket.",
    "connection.not_reading": "A client did not take its replies in time; its connection is ended.",
    "connection.fault": "A defect ended one connection.",
    "rpc.fault": "A defect ended one call; its caller was told the incident.",
    "session.flush_failed": "A batch could not be made durable; it stays queued.",
    "session.flush_fault": "A defect of the store; the batch stays queued.",
    "session.events_kept": "A handle ended while its last events could not be written; they are kept.",
    "session.events_lost": "The daemon ended before these events could be written.",
    "session.holder_record_failed": "Who holds the session could not be noted beside its log yet.",
    "session.snapshot_fault": "A defect in keeping the folded state beside the log; the session goes on.",
    "session.snapshot_failed": "The folded state could not be kept beside the log; it is made anew when needed.",
    "session.close_failed": "A log could not be closed cleanly.",
    "session.fault": "A defect ended one live session; it can be opened again.",
    "search.index_damaged": "The index of words is set aside and made anew; searches take longer meanwhile.",
    "search.index_unusable": "There can be no index of words now; searches read the logs.",
    "library.log": "A library's own message: who and where, but not its text.",
}
