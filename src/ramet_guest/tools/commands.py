"""The shell commands of tools: one small program, and a link to it for each tool.

They are in /run, the place for files of a running system: it is writable in every sandbox, is neither the user's home
nor a folder whose files a cell would list or delete, and contains no other programs. The folder comes last on PATH, so
that a tool never hides a command of the system.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

FOLDER = "/run/ramet/bin"
PROGRAM = "ramet-tool"
# The kernel reads no more of a script's first line (BINPRM_BUF_SIZE in Linux 5.1 and later).
_LONGEST_FIRST_LINE = 255
# Without environment and site a bare interpreter starts in half the time.
_OPTIONS = "-ISXutf8"
_PYTHON = sys.executable
_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Commands:
    """Owns the folder of commands and the list of tools beside it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.list_path = os.path.join(os.path.dirname(folder), "tools.json")
        self._on_path = False

    def write(self, socket_name: str, tools: list[dict[str, Any]]) -> None:
        """Writes commands for exactly these tools. Raises OSError."""
        if not tools:
            self._remove()
            return
        os.makedirs(self._folder, exist_ok=True)
        replace(self.list_path, json.dumps({"socket": socket_name, "tools": tools}), 0o644)
        if not self._on_path:
            replace(os.path.join(self._folder, PROGRAM), script(self.list_path), 0o755)
        names = {str(tool["name"]) for tool in tools} - {PROGRAM}
        there = links_in(self._folder)
        for name in there - names:
            remove(os.path.join(self._folder, name))
        for name in names - there:
            path = os.path.join(self._folder, name)
            remove(path)
            os.symlink(PROGRAM, path)
        self._on_path = True
        self.mend_path()

    def mend_path(self) -> None:
        """Appends the folder to PATH if it contains commands."""
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        if self._on_path and self._folder not in folders:
            os.environ["PATH"] = os.pathsep.join([*folders, self._folder])

    def _remove(self) -> None:
        """Removes all commands and takes the folder off PATH."""
        for name in (*links_in(self._folder), PROGRAM):
            remove(os.path.join(self._folder, name))
        remove(self.list_path)
        self._on_path = False
        folders = os.environ.get("PATH", "").split(os.pathsep)
        if self._folder in folders:
            folders.remove(self._folder)
            os.environ["PATH"] = os.pathsep.join(folders)


def links_in(folder: str) -> set[str]:
    """Returns the links, also those of an earlier process: files outlive it."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_symlink()}
    except FileNotFoundError:
        return set()


def script(list_of_tools: str) -> str:
    """Returns the program's text. It contains all paths, because a command may be started with an empty environment."""
    first = f"#!{_PYTHON} {_OPTIONS}\n"
    body = (
        "import sys\n"
        f"sys.path.insert(0, {_PACKAGE_FOLDER!r})\n"
        "from ramet_guest.tools.program import main\n"
        f"main(sys.argv, {list_of_tools!r})\n"
    )
    if len(os.fsencode(first)) <= _LONGEST_FIRST_LINE and " " not in _PYTHON:
        return first + body
    # Both sh and Python read this: sh sees a command in the second line, Python the beginning of a string.
    return f"#!/bin/sh\n'''exec' \"{_PYTHON}\" {_OPTIONS} \"$0\" \"$@\"\n' '''\n{body}"


def replace(path: str, text: str, mode: int) -> None:
    """Replaces a file atomically, so that a process that runs or reads it sees the old or the new one."""
    new = f"{path}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
    os.rename(new, path)


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
