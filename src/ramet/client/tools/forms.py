"""Forms: what a type hint is in JSON. A schema, what fits it, and how JSON becomes what the hint promises."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from enum import Enum
from typing import Any
from uuid import UUID

JsonSchema = dict[str, Any]


class NotDescribable(Exception):
    """A hint that has no counterpart in JSON; says which part of it, and why."""


@dataclass(frozen=True, slots=True)
class Form:
    """One hint. ``convert`` is for values that fit the schema, and may still raise: not every string is a date.

    ``fits`` says True only of what fits the schema for certain, and is far quicker than to ask the schema.
    """

    schema: JsonSchema
    annotation: str  # as code in a sandbox would write it
    fits: Callable[[object], bool]
    convert: Callable[[Any], object] | None = None  # None: it stays as it is
    certain: bool = True  # what does not fit, does not fit the schema either

    def read(self, value: object) -> object:
        return value if self.convert is None else self.convert(value)


def _always(value: object) -> bool:
    return True


def _is(*kinds: type) -> Callable[[object], bool]:
    allowed = frozenset(kinds)
    return lambda value: type(value) in allowed


ANYTHING = Form({}, "Any", _always)
PLAIN: Mapping[object, Form] = {
    Any: ANYTHING,
    object: ANYTHING,
    str: Form({"type": "string"}, "str", _is(str)),
    int: Form({"type": "integer"}, "int", _is(int), int),  # 3.0 is an integer in JSON
    float: Form({"type": "number"}, "float", _is(float, int), float),
    bool: Form({"type": "boolean"}, "bool", _is(bool)),
    None: Form({"type": "null"}, "None", _is(type(None))),
    type(None): Form({"type": "null"}, "None", _is(type(None))),
}


def text(read: Callable[[str], object], written: str | None = None) -> Form:
    schema: JsonSchema = {"type": "string"} if written is None else {"type": "string", "format": written}
    return Form(schema, "str", _is(str), read)


TEXTS: Mapping[object, Form] = {
    datetime: text(datetime.fromisoformat, "date-time"),
    date: text(date.fromisoformat, "date"),
    time: text(time.fromisoformat, "time"),
    UUID: text(UUID, "uuid"),
}


def one_of(options: Sequence[Form]) -> Form:
    def read(value: object) -> object:
        fitting = [option for option in options if option.fits(value)]
        # 3 is 3 and not 3.0 where both are allowed.
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
    return Form(
        {"anyOf": [option.schema for option in options]},
        " | ".join(dict.fromkeys(option.annotation for option in options)),
        lambda value: any(option.fits(value) for option in options),
        None if plain else read,
        all(option.certain for option in options),
    )


def literal(values: tuple[object, ...]) -> Form:
    plain = [value.value if isinstance(value, Enum) else value for value in values]
    return _choice(plain, dict(zip(map(_key, plain), values, strict=True)), "Literal")


def enumeration(kind: type[Enum]) -> Form:
    members = list(kind)
    if not members:
        raise NotDescribable(f"{kind.__name__} has no members")
    plain = [member.value for member in members]
    return _choice(plain, dict(zip(map(_key, plain), members, strict=True)), kind.__name__)


def _choice(plain: list[object], meant: dict[object, object], what: str) -> Form:
    for value in plain:
        if type(value) not in (str, int, float, bool, type(None)):
            raise NotDescribable(f"{what} has the value {value!r:.80}, which JSON does not have")
    schema: JsonSchema = {"enum": plain}
    if all(type(value) is str for value in plain):
        schema = {"type": "string", "enum": plain}
    return Form(
        schema,
        f"Literal[{', '.join(map(repr, plain))}]",
        lambda value: isinstance(value, Hashable) and _key(value) in meant,
        lambda value: meant[_key(value)],
    )


def _key(value: object) -> object:
    """In JSON 1 and 1.0 are one number, and true is none."""
    return (bool, value) if isinstance(value, bool) else value


def array(item: Form, make: Callable[[Any], object]) -> Form:
    fits = item.fits
    schema: JsonSchema = {"type": "array"}
    if item.schema:
        schema["items"] = item.schema

    def convert(values: list[object]) -> object:
        return make(values if item.convert is None else map(item.convert, values))

    return Form(
        schema,
        "list" if item is ANYTHING else f"list[{item.annotation}]",
        lambda values: type(values) is list and all(map(fits, values)),
        None if make is list and item.convert is None else convert,
        item.certain,
    )


def fixed_array(items: Sequence[Form]) -> Form:
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
    return Form(schema, annotation, fits, convert, all(item.certain for item in items))


def mapping(value: Form) -> Form:
    schema: JsonSchema = {"type": "object"}
    if value.schema:
        schema["additionalProperties"] = value.schema

    def convert(values: dict[str, object]) -> object:
        return {name: value.read(one) for name, one in values.items()}

    return Form(
        schema,
        "dict" if value is ANYTHING else f"dict[str, {value.annotation}]",
        lambda values: type(values) is dict and all(map(value.fits, values.values())),
        None if value.convert is None else convert,
        value.certain,
    )


def fits_fields(fields: Mapping[str, Form], required: Sequence[str]) -> Callable[[object], bool]:
    def fits(value: object) -> bool:
        if type(value) is not dict or not all(name in value for name in required):
            return False
        return all(name in fields and fields[name].fits(one) for name, one in value.items())

    return fits


def reads_fields(
    fields: Mapping[str, Form], make: Callable[[dict[str, object]], object] | None
) -> Callable[[dict[str, object]], object]:
    def read(value: dict[str, object]) -> object:
        named = {name: fields[name].read(one) for name, one in value.items()}
        return named if make is None else make(named)

    return read
