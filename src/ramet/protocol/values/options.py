"""How an option is described: once, as metadata of a field of a frozen dataclass.

One reader, one writer and one check serve every struct whose fields are described so. The doors (SDK, HTTP, command
line) look here for what they offer, and OpenAPI for how it is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NoReturn

from ramet.protocol import checks
from ramet.protocol.argument_errors import kind_of, must, unknown_field
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.requests import network_request, read_network, read_secrets, secrets_request

Check = Callable[[str, Any], None]
Schema = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of values that travel: how to read one from JSON and write it, its JSON schema, and the check of any."""

    read: Callable[[str, object], Any]
    schema: Schema
    write: Callable[[Any], object] = lambda value: value
    check: Check | None = None
    parse: Callable[[str], Any] = str  # a text of the command line; what is more than one word is parsed there


@dataclass(frozen=True, slots=True)
class CommandLine:
    """An option of the commands that make sandboxes."""

    flag: str
    help: str
    metavar: str
    repeated: bool = False
    commands: tuple[str, ...] = ("run", "shell", "create")


@dataclass(frozen=True, slots=True)
class Option:
    """All that is known of an option."""

    kind: Kind
    help: str  # as the docstring of the SDK has it
    default: object
    check: Check | None
    schema: Schema
    http_help: str
    http_name: str
    keyword: bool
    embedded_only: bool
    said_each_time: bool
    command_line: CommandLine | None


def option(
    kind: Kind,
    help: str,
    default: object = None,
    *,
    check: Check | None = None,
    schema: Schema | None = None,
    http_help: str = "",
    http_name: str = "",
    keyword: bool = True,
    embedded_only: bool = False,
    said_each_time: bool = False,
    command_line: CommandLine | None = None,
) -> Any:
    """A field of a dataclass.

    ``check`` is for values that are given, and replaces the check of the kind. ``schema`` adds bounds to the JSON
    schema. ``http_help`` describes the option in OpenAPI, ``http_name`` is its name there if that is another.
    ``keyword``: whether it is an argument of ``Sandbox``. ``embedded_only``: a server refuses it.
    ``said_each_time``: a sandbox that is made from a snapshot does not have it from there.
    """
    described = Option(
        kind,
        help,
        default,
        check or kind.check,
        {**kind.schema, **(schema or {})},
        http_help,
        http_name,
        keyword,
        embedded_only,
        said_each_time,
        command_line,
    )
    return dataclasses.field(default=default, metadata={"option": described})


@cache
def options_of(struct: type) -> Mapping[str, Option]:
    """The options of a dataclass by name: its own, then those that it inherits."""
    found = {field.name: field.metadata["option"] for field in dataclasses.fields(struct) if "option" in field.metadata}
    own = [name for name in struct.__dict__.get("__annotations__", {}) if name in found]
    return {name: found[name] for name in [*own, *(name for name in found if name not in own)]}


def read_options(struct: type, header: Mapping[str, object], strict: bool = True) -> dict[str, Any]:
    """The arguments of ``struct`` from JSON that someone may have written by hand.

    Raises InvalidArgument for a value of another type and, if it is ``strict``, for an unknown field.
    """
    known = options_of(struct)
    if strict:
        for name in header:
            if name not in known:
                raise unknown_field(str(name), known)
    return {name: read_option(known[name], name, header[name]) for name in known if name in header}


def read_option(described: Option, name: str, value: object) -> Any:
    """``name`` is what an error calls the option."""
    return None if value is None and described.default is None else described.kind.read(name, value)


def write_options(struct: type, values: object) -> dict[str, object]:
    """The options as JSON. Those that have their default are left out."""
    given = ((name, described, getattr(values, name)) for name, described in options_of(struct).items())
    return {name: described.kind.write(value) for name, described, value in given if value != described.default}


def check_options(struct: type, values: object) -> None:
    """Raise InvalidArgument for an option that is given and not allowed."""
    for name, described in options_of(struct).items():
        value = getattr(values, name)
        if described.check is not None and value is not described.default:
            described.check(name, value)


def wrong_kind(name: str, value: object, allowed: str) -> NoReturn:
    raise must(name, f"be {allowed}", kind_of(value))  # never the value: it may be that of a secret or a variable


def whole_from(least: int, most: int = 2**43) -> Check:
    return lambda name, value: checks.check_whole(name, value, least, most)


def _text(name: str, value: object) -> str:
    return value if isinstance(value, str) else wrong_kind(name, value, "a string")


def _whole(name: str, value: object) -> int:
    # bool is an int in Python, not in JSON.
    return value if type(value) is int else wrong_kind(name, value, "a whole number")


def _number(name: str, value: object) -> float:
    return value if type(value) is float or type(value) is int else wrong_kind(name, value, "a number")


def _flag(name: str, value: object) -> bool:
    return value if isinstance(value, bool) else wrong_kind(name, value, "true or false")


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        wrong_kind(name, value, "an array of strings")
    return tuple(_text(name, entry) for entry in value)


def _pairs(name: str, value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        wrong_kind(name, value, "an object of strings")
    return tuple((_text(name, key), _text(name, entry)) for key, entry in value.items())


def _check_text(name: str, value: object) -> None:
    _text(name, value)


TEXT = Kind(_text, {"type": "string"}, check=_check_text)
WHOLE = Kind(_whole, {"type": "integer"}, check=whole_from(-(2**43)), parse=int)
NUMBER = Kind(_number, {"type": "number"}, parse=float)
FLAG = Kind(_flag, {"type": "boolean"}, check=lambda name, value: checks.check_flag(value, name))
TEXTS = Kind(_texts, {"type": "array", "items": {"type": "string"}}, list)
PAIRS = Kind(_pairs, {"type": "object", "additionalProperties": {"type": "string"}}, dict)
PATH = Kind(_text, {"type": "string"}, check=lambda name, value: checks.check_path(value, name))
SECONDS = Kind(
    _number,
    {"type": "number", "minimum": 0, "maximum": int(checks.TIMEOUT_SECONDS_AT_MOST)},
    check=lambda name, value: checks.check_seconds(value, name),
    parse=float,
)
# The schemas of these two have parts with names of their own, which OpenAPI adds.
NETWORK = Kind(read_network, {}, network_request)
SECRETS = Kind(read_secrets, {}, secrets_request)
