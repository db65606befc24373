"""The reference of the command line is complete: every command and every option stands in it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.cli.main import make_parser

_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md").read_text()


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield name, below
                yield from ((f"{name} {more}", deeper) for more, deeper in commands(below))


_COMMANDS = list(commands(make_parser()))


def section(command: str) -> str:
    """What the page says of a command, up to the next one."""
    found = re.search(rf"^## `ramet {command.split()[0]}`\n(.*?)(?=^## |\Z)", _PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, f"no section for {command}"
    return found[1]


@pytest.mark.parametrize(("command", "parser"), _COMMANDS, ids=[name for name, _ in _COMMANDS])
def test_every_command_and_option_is_in_the_reference(command: str, parser: argparse.ArgumentParser) -> None:
    text = section(command)
    assert f"ramet {command}" in _PAGE
    options = [
        option
        for action in parser._actions
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)
        for option in action.option_strings
    ]
    missing = [option for option in options if not re.search(rf"`{re.escape(option)}[ `]", text)]
    assert not missing


@pytest.mark.parametrize(("command", "parser"), _COMMANDS, ids=[name for name, _ in _COMMANDS])
def test_the_help_of_every_command_shows_examples(command: str, parser: argparse.ArgumentParser) -> None:
    if " " not in command:
        assert "examples:" in parser.format_help()
