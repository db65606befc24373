"""Options and arguments that a struct of ``protocol.values`` describes: added to a command, and read again."""

from __future__ import annotations

import argparse
from typing import Any

from ramet.protocol.requests.options import FLAG, CommandLine, Option, options_of


def add_options(parser: argparse.ArgumentParser, struct: type) -> None:
    """Those of an operation that are for the command line."""
    for name, described in options_of(struct).items():
        if described.command_line is not None:
            add_option(parser, name, described, described.command_line)


def given_options(chosen: argparse.Namespace, struct: type) -> dict[str, Any]:
    """Those that were typed, by the names that the SDK has for them."""
    offered = [name for name, described in options_of(struct).items() if described.command_line is not None]
    return {name: value for name in offered if (value := getattr(chosen, name)) is not None}


def add_option(parser: argparse.ArgumentParser, name: str, described: Option, typed: CommandLine) -> None:
    flags = [flag for flag in (typed.short, typed.flag) if flag]
    parse = described.kind.parse
    if not flags:
        parser.add_argument(
            name, nargs=None if described.required else "?", type=parse, metavar=typed.metavar, help=typed.help
        )
    elif typed.repeated:
        parser.add_argument(*flags, dest=name, action="append", default=[], metavar=typed.metavar, help=typed.help)
    elif described.kind is FLAG:
        parser.add_argument(*flags, dest=name, action="store_true", default=None, help=typed.help)
    else:
        choices = described.schema.get("enum")
        parts = parser.add_mutually_exclusive_group() if typed.all_flag else parser
        parts.add_argument(
            *flags,
            dest=name,
            type=parse,
            nargs="+" if typed.several else None,
            choices=choices if isinstance(choices, list) else None,
            metavar=typed.metavar or None,
            help=typed.help,
        )
        if typed.all_flag:
            parts.add_argument(typed.all_flag, dest=name, action="store_const", const=True, help=typed.all_help)
