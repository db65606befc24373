"""JSON without the module `json`, which takes longer to import than a bare interpreter takes to start.

Both are made of the same C code; a command of bash (`program.py`) uses only this.
"""

from __future__ import annotations

from _json import encode_basestring, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_SPACE = " \t\n\r"


class _JsonSettings:
    """The settings of `json.loads`, under the names by which the scanner reads them."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = _CONSTANTS.__getitem__


_scan: Callable[[str, int], tuple[Any, int]] = make_scanner(_JsonSettings)  # type: ignore[arg-type]


def read(text: str) -> Any:
    """Parses JSON. Raises ValueError for anything else."""
    text = text.strip(_SPACE)
    try:
        value, end = _scan(text, 0)
    except (StopIteration, SystemError):  # SystemError comes from CPython 3.11, which looks the error up by its module
        from json import loads

        return loads(text)  # raises with json's own message
    if end != len(text):
        raise ValueError(f"unexpected text after the JSON, at character {end + 1}")
    return value


def compact_writer(default: Callable[[Any], Any]) -> Callable[[Any], str]:
    """Returns a function that writes values without spaces.

    It refuses NaN and calls `default` for types that JSON lacks.
    """
    # markers, default, encoder, indent, key separator, item separator, sort keys, skip keys, allow NaN
    encode: Callable[[Any, int], tuple[str, ...]] = make_encoder(
        None, default, encode_basestring, None, ":", ",", False, False, False
    )
    return lambda value: "".join(encode(value, 0))


def write(value: Any, default: Callable[[Any], Any]) -> str:
    """Writes for people: indented by two, without escapes for non-ASCII characters."""
    return "".join(_written(value, "\n", default))


def _written(value: Any, line: str, default: Callable[[Any], Any]) -> Iterator[str]:
    if isinstance(value, str):
        yield encode_basestring(value)
    elif value is None or value is True or value is False:
        yield {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, int):
        yield int.__repr__(value)
    elif isinstance(value, float):
        yield _number(value)
    elif isinstance(value, (list, tuple)):
        yield from _items(value, "[]", ((item, "") for item in value), line, default)
    elif isinstance(value, dict):
        pairs = ((item, f"{encode_basestring(key)}: ") for key, item in value.items())
        yield from _items(value, "{}", pairs, line, default)
    else:
        yield from _written(default(value), line, default)


def _items(
    value: Any, brackets: str, items: Iterator[tuple[Any, str]], line: str, default: Callable[[Any], Any]
) -> Iterator[str]:
    if not value:
        yield brackets
        return
    inner = line + "  "
    separator = brackets[0] + inner
    for item, name in items:
        yield separator + name
        yield from _written(item, inner, default)
        separator = "," + inner
    yield line + brackets[1]


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (_CONSTANTS["Infinity"], _CONSTANTS["-Infinity"]):
        return "Infinity" if value > 0 else "-Infinity"
    return float.__repr__(value)
