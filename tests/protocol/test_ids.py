from __future__ import annotations

import hashlib
import re
import uuid

from dsh_protocol.ids import idempotency_key, new_session_id, new_writer


def test_the_idempotency_key_is_the_hash_of_the_compact_json_array() -> None:
    digest = hashlib.sha256(b'["s1",1000,7,"call_1"]').hexdigest()
    assert idempotency_key("s1", 1000, 7, "call_1") == f"dshd1-{digest[:32]}"


def test_text_beyond_ascii_is_hashed_as_it_is_and_quotes_are_escaped() -> None:
    digest = hashlib.sha256('["é\\"",0,0,"😀\\n"]'.encode()).hexdigest()
    assert idempotency_key('é"', 0, 0, "😀\n") == f"dshd1-{digest[:32]}"


def test_a_lone_surrogate_in_a_stored_id_is_hashed_as_its_escape() -> None:
    digest = hashlib.sha256(b'["\\ud800",1,2,"c"]').hexdigest()
    assert idempotency_key("\ud800", 1, 2, "c") == f"dshd1-{digest[:32]}"


def test_every_part_changes_the_key() -> None:
    keys = {
        idempotency_key("s", 1, 2, "c"),
        idempotency_key("t", 1, 2, "c"),
        idempotency_key("s", 2, 2, "c"),
        idempotency_key("s", 1, 3, "c"),
        idempotency_key("s", 1, 2, "d"),
    }
    assert len(keys) == 5
    assert all(re.fullmatch(r"dshd1-[0-9a-f]{32}", key) for key in keys)


def test_session_ids_are_uuids_of_version_7_and_sort_by_the_time_they_were_made() -> None:
    made = [new_session_id() for _ in range(200)]
    assert len(set(made)) == 200
    assert {uuid.UUID(each).version for each in made} == {7}
    assert {uuid.UUID(each).variant for each in made} == {uuid.RFC_4122}
    milliseconds = [each[:13] for each in made]
    assert milliseconds == sorted(milliseconds)


def test_writers_cannot_be_guessed() -> None:
    made = {new_writer() for _ in range(100)}
    assert len(made) == 100
    assert min(map(len, made)) >= 32
