"""The tools for every framework: their names, their descriptions for models, and their actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ramet import FileError, InvalidArgument
from ramet.integrations.faces import AnySandbox, Face, awaiting_face, finished, waiting_face
from ramet.integrations.reading import list_files, read_file, write_file
from ramet.integrations.results import PRINTED_CHARACTERS, Shown, show

RUN_PYTHON = f"""\
Run Python code in a sandbox that keeps its state, like cells of one notebook: variables, imports, functions, files \
and threads stay for the next call. Work in small steps, look at what came back, and build on the variables that are \
there instead of computing or loading anything again. The value of the last expression comes back, print() shows the \
rest, and matplotlib figures come back as images. Keep large data in variables and print only what you need to see: \
more than {PRINTED_CHARACTERS} characters are cut in the middle. Top-level await, %magics and !shell commands work. An \
exception ends the call and keeps all variables. There is no input(), no access to the user's machine, and no \
internet unless the instructions say so."""

RUN_BASH = """\
Run a bash script in the same sandbox as run_python: same files, same current folder and environment. Each call is a \
fresh shell, so cd and shell variables do not stay; files do. The answer shows its exit code when it is not 0."""

LIST_FILES = "List a folder of the sandbox. Relative paths are below /root, where code starts too."

READ_FILE = f"""\
Read a text file of the sandbox, or see an image. More than {PRINTED_CHARACTERS} characters are cut in the middle: ask \
for some lines with first_line and line_count, or look into the file with code."""

WRITE_FILE = "Write a text file in the sandbox, and make the folders above it. An existing file is replaced."

Schema = dict[str, Any]
_TIMEOUT: Schema = {
    "type": "number",
    "exclusiveMinimum": 0,
    "description": "Interrupt the code after this many seconds. Variables are kept.",
}
_PATH: Schema = {"type": "string", "description": "Absolute, or relative to /root"}


@dataclass(frozen=True, slots=True)
class SandboxTool:
    """A tool over a sandbox, independent of any framework."""

    name: str
    description: str
    input_schema: Schema
    action: Callable[[Face, Mapping[str, Any]], Awaitable[Shown]]

    async def acall(self, sandbox: AnySandbox, arguments: object) -> Shown:
        """Run the tool on an event loop. Mistakes of the model become its answer; other errors raise RametError."""
        return await self._call(awaiting_face(sandbox), arguments)

    def call(self, sandbox: AnySandbox, arguments: object) -> Shown:
        """Run the tool and block. Raises InvalidArgument for an AsyncSandbox, else as ``acall``."""
        return finished(self._call(waiting_face(sandbox), arguments))

    async def _call(self, face: Face, arguments: object) -> Shown:
        problem = _problem(self.input_schema, arguments)
        if problem is not None:
            return Shown(problem, failed=True)
        try:
            return await self.action(face, cast("Mapping[str, Any]", arguments))
        except (FileError, InvalidArgument) as error:
            return Shown(str(error), failed=True)


def sandbox_tools(timeout_seconds: float | None = None) -> tuple[SandboxTool, ...]:
    """All tools. ``timeout_seconds`` applies to code for which the model gives no timeout."""

    async def run_python(face: Face, given: Mapping[str, Any]) -> Shown:
        return show(await face.run(given["code"], "python", _given(given, "timeout_seconds", timeout_seconds)))

    async def run_bash(face: Face, given: Mapping[str, Any]) -> Shown:
        return show(await face.run(given["command"], "bash", _given(given, "timeout_seconds", timeout_seconds)))

    async def files(face: Face, given: Mapping[str, Any]) -> Shown:
        return await list_files(face, _given(given, "path", "."))

    async def read(face: Face, given: Mapping[str, Any]) -> Shown:
        return await read_file(face, given["path"], _given(given, "first_line", 1), given.get("line_count"))

    async def write(face: Face, given: Mapping[str, Any]) -> Shown:
        return await write_file(face, given["path"], given["content"].encode("utf-8", "surrogatepass"))

    code: Schema = {"type": "string", "description": "Python source of one cell"}
    command: Schema = {"type": "string", "description": "A bash script of one or more lines"}
    line: Schema = {"type": "integer", "minimum": 1}
    return (
        SandboxTool("run_python", RUN_PYTHON, _schema(["code"], code=code, timeout_seconds=_TIMEOUT), run_python),
        SandboxTool("run_bash", RUN_BASH, _schema(["command"], command=command, timeout_seconds=_TIMEOUT), run_bash),
        SandboxTool("list_files", LIST_FILES, _schema([], path=_PATH), files),
        SandboxTool("read_file", READ_FILE, _schema(["path"], path=_PATH, first_line=line, line_count=line), read),
        SandboxTool(
            "write_file", WRITE_FILE, _schema(["path", "content"], path=_PATH, content={"type": "string"}), write
        ),
    )


def _schema(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _given(arguments: Mapping[str, Any], name: str, default: Any) -> Any:
    """An argument or its default. Models write null for arguments that they leave out."""
    value = arguments.get(name)
    return default if value is None else value


_TYPES: Mapping[str, tuple[type, ...]] = {"string": (str,), "number": (int, float), "integer": (int,)}


def _problem(schema: Schema, arguments: object) -> str | None:
    """A message for the model if its arguments do not fit the schema, else None."""
    if not isinstance(arguments, dict):
        return "the arguments must be an object"
    for name in schema["required"]:
        if arguments.get(name) is None:
            return f"{name} is missing"
    for name, value in arguments.items():
        about = schema["properties"].get(name)
        if about is None:
            return f"there is no argument {name}; there are: {', '.join(schema['properties'])}"
        if value is None:
            continue
        if not isinstance(value, _TYPES[about["type"]]) or isinstance(value, bool):
            return f"{name} must be {'an' if about['type'] == 'integer' else 'a'} {about['type']}"
        least, above = about.get("minimum"), about.get("exclusiveMinimum")
        if (least is not None and value < least) or (above is not None and value <= above):
            return f"{name} is too small: {value}"
    return None
