"""Turns the words of a command line into the arguments of a tool, and writes the help for them.

--sku ABC123   --sku=ABC123   --verbose   --no-verbose   --tag a --tag b   --json '{...}'   --json -
"""

from __future__ import annotations

from ramet_guest.tools import json_reader
from ramet_guest.tools.schemas import items_of, properties_of, required_by, types_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MISSING = object()
_NOUNS = {
    "string": "TEXT",
    "integer": "INTEGER",
    "number": "NUMBER",
    "boolean": "true|false",
    "array": "ITEM",
    "object": "JSON",
    "null": "null",
}
# The stricter types first: "3" is an integer where one is allowed.
_ORDER = ("integer", "number", "boolean", "null", "array", "object")
_OF_TYPE = {"array": list, "object": dict}


class Misuse(Exception):
    """Raised for a command line that makes no sense."""


class Flags:
    """Reads the words after a tool's name."""

    def __init__(self, schema: dict[str, Any], standard_input: Callable[[], str]) -> None:
        self._schema = schema
        self._properties = properties_of(schema)
        self._standard_input = standard_input
        extra = schema.get("additionalProperties", not self._properties)
        self._open = extra is not False
        # A parameter called `json` takes this flag for itself.
        self._json_is_ours = "json" not in self._properties

    def read(self, words: list[str]) -> dict[str, Any]:
        """Returns the arguments. Raises Misuse."""
        whole: dict[str, Any] = {}
        named: dict[str, Any] = {}
        unnamed: list[str] = []
        waiting = list(reversed(words))
        while waiting:
            word = waiting.pop()
            if word == "--":
                unnamed += reversed(waiting)
                break
            if not word.startswith("--"):
                unnamed.append(word)
                continue
            flag, equals, text = word.partition("=")
            given = text if equals else None
            if flag == "--json" and self._json_is_ours:
                whole = self.whole(self._value(flag, given, waiting))
            else:
                self._one(flag, given, waiting, named)
        self._place(unnamed, named)
        return self.checked({**whole, **named})

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in required_by(self._schema):
            if name not in arguments:
                raise Misuse(f"--{name} is missing")
        return arguments

    def whole(self, text: str) -> dict[str, Any]:
        """Reads all arguments from one JSON object; `-` means standard input."""
        try:
            value = json_reader.read(self._standard_input() if text == "-" else text)
        except (ValueError, RecursionError) as error:
            raise Misuse(f"the arguments must be one JSON object, but they are not JSON: {error}") from None
        if type(value) is not dict:
            raise Misuse("the arguments must be one JSON object")
        return value

    def _one(self, flag: str, given: str | None, waiting: list[str], named: dict[str, Any]) -> None:
        """Reads one flag and its value into `named`. A boolean needs no value; an array may be given several times."""
        name, negated = self._name_of(flag)
        schema = self._properties.get(name, {})
        kinds = types_of(schema, self._schema)
        if negated:
            if given is not None:
                raise Misuse(f"{flag} takes no value")
            named[name] = False
        elif "boolean" in kinds and given is None and not (waiting and waiting[-1] in ("true", "false")):
            named[name] = True
        else:
            text = self._value(flag, given, waiting)
            if "array" in kinds:
                named.setdefault(name, [])
                named[name] += self._items(flag, text, schema)
            else:
                named[name] = convert(flag, text, kinds)

    def _name_of(self, flag: str) -> tuple[str, bool]:
        """Returns the parameter behind a flag, and whether the flag negates it.

        `-` and `_` are the same where that is unambiguous.
        """
        name = flag[2:]
        by_dashes = {known.replace("_", "-"): known for known in self._properties}
        for candidate, negated in ((name, False), (name.removeprefix("no-"), True)):
            found = candidate if candidate in self._properties else by_dashes.get(candidate.replace("_", "-"))
            if found is None or (negated and candidate == name):
                continue
            if not negated or "boolean" in types_of(self._properties[found], self._schema):
                return found, negated
        if self._open and name:
            return name, False
        raise Misuse(f"there is no option {flag}")

    def _value(self, flag: str, given: str | None, waiting: list[str]) -> str:
        if given is not None:
            return given
        if not waiting:
            raise Misuse(f"{flag} needs a value")
        return waiting.pop()

    def _items(self, flag: str, text: str, schema: dict[str, Any]) -> list[Any]:
        """Reads one item, or a JSON array of several."""
        if text.lstrip().startswith("["):
            whole = as_type(text, "array")
            if whole is not _MISSING:
                return list(whole)
        return [convert(flag, text, types_of(items_of(schema, self._schema), self._schema))]

    def _place(self, words: list[str], named: dict[str, Any]) -> None:
        """Assigns words without a flag to the parameters that have no value yet, in order."""
        free = [name for name in self._properties if name not in named]
        if len(words) > len(free):
            raise Misuse(f"{words[len(free)]!r:.80} is one argument too many")
        for name, word in zip(free, words, strict=False):
            self._one(f"--{name}", word, [], named)


def convert(flag: str, text: str, kinds: set[str]) -> Any:
    """Reads a word as a value of one of these types, or of any type if there are none."""
    for kind in _ORDER:
        if kind in kinds or not kinds:
            value = as_type(text, kind)
            if value is not _MISSING:
                return value
    if "string" in kinds or not kinds:
        return text
    wanted = " or ".join(_NOUNS.get(kind, kind) for kind in (*_ORDER, "string") if kind in kinds)
    raise Misuse(f"{flag} needs {wanted}, not {text!r:.80}")


def as_type(text: str, kind: str) -> Any:
    """Returns the value of the text as JSON if it is of this type."""
    try:
        value = json_reader.read(text)
    except (ValueError, RecursionError):
        return _MISSING
    if kind == "integer":
        fits = type(value) is int
    elif kind == "number":
        fits = type(value) in (int, float)
    elif kind == "boolean":
        fits = type(value) is bool
    elif kind == "null":
        fits = value is None
    else:
        fits = type(value) is _OF_TYPE[kind]
    return value if fits else _MISSING


def help_text(tool: dict[str, Any]) -> str:
    """Returns the text of `--help`."""
    schema = tool["input_schema"]
    required = required_by(schema)
    usage, rows = [], []
    for name, inside in properties_of(schema).items():
        option = option_of(name, inside, schema)
        usage.append(option if name in required else f"[{option}]")
        rows.append((option, about(inside, name in required, schema)))
    if "json" not in properties_of(schema):
        rows.append(("--json JSON", "all arguments as one object; - reads it from standard input"))
    rows.append(("--help", "show this"))
    width = min(max(len(option) for option, _ in rows), 30)
    lines = [f"  {option:{width}}  {text}".rstrip() for option, text in rows]
    parts = [" ".join(["usage:", tool["name"], *usage]), tool["description"].strip(), "options:\n" + "\n".join(lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def option_of(name: str, schema: dict[str, Any], root: dict[str, Any]) -> str:
    kinds = types_of(schema, root)
    if kinds == {"boolean"}:
        return f"--{name}/--no-{name}"
    if "array" in kinds:
        return f"--{name} {noun(types_of(items_of(schema, root), root) or {'array'})} ..."
    return f"--{name} {noun(kinds or {'string'})}"


def noun(kinds: set[str]) -> str:
    return "|".join(_NOUNS[kind] for kind in ("string", *_ORDER) if kind in kinds and kind != "null") or "null"


def about(schema: dict[str, Any], required: bool, root: dict[str, Any]) -> str:
    parts = [" ".join(str(schema.get("description", "")).split())]
    values = schema.get("enum")
    if isinstance(values, list):
        parts.append("one of " + ", ".join(str(value) for value in values))
    if required:
        parts.append("(required)")
    elif schema.get("default") is not None:
        parts.append(f"(default {schema['default']})")
    return " ".join(part for part in parts if part)
