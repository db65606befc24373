"""Errors for wrong arguments, as plain sentences: what an argument must be, and what was given."""

from __future__ import annotations

from collections.abc import Iterable

from ramet.errors import InvalidArgument

_SHOWN_CHARACTERS = 80
_SHOWN_BITS = 256


class Words(str):
    """A description of what was given: "a folder", "3 items"."""


def kind_of(value: object) -> Words:
    """Describe a value's type: 'a str', 'an int', 'None'. Does not show the value, which may be a secret."""
    name = type(value).__name__[:_SHOWN_CHARACTERS]
    return Words("None" if value is None else f"an {name}" if name[0] in "aeiouAEIO" else f"a {name}")


def kind_in_json(value: object) -> Words:
    """Describe a value's type as JSON calls it: 'a string', 'an object', 'null'. Does not show the value."""
    if value is None:
        return Words("null")
    if isinstance(value, bool):
        return Words("true" if value else "false")
    if isinstance(value, dict):
        return Words("an object")
    if isinstance(value, list):
        return Words("an array")
    return Words("a string" if isinstance(value, str) else "a number")


def must(
    argument: str, requirement: str, got: object, *, subject: str | None = None, hint: str | None = None
) -> InvalidArgument:
    """Return the error for one argument as a sentence: ``must("memory_mib", "be at least 64", 1)``.

    ``got`` is shown as its repr, shortened; pass a ``Words`` for a description, and ``kind_of(value)`` if the value may
    be a secret. ``subject`` begins the sentence if it is about a part of the argument. ``hint`` says what to do next.
    """
    sentence = f"{argument if subject is None else subject} must {requirement}, got {_shown(got)}"
    return wrong_argument(argument, sentence, hint=hint)


def wrong_argument(argument: str, sentence: str, *, hint: str | None = None) -> InvalidArgument:
    """Return the error for one argument where "must ..., got ..." does not fit."""
    return InvalidArgument(sentence, hint=hint, details={"argument": argument})


def unknown_field(name: str, known: Iterable[str]) -> InvalidArgument:
    """Return the error for an unknown field of a request. ``known`` are the fields that exist."""
    shown, fields = shorten(name), ", ".join(known)
    return wrong_argument(
        shown, f"unknown field {shown!r}", hint=f"fields: {fields}" if fields else "there are no fields"
    )


def shorten(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _shown(value: object) -> str:
    """Return a short repr. Limited for any value: the ``repr`` of a user's object may be long, slow or fail."""
    if isinstance(value, Words):
        return str(value)
    if isinstance(value, str | bytes):
        return shorten(repr(value[:_SHOWN_CHARACTERS]))  # again, because of the quotes of the repr
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if value.bit_length() <= _SHOWN_BITS else f"a number of {value.bit_length()} bits"
    return kind_of(value)
