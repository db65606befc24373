"""The tools that a sandbox was given, among the names of its cells and among the commands of its shell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ramet_guest import tool_calls, tool_functions
from ramet_guest.tool_calls import connections
from ramet_guest.tool_commands import FOLDER, Commands
from ramet_guest.tool_errors import ToolError
from ramet_guest.tool_formats import formats
from ramet_guest.tool_pending import unmade
from ramet_guest.tool_signatures import python_name

if TYPE_CHECKING:
    from ramet_guest.repl import Repl

_missing = object()


class Tools:
    """Owns the functions of the tools that the engine told last, and their commands."""

    def __init__(self, repl: Repl, commands_folder: str | None = None) -> None:
        self._repl = repl
        self._commands = Commands(commands_folder or FOLDER)
        self._told: tuple[str, bytes] = ("", b"[]")
        # By their names in Python: what was told of each, and what was made of it.
        self._given: dict[str, dict[str, Any]] = {}
        self._made: dict[str, Any] = {}
        self.unmade = unmade
        repl.gate.protect(tool_calls.hang_up)

    def __repr__(self) -> str:
        return f"<Tools {', '.join(self._given) or 'none'}>"

    def give(self, socket_name: str, told: bytes) -> None:
        """From now on these, at this socket. What has not changed stays as it is, also where user code replaced it."""
        if (socket_name, told) == self._told:
            return
        given: dict[str, dict[str, Any]] = {python_name(one["name"]): one for one in json.loads(told)}
        if socket_name:  # else none were left; who kept a function is told so at the old one
            connections.use(socket_name)
        formats.look()
        tool_functions.forget()
        for name in list(self._made):
            if not given or self._given.get(name) != given.get(name):
                self._take_away(name)
        for name, one in given.items():
            if name not in self._made:
                self._put(name, tool_functions.make_function(one, self._commands.list_path))
        if given and "ToolError" not in self._made:
            self._put("ToolError", ToolError)
        self._given = given
        self._told = (socket_name, told)
        # Last, for it may fail: a cell can have filled the disk.
        self._commands.write(socket_name, list(given.values()))

    def put_back(self) -> None:
        """Where a cell has put a value that cannot be called under the name of a tool, or deleted it, the tool is back.

        A function is left there: code may have wrapped the tool.
        """
        namespace = self._repl.namespace
        for name, value in self._made.items():
            if not callable(namespace.get(name)):
                namespace[name] = value

    def forget_connections(self) -> None:
        """We are a copy: they were our parent's, and lead nowhere."""
        connections.forget()

    def mend_path(self) -> None:
        """The variable PATH was set anew."""
        self._commands.mend_path()

    def _put(self, name: str, value: Any) -> None:
        """As a name that was there before any cell."""
        self._made[name] = self._repl.namespace[name] = self._repl.first_names[name] = value

    def _take_away(self, name: str) -> None:
        value = self._made.pop(name)
        for names in (self._repl.namespace, self._repl.first_names):
            if names.get(name, _missing) is value:
                del names[name]
