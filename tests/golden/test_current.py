"""What is made from the types is what lies in the tree, and every method and error is written about."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from dsh_protocol import errors
from dsh_protocol.errors import DshdError
from dsh_protocol.method import METHODS
from dsh_protocol.openrpc import discover

HERE = Path(__file__).resolve().parent
PROTOCOL = HERE.parents[1] / "protocol"
KINDS = [each.kind for each in DshdError.__subclasses__() if each.__module__ == errors.__name__]


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(HERE / f"{name}.py"))


def test_the_wire_is_the_one_in_the_golden_file() -> None:
    golden = (HERE / "openrpc.json").read_text(encoding="utf-8")
    assert script("write")["openrpc_text"]() == golden, (
        "the wire changed: make golden, and read the diff"
    )


@pytest.mark.parametrize("name", ["PROTOCOL.md", "ERRORS.md"])
def test_the_tables_of_a_page_are_current(name: str) -> None:
    text = (PROTOCOL / name).read_text(encoding="utf-8")
    assert script("docs")["filled"](text) == text, "a table is out of date: make docs"


def test_every_table_stands_on_a_page() -> None:
    pages = "".join(
        (PROTOCOL / name).read_text(encoding="utf-8") for name in ("PROTOCOL.md", "ERRORS.md")
    )
    assert all(pages.count(f"<!-- begin {name} -->") == 1 for name in script("docs")["TABLES"])


@pytest.mark.parametrize("kind", KINDS)
def test_of_every_error_it_is_written_what_to_do(kind: str) -> None:
    page = (PROTOCOL / "ERRORS.md").read_text(encoding="utf-8")
    assert page.count(f"\n### {kind}\n") == 1


def test_no_error_is_written_about_that_does_not_exist() -> None:
    page = (PROTOCOL / "ERRORS.md").read_text(encoding="utf-8")
    written = [line.removeprefix("### ") for line in page.split("\n") if line.startswith("### ")]
    assert sorted(written) == sorted(KINDS)


def test_the_document_describes_every_method_and_every_reference_in_it_leads_somewhere() -> None:
    document = discover()
    assert [each["name"] for each in document["methods"]] == list(METHODS)
    text = json.dumps(document)
    schemas = document["components"]["schemas"]
    for reference in text.split('"$ref": "#/components/schemas/')[1:]:
        assert reference.partition('"')[0] in schemas


def test_a_caller_cannot_spoil_the_document_for_the_next() -> None:
    discover()["methods"].clear()
    assert discover()["methods"]


def test_every_key_of_a_result_is_said_to_be_always_there() -> None:
    schemas = discover()["components"]["schemas"]
    optional = {"labels", "deletedAt"}
    assert set(schemas["Session"]["required"]) == set(schemas["Session"]["properties"]) - optional
    assert set(schemas["Header"]["required"]) == {"version", "id", "createdAt", "delegationDepth"}
    assert set(schemas["EventIn"]["required"]) == {"type", "data"}
    assert "notificationError" not in schemas["Recovery"]["required"]
