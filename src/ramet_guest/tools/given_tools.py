"""The sandbox's tools, as functions in its cells and as commands in its shell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ramet_guest.tools import calls, functions
from ramet_guest.tools.calls import connections
from ramet_guest.tools.commands import FOLDER, Commands
from ramet_guest.tools.errors import ToolError
from ramet_guest.tools.formats import formats
from ramet_guest.tools.pending import unmade
from ramet_guest.tools.signatures import python_name

if TYPE_CHECKING:
    from ramet_guest.repl import Repl

_missing = object()


class Tools:
    """Owns the functions and commands of the tools that the engine sent last."""

    def __init__(self, repl: Repl, commands_folder: str | None = None) -> None:
        self._repl = repl
        self._commands = Commands(commands_folder or FOLDER)
        self._told: tuple[str, bytes] = ("", b"[]")
        # By Python name: the tool's description, and the function made from it.
        self._given: dict[str, dict[str, Any]] = {}
        self._made: dict[str, Any] = {}
        self.unmade = unmade
        repl.gate.protect(calls.hang_up)

    def __repr__(self) -> str:
        return f"<Tools {', '.join(self._given) or 'none'}>"

    def give(self, socket_name: str, told: bytes) -> None:
        """Sets the tools and their socket. Leaves unchanged tools as they are, even if user code replaced them."""
        if (socket_name, told) == self._told:
            return
        given: dict[str, dict[str, Any]] = {python_name(one["name"]): one for one in json.loads(told)}
        if socket_name:  # empty if no tool is left; a kept function then gets the refusal at the old socket
            connections.use(socket_name)
        formats.look()
        functions.forget()
        for name in list(self._made):
            if not given or self._given.get(name) != given.get(name):
                self._take_away(name)
        for name, one in given.items():
            if name not in self._made:
                self._put(name, functions.make_function(one, self._commands.list_path))
        if given and "ToolError" not in self._made:
            self._put("ToolError", ToolError)
        self._given = given
        self._told = (socket_name, told)
        # Last, because it may fail: a cell can have filled the disk.
        self._commands.write(socket_name, list(given.values()))

    def put_back(self) -> None:
        """Restores a tool whose name a cell deleted or set to a value that is not callable.

        Leaves a function there: code may have wrapped the tool.
        """
        namespace = self._repl.namespace
        for name, value in self._made.items():
            if not callable(namespace.get(name)):
                namespace[name] = value

    def forget_connections(self) -> None:
        """Closes connections after a thaw: they belonged to our parent and are dead."""
        connections.forget()

    def mend_path(self) -> None:
        """Adds the commands to PATH again after the variable was set anew."""
        self._commands.mend_path()

    def _put(self, name: str, value: Any) -> None:
        """Adds a name as if it had been there before any cell."""
        self._made[name] = self._repl.namespace[name] = self._repl.first_names[name] = value

    def _take_away(self, name: str) -> None:
        value = self._made.pop(name)
        for names in (self._repl.namespace, self._repl.first_names):
            if names.get(name, _missing) is value:
                del names[name]
