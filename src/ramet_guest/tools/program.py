"""The program behind the tool commands, called by the name of a tool or as `ramet-tool`.

It runs in a bare interpreter and imports next to nothing, because a script may start it a thousand times.
"""

from __future__ import annotations

import sys
from _signal import SIG_DFL, SIGINT, SIGPIPE, signal  # type: ignore[import-not-found]
from posix import environ, fstat

from ramet_guest.tools import calls, json_reader
from ramet_guest.tools.errors import ToolError
from ramet_guest.tools.flags import Flags, Misuse, help_text
from ramet_guest.tools.frames import pack
from ramet_guest.wire import TOOL_ARGUMENT_BYTES_AT_MOST, TOOL_CALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

PROGRAM = "ramet-tool"
FAILED = 1
# The owner of a sandbox may set this: with "text" a result that is a string is printed as it is, not as JSON.
_OUTPUT_VARIABLE, _AS_TEXT = b"RAMET_TOOL_OUTPUT", b"text"
_KIND_OF_FILE = 0o170000
_REGULAR, _PIPE, _SOCKET = 0o100000, 0o010000, 0o140000


def main(words: list[str], list_of_tools: str) -> NoReturn:
    # As in other programs, a reader that closes the pipe or an interrupt ends us silently.
    for number in (SIGPIPE, SIGINT):
        signal(number, SIG_DFL)
    name = words[0].rpartition("/")[2]
    try:
        sys.exit(run(name, words[1:], list_of_tools))
    except Misuse as error:
        say(f"{name}: {error}\n\nhint: {name} --help")
        sys.exit(FAILED)


def run(name: str, words: list[str], list_of_tools: str) -> int:
    """Runs one command. Returns its exit code."""
    known = read_list(list_of_tools)
    tools = {tool["name"]: tool for tool in known["tools"]}
    if name == PROGRAM:
        if not words or words[0] in ("--help", "-h"):
            write(overview(tools, bool(words)).encode())
            return 0
        name, words = words[0], words[1:]
    tool = tools.get(name)
    if tool is None:
        raise Misuse(f"there is no tool {name!r:.80}")
    if "--help" in before_the_end(words) or words[:1] == ["-h"]:
        write(help_text(tool).encode())
        return 0
    arguments = arguments_of(tool, words)
    calls.connections.use(known["socket"])
    value, error = call(name, arguments)
    if error is not None:
        say(f"{name}: {error}")
        return FAILED
    show(value)
    return 0


def before_the_end(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def read_list(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json_reader.read(file.read())
            return found
    except FileNotFoundError:
        raise Misuse("this sandbox has no tools") from None


def arguments_of(tool: dict[str, Any], words: list[str]) -> dict[str, Any]:
    flags = Flags(tool["input_schema"], read_standard_input)
    if not words and tool["input_schema"].get("properties") and has_input():
        text = read_standard_input()
        if text.strip():
            return flags.checked(flags.whole(text))
    return flags.read(words)


def call(name: str, arguments: dict[str, Any]) -> tuple[Any, ToolError | None]:
    try:
        blob = json_reader.compact_writer(refuse)(arguments).encode("utf-8", "backslashreplace")
    except ValueError as error:
        raise Misuse(str(error)) from None
    if len(blob) > TOOL_ARGUMENT_BYTES_AT_MOST:
        problem = f"the arguments must be at most {TOOL_ARGUMENT_BYTES_AT_MOST} bytes, got {len(blob)}"
        return None, ToolError(problem)
    # An empty `accepts` makes tables arrive as rows and arrays as lists.
    return calls.call(name, pack(TOOL_CALL, b'{"tool":"%s","accepts":[]}' % name.encode("ascii"), blob), plain=True)


def refuse(value: Any) -> Any:
    raise Misuse(f"JSON does not have {value!r:.80}")


def has_input() -> bool:
    """Whether standard input was connected to something for us, and is not a terminal or empty."""
    try:
        kind = fstat(0).st_mode & _KIND_OF_FILE
    except OSError:
        return False
    return kind in (_REGULAR, _PIPE, _SOCKET)


def read_standard_input() -> str:
    with open(0, "rb", closefd=False) as file:
        return file.read().decode("utf-8", "surrogateescape")


def show(value: Any) -> None:
    if type(value) is bytes:
        write(value)
    elif type(value) is str and environ.get(_OUTPUT_VARIABLE) == _AS_TEXT:
        write((value if value.endswith("\n") else value + "\n").encode("utf-8", "backslashreplace"))
    else:
        write((json_reader.write(value, as_text) + "\n").encode("utf-8", "backslashreplace"))


def as_text(value: Any) -> str:
    """Encodes bytes inside other values, which JSON lacks."""
    from binascii import b2a_base64

    return b2a_base64(value, newline=False).decode("ascii")


def overview(tools: dict[str, Any], explained: bool) -> str:
    width = min(max((len(name) for name in tools), default=0), 30)
    lines = [f"{name:{width}}  {first_line(tool['description'])}".rstrip() + "\n" for name, tool in tools.items()]
    usage = f"usage: {PROGRAM} [TOOL [ARGUMENT ...]]\n\nCalls a tool, or lists them all.\n\n"
    return (usage if explained else "") + "".join(lines)


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def write(data: bytes) -> None:
    with open(1, "wb", buffering=0, closefd=False) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) or 0 :]


def say(text: str) -> None:
    with open(2, "wb", buffering=0, closefd=False) as file:
        file.write((text + "\n").encode("utf-8", "backslashreplace"))
