"""How an option is described: once, as metadata of a field of a frozen dataclass.

One reader, one writer and one check serve every struct whose fields are described so. The doors (SDK, HTTP, command
line) look here for what they offer, and OpenAPI for how it is written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NoReturn

from ramet.errors import InvalidArgument
from ramet.protocol import checks
from ramet.protocol.argument_errors import kind_in_json, must, unknown_field, wrong_argument
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
    words: str = "given"  # what a value must be, for the error about one that is missing


@dataclass(frozen=True, slots=True)
class CommandLine:
    """How commands offer an option. ``commands`` says which of those that make sandboxes do."""

    flag: str  # empty: an argument by its place
    help: str
    metavar: str
    repeated: bool = False
    commands: tuple[str, ...] = ("run", "shell", "create")
    short: str = ""
    several: bool = False  # takes all words that follow
    all_flag: str = ""  # another flag, which makes the value True
    all_help: str = ""


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
    frame_name: str
    required: bool
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
    frame_name: str = "",
    required: bool = False,
    keyword: bool = True,
    embedded_only: bool = False,
    said_each_time: bool = False,
    command_line: CommandLine | None = None,
) -> Any:
    """A field of a dataclass.

    ``check`` is for values that are given, and replaces the check of the kind. ``schema`` adds bounds to the JSON
    schema. ``http_help`` describes the option in OpenAPI, ``http_name`` is its name there if that is another, and
    ``frame_name`` the one in frames. ``required``: it has no default, and null is refused. ``keyword``: whether it is
    an argument of ``Sandbox``. ``embedded_only``: a server refuses it. ``said_each_time``: a sandbox that is made from
    a snapshot does not have it from there.
    """
    described = Option(
        kind,
        help,
        default,
        check or kind.check,
        {**kind.schema, **(schema or {})},
        http_help,
        http_name,
        frame_name,
        required,
        keyword,
        embedded_only,
        said_each_time,
        command_line,
    )
    metadata = {"option": described}
    return dataclasses.field(metadata=metadata) if required else dataclasses.field(default=default, metadata=metadata)


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
    found = {}
    for name, described in known.items():
        field = described.frame_name or name
        if field in header:
            found[name] = read_option(described, name, header[field])
        elif described.required:
            raise missing_option(described, name)
    return found


def read_option(described: Option, name: str, value: object) -> Any:
    """``name`` is what an error calls the option."""
    if value is None and described.required:
        raise missing_option(described, name)
    return None if value is None and described.default is None else described.kind.read(name, value)


def missing_option(described: Option, name: str) -> InvalidArgument:
    return wrong_argument(name, f"{name} is missing; it must be {described.kind.words}")


def write_options(struct: type, values: object, defaults: bool = False) -> dict[str, object]:
    """The options as JSON. Those that have their default are left out, or with ``defaults`` those that are None."""
    found = {}
    for name, described in options_of(struct).items():
        value = getattr(values, name)
        said = value is not None if defaults else value != described.default
        if said:
            found[described.frame_name or name] = described.kind.write(value)
    return found


def check_options(struct: type, values: object) -> None:
    """Raise InvalidArgument for an option that is given and not allowed."""
    for name, described in options_of(struct).items():
        value = getattr(values, name)
        if described.check is not None and (described.required or value is not described.default):
            described.check(name, value)


def wrong_kind(name: str, value: object, allowed: str) -> NoReturn:
    raise must(name, f"be {allowed}", kind_in_json(value))  # never the value: it may be that of a secret or a variable


def _wrong_scalar(name: str, value: object, allowed: str) -> NoReturn:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    raise must(name, f"be {allowed}", value if number else kind_in_json(value))


def whole_from(least: int, most: int = 2**43) -> Check:
    return lambda name, value: checks.check_whole(name, value, least, most)


def one_of(choices: tuple[str, ...]) -> Check:
    def check(name: str, value: object) -> None:
        if value not in choices:
            raise must(name, f"be {' or '.join(map(repr, choices))}", value)

    return check


def _text(name: str, value: object) -> str:
    return value if isinstance(value, str) else _wrong_scalar(name, value, "a string")


def _part(name: str, value: object) -> str:
    return value if isinstance(value, str) else wrong_kind(name, value, "a string")


def _whole(name: str, value: object) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)  # JSON has one kind of number: 3.0 is 3
    # bool is an int in Python, not in JSON.
    return value if type(value) is int else _wrong_scalar(name, value, "a whole number")


def _number(name: str, value: object) -> float:
    if (type(value) is int and abs(value) < 2**63) or (type(value) is float and math.isfinite(value)):
        return value
    return _wrong_scalar(name, value, "a finite number below 2**63")


def _flag(name: str, value: object) -> bool:
    return value if isinstance(value, bool) else _wrong_scalar(name, value, "true or false")


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        wrong_kind(name, value, "an array of strings")
    return tuple(_part(name, entry) for entry in value)


def _pairs(name: str, value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        wrong_kind(name, value, "an object of strings")
    return tuple((_part(name, key), _part(name, entry)) for key, entry in value.items())


def _check_text(name: str, value: object) -> None:
    _text(name, value)


TEXT = Kind(_text, {"type": "string"}, check=_check_text, words="a string")
WHOLE = Kind(_whole, {"type": "integer"}, check=whole_from(-(2**43)), parse=int, words="a whole number")
NUMBER = Kind(_number, {"type": "number"}, parse=float, words="a number")
FLAG = Kind(_flag, {"type": "boolean"}, check=lambda name, value: checks.check_flag(value, name))
TEXTS = Kind(_texts, {"type": "array", "items": {"type": "string"}}, list)
PAIRS = Kind(_pairs, {"type": "object", "additionalProperties": {"type": "string"}}, dict)
PATH = Kind(_text, {"type": "string"}, check=lambda name, value: checks.check_path(value, name))
SECONDS = Kind(
    _number,
    {"type": "number", "exclusiveMinimum": 0, "maximum": int(checks.TIMEOUT_SECONDS_AT_MOST)},
    check=lambda name, value: checks.check_seconds(value, name),
    parse=float,
)
# The schemas of these two have parts with names of their own, which OpenAPI adds.
NETWORK = Kind(read_network, {}, network_request)
SECRETS = Kind(read_secrets, {}, secrets_request)
