"""Writes the generated tables of PROTOCOL.md and ERRORS.md anew: `make docs`.

A table stands between two marker lines and is made from the types; the prose around it is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh_protocol.defects import RULES
from dsh_protocol.errors import EXIT_CHECKPOINT_REFUSED, EXIT_FAILURE, DshdError
from dsh_protocol.openrpc import discover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROTOCOL = Path(__file__).resolve().parents[2] / "protocol"
PAGES = (PROTOCOL / "PROTOCOL.md", PROTOCOL / "ERRORS.md")

_MARKED = re.compile(
    r"(?P<begin><!-- begin (?P<name>[a-z]+) -->\n).*?(?P<end><!-- end (?P=name) -->)", re.DOTALL
)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *(list(row) for row in rows)]
    return "".join(
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in lines
    )


def type_text(schema: dict[str, Any]) -> str:
    """A schema in a few words: `string`, `count`, `list of Session`, `integer or null`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(type_text(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(
            f'`"{each}"`' if isinstance(each, str) else f"`{each}`" for each in schema["enum"]
        )
    name = str(schema.get("type", "any"))
    if name == "array":
        name = f"list of {type_text(schema.get('items', {}))}"
    if name == "object" and schema.get("additionalProperties"):
        name = f"object of {type_text(schema['additionalProperties'])}"
    if name == "integer" and schema.get("minimum") == 0:
        name = "count"
    return name


def parameter_text(parameters: list[dict[str, Any]]) -> str:
    names = [each["name"] + ("" if each["required"] else "?") for each in parameters]
    return f"`{', '.join(names)}`" if names else "none"


def methods() -> str:
    document = discover()
    schemas = document["components"]["schemas"]
    rows: list[list[str]] = []
    for method in document["methods"]:
        result = method.get("result", {"schema": {}})["schema"]
        keys = list(schemas.get(type_text(result), {}).get("properties", {}))
        shown = f"`{', '.join(keys)}`" if keys else "`{}`" if "result" in method else "not answered"
        if method["name"] == "rpc.discover":
            shown = "an OpenRPC document"
        rows.append(
            [f"`{method['name']}`", parameter_text(method["params"]), shown, method["description"]]
        )
    return table(("method", "parameters", "result", "what it does"), rows)


def parameters() -> str:
    """Every parameter of which there is something to say."""
    rows = [
        [f"`{method['name']}`", f"`{each['name']}`", type_text(each["schema"]), each["description"]]
        for method in discover()["methods"]
        for each in method["params"]
        if "description" in each
    ]
    return table(("method", "parameter", "type", "meaning"), rows)


def notifications() -> str:
    rows = [
        [f"`{each['name']}`", parameter_text(each["params"]), each["summary"]]
        for each in discover()["x-notifications"]
    ]
    return table(("notification", "parameters", "meaning"), rows)


def objects() -> str:
    """Every object that is no method's own result, with its keys."""
    document = discover()
    own = {type_text(each["result"]["schema"]) for each in document["methods"] if "result" in each}
    shared = {"Position", "Recovery"}
    parts: list[str] = []
    for name, schema in document["components"]["schemas"].items():
        if name == "Limits" or name.endswith("Notice") or (name in own and name not in shared):
            continue
        required = schema.get("required", ())
        rows = [
            [
                f"`{key}`" + ("" if key in required else " ?"),
                type_text(each),
                each.get("description", ""),
            ]
            for key, each in schema.get("properties", {}).items()
        ]
        text = schema.get("description", "").replace("\n", " ")
        parts.append(f"### {name}\n\n{text}\n\n{table(('key', 'type', 'meaning'), rows)}")
    return "\n".join(parts)


def limits() -> str:
    schema = discover()["components"]["schemas"]["Limits"]
    rows = [
        [f"`{key}`", f"{each['default']:,}", each.get("description", "")]
        for key, each in schema["properties"].items()
    ]
    return table(("limit", "default", "of what"), rows)


def errors() -> str:
    known = [each for each in DshdError.__subclasses__() if each.__module__ == DshdError.__module__]
    rows = [
        [
            str(each.code),
            f"[`{each.kind}`](#{each.kind.lower()})",
            "yes" if each.retryable else "",
            str(each.exit_code),
            str(EXIT_CHECKPOINT_REFUSED if each.exit_code == EXIT_FAILURE else each.exit_code),
            " ".join((each.__doc__ or "").split()),
        ]
        for each in known
    ]
    return table(
        ("code", "kind", "retryable", "`dshctl` exits", "of a checkpoint", "meaning"), rows
    )


def rules() -> str:
    return table(
        ("rule", "broken when"), [[f"`{name}`", text] for name, text in sorted(RULES.items())]
    )


TABLES: dict[str, Callable[[], str]] = {
    "errors": errors,
    "limits": limits,
    "methods": methods,
    "notifications": notifications,
    "objects": objects,
    "parameters": parameters,
    "rules": rules,
}


def filled(text: str) -> str:
    """A page with every table made anew."""
    return _MARKED.sub(
        lambda found: f"{found['begin']}\n{TABLES[found['name']]()}\n{found['end']}", text
    )


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
