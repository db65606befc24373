"""Parses command lines: each command reports its own wrong options, with a suggestion."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Collection, Sequence
from typing import NoReturn, TypeAlias

from ramet.errors import InvalidArgument
from ramet.protocol.requests.operations import ForkOptions
from ramet.protocol.requests.options import options_of
from ramet.protocol.requests.sandboxes import SandboxOptions

_INVALID_CHOICE = re.compile(r"invalid choice: '([^']{1,100})'")


class CommandParser(argparse.ArgumentParser):
    """The parser of `ramet` and of each of its commands."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Report unknown options here: argparse would leave it to the parser of `ramet`, whose usage lacks them."""
        chosen, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown)}")
        if getattr(chosen, "options", None) is None:
            # The innermost parser finishes first, so keep its options.
            chosen.options = self.options()
        return chosen, unknown

    def error(self, message: str) -> NoReturn:
        if (wrong := _INVALID_CHOICE.search(message)) is not None and "did you mean" not in message:
            message += _suggestion(wrong[1], self._choices())
        super().error(message)

    def _meant(self, unknown: Sequence[str]) -> str:
        for one in unknown:
            if one.startswith("-") and (found := _suggestion(one.partition("=")[0], list(self._option_string_actions))):
                return found
        return ""

    def _choices(self) -> list[str]:
        return [str(choice) for action in self._actions for choice in action.choices or ()]

    def options(self) -> set[str]:
        """Return the names of the options as they are typed."""
        return set(self._option_string_actions)


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def new_command(
    commands: Commands, name: str, summary: str, about: str | None, examples: str, usage: str | None = None
) -> argparse.ArgumentParser:
    """Add a command, and return its parser. ``about`` and ``examples`` frame its options in the help, as written."""
    return commands.add_parser(
        name,
        help=summary,
        usage=usage,
        description=about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _suggestion(wrong: str, known: Sequence[str]) -> str:
    # Stricter for options: their dashes make different ones look alike, such as --mount and --timeout.
    alike = 0.76 if wrong.startswith("-") else 0.6
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=alike)
    return f" (did you mean {close[0]}?)" if close else ""


def in_words_of_options(error: InvalidArgument, options: Collection[str]) -> InvalidArgument:
    """Rewrite an SDK error for a user who typed options: --memory-mib, not memory_mib."""
    argument = error.argument
    option = _OTHER_NAMES.get(argument, f"--{argument.replace('_', '-')}")
    if not argument or option not in options or error.message.startswith("-"):
        return error
    message = re.sub(rf"^{re.escape(argument)}(?=[: ])", option, error.message)
    if message == error.message:  # the sentence begins with a part of the argument: "a source in mounts must ..."
        message = f"{option}: {message.replace(f' in {argument} ', ' ', 1)}"
    hint = _HINTS.get(argument, error.hint)
    return InvalidArgument(message, hint=hint, details=error.details)


# SDK arguments that have other names on the command line.
_OTHER_NAMES = {
    "secrets": "--secret",
    **{
        name: option.command_line.flag
        for struct in (SandboxOptions, ForkOptions)
        for name, option in options_of(struct).items()
        if option.command_line is not None
    },
}
# Replacements for hints of the SDK that refer to Python.
_HINTS = {
    "template": "see the templates there are with: ramet templates",
    "mounts": "--mount HOST:SANDBOX, a folder that exists here and an absolute path; then :rw if it may be written",
    "env": "--env NAME=VALUE, or --env NAME for a variable of this command",
}
