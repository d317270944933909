"""`rpc.discover`: the table of methods and its types, said as an OpenRPC document.

Nothing is written down twice: names, types and limits come from the Structs, texts from their docstrings.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from dsh_protocol.errors import DshdError
from dsh_protocol.events import EventIn
from dsh_protocol.method import METHODS, NOTIFICATIONS, Method
from dsh_protocol.objects import Params, Writer
from dsh_protocol.version import PROTOCOL_VERSION, VERSION

OPENRPC_VERSION = "1.3.2"

_REF = "#/components/schemas/"
_ATTRIBUTES = re.compile(r"\n+Attributes:\n(?P<attributes>(?:    .*(?:\n|$))*)")
_ATTRIBUTE = re.compile(r"^    (?P<name>\w+): (?P<text>.*(?:\n     +.*)*)", re.MULTILINE)


@cache
def _document() -> bytes:
    schemas = _schemas()
    methods = [_method(method, schemas) for method in METHODS.values()]
    parameters = {method.params.__name__ for method in METHODS.values()}
    document = {
        "openrpc": OPENRPC_VERSION,
        "info": {
            "title": "dshd",
            "version": VERSION,
            "description": (
                "JSON-RPC 2.0 over a Unix stream socket: one UTF-8 message or batch per line, parameters by name. "
                "x-notifications are what the daemon sends without being asked."
            ),
            "x-protocolVersion": PROTOCOL_VERSION,
        },
        "methods": methods,
        "x-notifications": [
            {
                "name": name,
                "summary": _text(schemas[params.__name__]),
                "params": _parameters(schemas[params.__name__]),
            }
            for name, params in NOTIFICATIONS.items()
        ],
        "components": {
            "schemas": {name: each for name, each in schemas.items() if name not in parameters},
            "errors": _errors(),
        },
    }
    return msgspec.json.encode(document)


def discover() -> dict[str, Any]:
    """Return the OpenRPC document of every method; the caller may change its copy."""
    document: dict[str, Any] = msgspec.json.decode(_document())
    return document


def _schemas() -> dict[str, dict[str, Any]]:
    """Every object of the wire by name, its docstring divided among it and its keys."""
    types: list[type] = [EventIn, Writer, *NOTIFICATIONS.values()]
    for method in METHODS.values():
        types.append(method.params)
        if method.result is not None:
            types.append(method.result)
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF + "{name}")
    structs = {each.__name__: each for each in _structs(msgspec.Struct)}
    for name, schema in schemas.items():
        if name in structs:
            _describe(schema, structs[name])
    return dict(sorted(schemas.items()))


def _structs(parent: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    mine = [each for each in parent.__subclasses__() if each.__module__.startswith("dsh_protocol")]
    return [*mine, *(below for each in mine for below in _structs(each))]


def _describe(schema: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    wire_names = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
    if not issubclass(struct, Params):
        schema["required"] = [each.encode_name for each in _always_there(struct)]
    description = schema.get("description", "")
    found = _ATTRIBUTES.search(description + "\n")
    if found is None:
        return
    schema["description"] = description[: found.start()].strip()
    for attribute in _ATTRIBUTE.finditer(found["attributes"]):
        text = re.sub(r"\s*\n\s*", " ", attribute["text"]).strip()
        schema["properties"][wire_names[attribute["name"]]]["description"] = text


def _always_there(struct: type[msgspec.Struct]) -> list[msgspec.structs.FieldInfo]:
    """The keys that are written whatever their value; `required` of msgspec is what must be read."""
    omits = struct.__struct_config__.omit_defaults
    return [
        field
        for field in msgspec.structs.fields(struct)
        if field.default is msgspec.NODEFAULT or not (omits or field.default is msgspec.UNSET)
    ]


def _text(schema: dict[str, Any]) -> str:
    return " ".join(str(schema.get("description", "")).split())


def _method(method: Method, schemas: dict[str, dict[str, Any]]) -> dict[str, Any]:
    schema = schemas[method.params.__name__]
    about: dict[str, Any] = {
        "name": method.name,
        "summary": method.summary,
        "description": _text(schema),
        "paramStructure": "by-name",
        "params": _parameters(schema),
    }
    if method.name == "rpc.discover":
        about["result"] = {"name": "document", "schema": {"type": "object"}}
    elif method.result is not None:
        name = method.result.__name__
        about["result"] = {"name": name, "schema": {"$ref": _REF + name}}
    if method.notification_allowed:
        about["x-notification"] = True
    return about


def _parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", ())
    parameters: list[dict[str, Any]] = []
    for name, property_schema in schema.get("properties", {}).items():
        rest = {key: value for key, value in property_schema.items() if key != "description"}
        parameter = {"name": name, "required": name in required, "schema": rest}
        if "description" in property_schema:
            parameter["description"] = property_schema["description"]
        parameters.append(parameter)
    return parameters


def _errors() -> dict[str, Any]:
    return {
        each.kind: {
            "code": each.code,
            "message": (each.__doc__ or "").partition("\n")[0],
            "data": {"kind": each.kind, "retryable": each.retryable},
        }
        for each in DshdError.__subclasses__()
        if each.__module__ == DshdError.__module__
    }
