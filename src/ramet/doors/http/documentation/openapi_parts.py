"""The parts of which handlers are described: schemas of JSON, bodies, answers, and the decorator ``operation``.

Handlers import the module as ``api``. ``openapi.py`` makes the document from the descriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ramet.doors.http.requests.exchange import Handler
from ramet.protocol.requests.options import Option, options_of

Schema = Mapping[str, object]
Part = dict[str, object]
H = TypeVar("H", bound=Handler)

# In examples.
SANDBOX_ID = "sbx_0123456789abcdef0123456789abcdef"
EXECUTION_ID = "exe_0123456789abcdef0123456789abcdef"
SNAPSHOT_ID = "snp_0123456789abcdef0123456789abcdef"
TERMINAL_ID = "pty_0123456789abcdef"
TOKEN = "0123456789abcdefghijklmnopqrstuv"

JSON = "application/json"
LINES = "application/x-ndjson"
BYTES = "application/octet-stream"
# Of nearly every route.
USUAL_ERRORS = (400, 401, 403, 404, 409, 410, 413, 429, 503)


# Schemas. ``null``: null is allowed, too. ``more`` are keywords of JSON Schema.


def text(help: str = "", *, null: bool = False, **more: object) -> Part:
    return _schema("string", help, null, more)


def whole(help: str = "", *, null: bool = False, **more: object) -> Part:
    return _schema("integer", help, null, more)


def number(help: str = "", *, null: bool = False, **more: object) -> Part:
    return _schema("number", help, null, more)


def flag(help: str = "", *, null: bool = False) -> Part:
    return _schema("boolean", help, null, {})


def choice(*values: str, help: str = "", null: bool = False) -> Part:
    return _schema("string", help, null, {"enum": [*values, *([None] if null else [])]})


def array(items: Schema, help: str = "", *, null: bool = False, **more: object) -> Part:
    return _schema("array", help, null, {"items": items, **more})


def mapping(of: Schema | None = None, help: str = "", *, null: bool = False, **more: object) -> Part:
    """An object with any names, whose values are all alike."""
    return _schema("object", help, null, {**({} if of is None else {"additionalProperties": of}), **more})


def record(
    properties: Mapping[str, Schema], *, required: Sequence[str] | None = None, open: bool = False, null: bool = False
) -> Part:
    """An object with these properties, all of them required unless said. ``open``: others may be added."""
    needed = list(properties) if required is None else list(required)
    return _schema(
        "object",
        "",
        null,
        {
            "properties": dict(properties),
            **({"required": needed} if needed else {}),
            **({} if open else {"additionalProperties": False}),
        },
    )


def any_of(*schemas: Schema, help: str = "") -> Part:
    return {**({"description": help} if help else {}), "anyOf": list(schemas)}


def ref(name: str, help: str = "") -> Part:
    """One of ``openapi_schemas.SCHEMAS``."""
    return {"$ref": f"#/components/schemas/{name}", **({"description": help} if help else {})}


def _schema(kind: str, help: str, null: bool, more: Mapping[str, object]) -> Part:
    return {"type": [kind, "null"] if null else kind, **({"description": help} if help else {}), **more}


BINARY = text(format="binary")


# Parts of a route


def content(schema: Schema, example: object = None, kind: str = JSON) -> Part:
    return {kind: {"schema": schema, **({} if example is None else {"example": example})}}


def body(schema: Schema, example: object = None, *, required: bool = True, kind: str = JSON) -> Part:
    return {"required": required, "content": content(schema, example, kind)}


def option(described: Option, help: str | None = None, named: Schema | None = None) -> Part:
    """The schema of an option. Null is as good as nothing, unless it is required.

    ``help`` replaces its description; ``named`` adds what refers to schemas with names.
    """
    schema = {**described.schema, **(named or {})}
    null = [] if described.required else [None]
    if null and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    if isinstance(choices := schema.get("enum"), list):
        schema["enum"] = [*choices, *null]
    said = described.http_help if help is None else help
    return {**schema, **({"description": said} if said else {})}


def options_record(struct: type) -> Part:
    """An object with the options of a struct."""
    offered = {one.http_name or name: one for name, one in options_of(struct).items() if not one.embedded_only}
    needed = [name for name, one in offered.items() if one.required]
    return record({name: option(one) for name, one in offered.items()}, required=needed)


def options_body(struct: type, example: object, *, required: bool | None = None) -> Part:
    """A body whose fields are the options of a struct. It may be left out if none of them is required, unless said."""
    schema = options_record(struct)
    return body(schema, example, required="required" in schema if required is None else required)


def options_query(struct: type) -> list[Part]:
    """A parameter of the query for each option of a struct."""
    return [
        query(name, described.http_help, dict(described.schema), required=described.required)
        for name, described in options_of(struct).items()
        if not described.embedded_only
    ]


# Fields that are not known are refused, so even a body without any is described.
EMPTY_BODY = body(record({}), {}, required=False)


def answer(
    help: str,
    schema: Schema | None = None,
    example: object = None,
    *,
    kind: str = JSON,
    headers: Mapping[str, Schema] | None = None,
    others: Mapping[str, object] | None = None,
) -> Part:
    """``others``: content of other types that it may have instead."""
    return {
        "description": help,
        **({} if headers is None else {"headers": dict(headers)}),
        **({} if schema is None else {"content": {**content(schema, example, kind), **(others or {})}}),
    }


DONE = answer("Done.")


def query(
    name: str, help: str, schema: Schema, *, place: str = "query", required: bool = False, **more: object
) -> Part:
    """A parameter of the query, or of another place of the request."""
    return {"name": name, "in": place, "required": required, "description": help, "schema": schema, **more}


def parameter(name: str) -> Part:
    """One of ``openapi_shared.PARAMETERS``."""
    return {"$ref": f"#/components/parameters/{name}"}


def header(name: str) -> Part:
    """One of ``openapi_shared.HEADERS``."""
    return {"$ref": f"#/components/headers/{name}"}


# The decorator


@dataclass(frozen=True, slots=True)
class Operation:
    """What the document says of a route, beside its method and its path."""

    id: str
    tag: str
    summary: str
    answers: Mapping[int, Schema] | Mapping[str, Schema]  # by status
    help: str = ""
    body: Schema | None = None
    parameters: Sequence[Schema] = ()  # those that PARAMETERS has for names in the path are added
    errors: Sequence[int] = USUAL_ERRORS
    public: bool = False  # no key is needed


_described: dict[Handler, Operation] = {}


def operation(
    id: str,
    tag: str,
    summary: str,
    answers: Mapping[int, Schema],
    *,
    help: str = "",
    body: Schema | None = None,
    parameters: Sequence[Schema] = (),
    errors: Sequence[int] = USUAL_ERRORS,
    public: bool = False,
) -> Callable[[H], H]:
    """Decorates the handler of a route with what the document says of it; the fields are those of ``Operation``."""

    def note(handler: H) -> H:
        _described[handler] = Operation(id, tag, summary, answers, help, body, parameters, errors, public)
        return handler

    return note


def description_of(handler: Handler) -> Operation:
    """Raises KeyError for a handler that nobody has described."""
    return _described[handler]
