"""Terminals of a sandbox: what is told of one, and what may be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ramet.protocol import checks, fields
from ramet.protocol.refusing import invalid

TERMINALS_AT_MOST = 16  # that run, in one sandbox
RING_BYTES = 1024 * 1024  # of its output, kept of each
INPUT_BYTES_AT_MOST = 256 * 1024  # in one call
READ_BYTES_AT_MOST = RING_BYTES
READ_SECONDS_AT_MOST = 60.0  # a reader that wants to wait longer asks again
ARGUMENTS_AT_MOST = 4096
# The kernel takes no longer single argument (MAX_ARG_STRLEN), and no more of all than a quarter of the stack.
ARGUMENT_BYTES_AT_MOST = 128 * 1024 - 1
ARGUMENTS_BYTES_AT_MOST = 1024 * 1024
SIZE_AT_MOST = 65_535  # struct winsize


@dataclass(frozen=True, slots=True)
class TerminalInfo:
    """One terminal of a sandbox. ``exit_code`` is None while its program runs, 128 + n after signal n."""

    id: str
    label: str
    created_ms: int
    exit_code: int | None

    @classmethod
    def read(cls, header: Mapping[str, object]) -> TerminalInfo:
        return cls(
            id=fields.text(header, "id"),
            label=fields.text(header, "label"),
            created_ms=fields.whole(header, "created_ms"),
            exit_code=fields.optional_whole(header, "exit_code"),
        )


def check_arguments(arguments: object) -> tuple[str, ...]:
    """A program and its arguments."""
    allowed = "a program's name and its arguments, as strings without NUL"
    if not isinstance(arguments, list | tuple):
        raise invalid("command", f"is a {type(arguments).__name__}", allowed)
    if not arguments or len(arguments) > ARGUMENTS_AT_MOST:
        raise invalid("command", f"has {len(arguments)} arguments", f"1 to {ARGUMENTS_AT_MOST}")
    total = 0
    for argument in arguments:
        if not isinstance(argument, str):
            raise invalid("command", f"has a {type(argument).__name__} in it", allowed)
        if "\0" in argument:
            raise invalid("command", "has a NUL character", allowed)
        length = checks.bytes_as_path("command", argument)
        if length > ARGUMENT_BYTES_AT_MOST:
            raise invalid("command", f"has an argument of {length} bytes", f"at most {ARGUMENT_BYTES_AT_MOST} bytes")
        total += length + 1
    if not arguments[0]:
        raise invalid("command", "is empty", allowed)
    if total > ARGUMENTS_BYTES_AT_MOST:
        raise invalid("command", f"is {total} bytes long", f"at most {ARGUMENTS_BYTES_AT_MOST} bytes together")
    return tuple(arguments)


def check_size(columns: object, rows: object) -> tuple[int, int]:
    return _check_size("cols", columns), _check_size("rows", rows)


def _check_size(name: str, value: object) -> int:
    allowed = f"a whole number from 1 to {SIZE_AT_MOST}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(name, f"is a {type(value).__name__}", allowed)
    if not 1 <= value <= SIZE_AT_MOST:
        raise invalid(name, f"is {value}", allowed)
    return value


def check_input(length: int) -> None:
    if length > INPUT_BYTES_AT_MOST:
        raise invalid("data", f"is {length} bytes long", f"at most {INPUT_BYTES_AT_MOST} bytes in one call")
