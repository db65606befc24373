"""Terminals of a sandbox: their description, and checks of requests."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.protocol import checks, fields
from ramet.protocol.argument_errors import Words, kind_of, must, wrong_argument
from ramet.protocol.lazy_dataclasses import dataclass

TERMINALS_AT_MOST = 16  # running at once in one sandbox
RING_BYTES = 1024 * 1024  # output kept for each terminal
INPUT_BYTES_AT_MOST = 256 * 1024  # per call
READ_BYTES_AT_MOST = RING_BYTES
READ_SECONDS_AT_MOST = 60.0  # a reader that wants to wait longer asks again
ARGUMENTS_AT_MOST = 4096
# The kernel accepts no longer single argument (MAX_ARG_STRLEN), and for all together a quarter of the stack.
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
    """Check a program and its arguments."""
    if not isinstance(arguments, list | tuple):
        raise must("command", "be a list of strings: a program and its arguments", kind_of(arguments))
    if not arguments or len(arguments) > ARGUMENTS_AT_MOST:
        raise must("command", f"have 1 to {ARGUMENTS_AT_MOST} entries", Words(f"{len(arguments)}"))
    total = 0
    for argument in arguments:
        if not isinstance(argument, str):
            raise must("command", "be a string", kind_of(argument), subject="each entry of command")
        if "\0" in argument:
            raise wrong_argument("command", "command must not contain NUL characters")
        length = checks.bytes_as_path("command", argument)
        if length > ARGUMENT_BYTES_AT_MOST:
            raise must(
                "command",
                f"be at most {ARGUMENT_BYTES_AT_MOST} bytes long",
                Words(f"{length} bytes"),
                subject="each entry of command",
            )
        total += length + 1
    if not arguments[0]:
        raise wrong_argument("command", "command must begin with a program's name, got an empty string")
    if total > ARGUMENTS_BYTES_AT_MOST:
        raise must("command", f"be at most {ARGUMENTS_BYTES_AT_MOST} bytes long in all", Words(f"{total} bytes"))
    return tuple(arguments)


def check_size(columns: object, rows: object) -> tuple[int, int]:
    return _check_size("cols", columns), _check_size("rows", rows)


def _check_size(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise must(name, "be a whole number", value)
    if not 1 <= value <= SIZE_AT_MOST:
        raise must(name, f"be from 1 to {SIZE_AT_MOST}", value)
    return value


def check_input(length: int) -> None:
    if length > INPUT_BYTES_AT_MOST:
        raise must("data", f"be at most {INPUT_BYTES_AT_MOST} bytes long in one call", Words(f"{length} bytes"))
