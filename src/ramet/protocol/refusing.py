"""How an argument is refused: what is wrong with it, and what is allowed."""

from __future__ import annotations

from ramet.errors import InvalidArgument


def kind_of(value: object) -> str:
    """What it is, in words: 'a str', 'an int', 'None'."""
    name = type(value).__name__
    return "None" if value is None else f"an {name}" if name[0] in "aeiou" else f"a {name}"


def invalid(argument: str, problem: str, allowed: str) -> InvalidArgument:
    """The error for one argument: its name, what is wrong with it, and what is allowed."""
    return InvalidArgument(f"{argument}: {problem}", hint=f"allowed: {allowed}", details={"argument": argument})
