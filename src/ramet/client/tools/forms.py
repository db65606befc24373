"""Forms: a type hint as JSON has it. Its schema, a test for values, and the conversion to what the hint promises."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import date, datetime, time
from enum import Enum
from typing import Any
from uuid import UUID

from ramet.protocol.lazy_dataclasses import dataclass

JsonSchema = dict[str, Any]


class NotDescribable(Exception):
    """A type hint has no counterpart in JSON; the message says which part of it, and why."""


@dataclass(frozen=True, slots=True)
class JsonForm:
    """One type hint.

    ``convert`` takes values that fit the schema, and may still raise: not every string is a date. ``fits`` returns True
    only for values that fit the schema for certain, and is far faster than validation.
    """

    schema: JsonSchema
    annotation: str  # the hint as code in a sandbox would write it
    fits: Callable[[object], bool]
    convert: Callable[[Any], object] | None = None  # None: the value stays as it is
    certain: bool = True  # a value for which ``fits`` is False does not fit the schema either

    def read(self, value: object) -> object:
        return value if self.convert is None else self.convert(value)


def _always(value: object) -> bool:
    return True


def _is(*kinds: type) -> Callable[[object], bool]:
    allowed = frozenset(kinds)
    return lambda value: type(value) in allowed


def _is_integer(value: object) -> bool:
    """As JSON has them: 3.0 is one, true is none."""
    return type(value) is int or (type(value) is float and value.is_integer())


ANYTHING = JsonForm({}, "Any", _always)
PLAIN: Mapping[object, JsonForm] = {
    Any: ANYTHING,
    object: ANYTHING,
    str: JsonForm({"type": "string"}, "str", _is(str)),
    int: JsonForm({"type": "integer"}, "int", _is_integer, int),
    float: JsonForm({"type": "number"}, "float", _is(float, int), float),
    bool: JsonForm({"type": "boolean"}, "bool", _is(bool)),
    None: JsonForm({"type": "null"}, "None", _is(type(None))),
    type(None): JsonForm({"type": "null"}, "None", _is(type(None))),
}


def text(read: Callable[[str], object], written: str | None = None) -> JsonForm:
    schema: JsonSchema = {"type": "string"} if written is None else {"type": "string", "format": written}
    return JsonForm(schema, "str", _is(str), read)


TEXTS: Mapping[object, JsonForm] = {
    datetime: text(datetime.fromisoformat, "date-time"),
    date: text(date.fromisoformat, "date"),
    time: text(time.fromisoformat, "time"),
    UUID: text(UUID, "uuid"),
}


def one_of(options: Sequence[JsonForm]) -> JsonForm:
    def read(value: object) -> object:
        fitting = [option for option in options if option.fits(value)]
        # Where int and float are both allowed, 3 stays 3 and does not become 3.0.
        fitting.sort(key=lambda option: option.annotation != type(value).__name__)
        fitting += [option for option in options if not option.certain and option not in fitting]
        failed: Exception = ValueError("it is none of the allowed types")
        for number, option in enumerate(fitting):
            try:
                return option.read(value)
            except Exception as error:
                failed = failed if number else error
        raise failed

    plain = all(option.convert is None and option.certain for option in options)
    return JsonForm(
        {"anyOf": [option.schema for option in options]},
        " | ".join(dict.fromkeys(option.annotation for option in options)),
        lambda value: any(option.fits(value) for option in options),
        None if plain else read,
        all(option.certain for option in options),
    )


def literal(values: tuple[object, ...]) -> JsonForm:
    plain = [value.value if isinstance(value, Enum) else value for value in values]
    return _choice(plain, dict(zip(map(_key, plain), values, strict=True)), "Literal")


def enumeration(kind: type[Enum]) -> JsonForm:
    members = list(kind)
    if not members:
        raise NotDescribable(f"{kind.__name__} has no members")
    plain = [member.value for member in members]
    return _choice(plain, dict(zip(map(_key, plain), members, strict=True)), kind.__name__)


def _choice(plain: list[object], meant: dict[object, object], what: str) -> JsonForm:
    for value in plain:
        if type(value) not in (str, int, float, bool, type(None)):
            raise NotDescribable(f"{what} has the value {value!r:.80}, which JSON does not have")
    schema: JsonSchema = {"enum": plain}
    if all(type(value) is str for value in plain):
        schema = {"type": "string", "enum": plain}
    return JsonForm(
        schema,
        f"Literal[{', '.join(map(repr, plain))}]",
        lambda value: isinstance(value, Hashable) and _key(value) in meant,
        lambda value: meant[_key(value)],
    )


def _key(value: object) -> object:
    """Return a key for comparisons as in JSON: 1 and 1.0 are one number, and true is not a number."""
    return (bool, value) if isinstance(value, bool) else value


def array(item: JsonForm, make: Callable[[Any], object]) -> JsonForm:
    fits = item.fits
    schema: JsonSchema = {"type": "array"}
    if item.schema:
        schema["items"] = item.schema

    def convert(values: list[object]) -> object:
        return make(values if item.convert is None else map(item.convert, values))

    return JsonForm(
        schema,
        "list" if item is ANYTHING else f"list[{item.annotation}]",
        lambda values: type(values) is list and all(map(fits, values)),
        None if make is list and item.convert is None else convert,
        item.certain,
    )


def fixed_array(items: Sequence[JsonForm]) -> JsonForm:
    count = len(items)
    schema: JsonSchema = {"type": "array", "minItems": count, "maxItems": count}
    if items:
        schema["prefixItems"] = [item.schema for item in items]

    def fits(values: object) -> bool:
        return (
            type(values) is list
            and len(values) == count
            and all(item.fits(value) for item, value in zip(items, values, strict=True))
        )

    def convert(values: list[object]) -> object:
        return tuple(item.read(value) for item, value in zip(items, values, strict=True))

    annotation = f"tuple[{', '.join(item.annotation for item in items)}]"
    return JsonForm(schema, annotation, fits, convert, all(item.certain for item in items))


def mapping(value: JsonForm) -> JsonForm:
    schema: JsonSchema = {"type": "object"}
    if value.schema:
        schema["additionalProperties"] = value.schema

    def convert(values: dict[str, object]) -> object:
        return {name: value.read(one) for name, one in values.items()}

    return JsonForm(
        schema,
        "dict" if value is ANYTHING else f"dict[str, {value.annotation}]",
        lambda values: type(values) is dict and all(map(value.fits, values.values())),
        None if value.convert is None else convert,
        value.certain,
    )


def fits_fields(fields: Mapping[str, JsonForm], required: Sequence[str]) -> Callable[[object], bool]:
    def fits(value: object) -> bool:
        if type(value) is not dict or not all(name in value for name in required):
            return False
        return all(name in fields and fields[name].fits(one) for name, one in value.items())

    return fits


def reads_fields(
    fields: Mapping[str, JsonForm], make: Callable[[dict[str, object]], object] | None
) -> Callable[[dict[str, object]], object]:
    def read(value: dict[str, object]) -> object:
        named = {name: fields[name].read(one) for name, one in value.items()}
        return named if make is None else make(named)

    return read
