"""The table of shapes: what is hidden, what is not, and that hiding costs time in proportion to the text only."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from cli.scripted import session
from dsh_client.cli.cleaning import EventCleaner
from dsh_client.cli.redaction import SHAPES, Pieces, Redactor, find

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.conftest import Ended
    from cli.scripted import ScriptedDaemon

    Dshctl = Callable[..., Ended]

PEM = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAA\n-----END OPENSSH PRIVATE KEY-----"
)
SECRETS = {
    "x = sk-ant-api03-abcDEF123456_-abcdef ok": ("api key", "x = [redacted api key] ok"),
    "OPENAI_API_KEY=sk-proj-abcdefghijklmnop1234": ("api key", "OPENAI_API_KEY=[redacted api key]"),
    "sk_live_4eC39HqLyjWDarjtT1zdp7dc": ("api key", "[redacted api key]"),
    "DB_PASSWORD=hunter2": ("password", "DB_PASSWORD=[redacted password]"),
    'password = "correct horse"': ("password", 'password = "[redacted password]"'),
    "password: 'pä55 wörter'": ("password", "password: '[redacted password]'"),
    '{"password":"hunter2","a":1}': ("password", '{"password":"[redacted password]","a":1}'),
    r'"{\"api_key\": \"abcd-efgh\"}"': ("password", r'"{\"api_key\": \"[redacted password]\"}"'),
    "client_secret: abc123def456": ("password", "client_secret: [redacted password]"),
    "curl --token abcdefgh12345678 x": ("password", "curl --token [redacted password] x"),
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG": (
        "password",
        "aws_secret_access_key = [redacted password]",
    ),
    "Authorization: Bearer abcdef1234567890abcdef": (
        "bearer token",
        "Authorization: Bearer [redacted bearer token]",
    ),
    "Authorization: Basic dXNlcjpwYXNz": ("password", "Authorization: Basic [redacted password]"),
    "postgres://bob:s3cr3t@db:5432/x": ("password", "postgres://bob:[redacted password]@db:5432/x"),
    "ghp_abcdefghijklmnopqrstuv0123456789": ("github token", "[redacted github token]"),
    "glpat-abcdefghij0123456789": ("gitlab token", "[redacted gitlab token]"),
    "AKIAIOSFODNN7EXAMPLE.": ("aws key id", "[redacted aws key id]."),
    "AIzaSyA1234567890abcdefghijklmnopqrstuv": ("google key", "[redacted google key]"),
    "xoxb-123456789012-abcdef": ("slack token", "[redacted slack token]"),
    "hf_abcdefghijklmnopqrstuvw": ("registry token", "[redacted registry token]"),
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123_-xyz": (
        "web token",
        "[redacted web token]",
    ),
    f"a\n{PEM}\nb": ("private key", "a\n[redacted private key]\nb"),
    PEM[:40]: ("private key", "[redacted private key]"),
    "\u0130\u0130 password=hunter2": ("password", "\u0130\u0130 password=[redacted password]"),
}
PLAIN = [
    "inputTokens: 1234",
    "max_tokens=4096",
    '"maxTokens": 1000',
    "token = self.next_token()",
    "password: str",
    "password=${PW}",
    "the password is needed",
    "def f(token: str, secret=None)",
    "api_key=None",
    "token_count: 12",
    'os.environ["API_KEY"]',
    "secret: {{secret}}",
    "sk-learn and task-1234567890123456789",
    "basic internationalization",
    "dshctl --token-file x",
    "idempotency key dshd1-00112233445566778899aabbccddeeff",
    "http://x:y/z and https://example.org/a@b",
    "primary_key=True",
    "token 3 of 5",
]
LONG = [
    *(
        "a",
        "token",
        "password=",
        "key: ",
        "://",
        "-----BEGIN PRIVATE KEY-----",
        'secret "',
        "bearer ",
    ),
    *(
        "sk-",
        "eyJ",
        "\\",
        "_key",
        "a:b@",
        "-----BEGIN ",
        "api_key: 1",
        'token="',
        "\u0130",
        "[redacted ",
    ),
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_likely_secret_is_hidden_and_counted(text: str) -> None:
    kind, shown = SECRETS[text]
    redactor = Redactor()
    assert redactor.text(text) == shown
    assert redactor.counts == {kind: 1}
    assert Redactor().text(shown) == shown  # what is hidden is not hidden again


@pytest.mark.parametrize("text", PLAIN)
def test_what_only_speaks_of_secrets_stays(text: str) -> None:
    redactor = Redactor()
    assert redactor.text(text) is text
    assert redactor.total == 0


def test_every_shape_of_the_table_is_tried_here() -> None:
    assert {kind for kind, _ in SECRETS.values()} == {shape.name for shape in SHAPES}


@pytest.mark.parametrize("piece", LONG)
def test_a_long_hostile_text_takes_no_more_than_its_length_deserves(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    started = time.process_time()
    find(text)
    assert time.process_time() - started < 2.0


def test_values_are_searched_through_and_keys_are_believed() -> None:
    redactor = Redactor()
    value: Any = {
        "password": "abcd",
        "dbPassword": "zzzz",
        "X-Api-Key": "qqqq-wwww",
        "list": ["sk-abcdefghij1234567890", 5, None, {"clientSecret": "eeee"}],
        "token_count": "1234",
        "type": "string",
        "properties": {"password": {"type": "string"}},
        "sk-abcdefghij1234567890": 1,
    }
    assert redactor.value(value) == {
        "password": "[redacted password]",
        "dbPassword": "[redacted password]",
        "X-Api-Key": "[redacted password]",
        "list": ["[redacted api key]", 5, None, {"clientSecret": "[redacted password]"}],
        "token_count": "1234",
        "type": "string",
        "properties": {"password": {"type": "string"}},
        "[redacted api key]": 1,
    }
    assert redactor.counts == {"password": 4, "api key": 2}
    assert list(value.values())[:2] == ["abcd", "zzzz"]


def test_deep_values_end_no_recursion() -> None:
    value: Any = "sk-abcdefghij1234567890"
    for _ in range(20_000):
        value = [value]
    redactor = Redactor()
    redactor.value(value)
    assert redactor.total == 1


def test_a_secret_streamed_in_pieces_is_hidden_whole() -> None:
    redactor = Redactor()
    pieces = Pieces(redactor)
    assert pieces.take(["my key is sk-", "abcdefgh", "1234567890", " ok"]) == [
        "my key is [redacted api key]",
        "",
        "",
        " ok",
    ]
    assert pieces.take(["x sk-abcdefg1234567890123"]) == ["x [redacted api key]"]
    assert pieces.take(["456 more"]) == ["[redacted api key] more"]


def chunk(seq: int, text: str, index: int = 0) -> dict[str, Any]:
    piece = {"type": "text-delta", "index": index, "text": text}
    data = {"turn": 1, "step": 1, "chunk": piece}
    return {"type": "assistant/chunk", "seq": seq, "time": 1, "data": data}


def test_chunks_of_events_are_searched_as_one_text_over_pages_too() -> None:
    redactor = Redactor()
    cleaner = EventCleaner(redactor)
    first = cleaner.events(
        [chunk(0, "pass"), chunk(1, "sk-abc", 1), chunk(2, "word=hun"), chunk(3, "ter2 ")]
    )
    second = cleaner.events([chunk(4, "defghijkl12345 bye", 1)])
    texts = [event["data"]["chunk"]["text"] for event in first + second]
    assert texts == ["pass", "sk-abc", "word=[redacted password]", " ", "[redacted api key] bye"]
    assert redactor.total == 2


def test_without_a_redactor_events_pass_untouched() -> None:
    events = [chunk(0, "password=hunter2")]
    assert EventCleaner(None).events(events) is events


def test_many_short_texts_are_searched_as_one() -> None:
    redactor = Redactor()
    plain = ["fix the parser", "move a token"]
    assert redactor.texts(plain) is plain
    assert redactor.texts([*plain, "password=hunter2"]) == [*plain, "password=[redacted password]"]
    assert redactor.total == 1


def test_a_title_with_a_secret_is_hidden_in_the_list(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    found = [session("a1", title="use password=hunter2"), session("a2", title="plain")]
    daemon.answers["session.list"] = lambda _: {"sessions": found, "nextCursor": None}
    ended = dshctl("-o", "json", "list")
    assert [one["title"] for one in ended.document["sessions"]] == [
        "use password=[redacted password]",
        "plain",
    ]
    assert ended.err == "1 likely secret is hidden (1 password); to see them: --no-redact\n"
    assert "hunter2" in dshctl("list", "--no-redact").out
