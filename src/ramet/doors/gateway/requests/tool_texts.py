"""The tools of code execution as an ordinary model sees them: names, schemas, and texts that make it use them well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramet.doors.gateway.kinds import BASH, CODE, EDITOR
from ramet.doors.gateway.requests.schemas import signature
from ramet.doors.gateway.running.cell_run import ClientTool
from ramet.integrations.reach import NO_INTERNET

VERSIONS = ("20250522", "20250825", "20260120", "20260521")
_TOOLS = {
    "20250522": (CODE,),
    "20250825": (BASH, EDITOR),
    "20260120": (CODE, BASH, EDITOR),
    "20260521": (CODE, BASH, EDITOR),
}
PROGRAMMATIC_VERSIONS = frozenset(("20260120", "20260521"))
_DESCRIPTION_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """Facts that a model must know about the place where its code runs."""

    cell_seconds: float = 90
    reach: str = NO_INTERNET


_USUAL = ContainerFacts()


def tool_names(version: str) -> tuple[str, ...]:
    return _TOOLS[version]


def tools_for_upstream(
    version: str, callables: Sequence[ClientTool], surroundings: ContainerFacts = _USUAL
) -> list[dict[str, Any]]:
    """The ordinary tools that replace the code execution entry."""
    makers = {
        CODE: lambda: _code_tool(version, callables, surroundings),
        BASH: lambda: _bash_tool(version, callables, surroundings),
        EDITOR: _editor_tool,
    }
    return [makers[name]() for name in tool_names(version)]


_PLACE = """\
It runs in a sandboxed Linux container. {reach} Files that the user uploaded are in the folder $INPUT_DIR. To \
give a file to the user, write it into the folder $OUTPUT_DIR."""

_REPL = """\
Run Python code and read what it prints.

- This is one REPL for the whole conversation: variables, imports and functions of earlier calls are still there. \
Build on them instead of loading or computing things again.
- Only what the code prints comes back to you, and the value of its last line. Print the few numbers or lines that you \
need and not whole data sets: keep data in variables, and look at slices, counts and aggregates.
- `await` works at the top level of the code; there is no need for asyncio.run.
- An exception comes back as a traceback. The variables set before it are kept: go on from there."""

_FRESH = """\
Run Python code and read what it prints. Only what the code prints comes back to you: print what you need to know. An \
exception comes back as a traceback."""

_LIMIT = """\
- A call may run for {seconds:g} seconds; then it is interrupted and its result says so. Split longer work into \
several calls: the state is kept between them."""

_TOOLS_INSIDE = """\

These functions can be called in the code. Each is a tool of the user's program: a call waits for the tool's result \
and returns its text (a str; parse it with json.loads if it is JSON). They are async, so use `await`; call several at \
once with asyncio.gather. Prefer to call them in code, in loops and together, and print only what you conclude from \
the results: the results themselves stay in the container.
"""

_COMMANDS_INSIDE = """\
The tools of the user's program that code_execution describes are commands here, too: {names}. A command takes its \
parameters as options (`{one} --help` lists them) or as one object (`{one} --json '{{...}}'`), waits for the tool's \
result and prints it."""


def _code_tool(version: str, callables: Sequence[ClientTool], surroundings: ContainerFacts) -> dict[str, Any]:
    parts = [_FRESH if version == "20250522" else _REPL]
    if version == "20260521":
        parts.append(_LIMIT.format(seconds=surroundings.cell_seconds))
    parts.append("\n" + _place(surroundings))
    if callables:
        parts.append(_TOOLS_INSIDE)
        parts.extend(_functions(callables))
    code = {"type": "string", "description": "The Python code to run."}
    return _tool(CODE, "\n".join(parts), {"code": code}, ["code"])


def _functions(callables: Iterable[ClientTool]) -> Iterable[str]:
    for tool in callables:
        yield signature(tool.name, tool.input_schema) + ":"
        text = tool.description.strip()[:_DESCRIPTION_CHARACTERS]
        lines = [text, *_parameter_lines(tool.input_schema)] if text else _parameter_lines(tool.input_schema)
        for line in "\n".join(lines).splitlines() or ["..."]:
            yield f"    {line}".rstrip()


def _parameter_lines(schema: Mapping[str, object]) -> list[str]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return []
    lines = []
    for name, one in properties.items():
        if isinstance(one, dict) and one.get("description"):
            lines.append(f"{name}: {' '.join(str(one['description']).split())}")
    return lines


def _place(surroundings: ContainerFacts) -> str:
    return _PLACE.format(reach=surroundings.reach)


def _bash_tool(version: str, callables: Sequence[ClientTool], surroundings: ContainerFacts) -> dict[str, Any]:
    seconds = surroundings.cell_seconds
    parts = [
        "Run a shell command with bash and read its output and return code. Each command starts a new shell: changes "
        "to files stay, changes of the folder and of variables do not. " + _place(surroundings)
    ]
    if version == "20260521":
        parts.append(f"A command may run for {seconds:g} seconds; then it is interrupted and its result says so.")
    if callables:
        parts.append(_COMMANDS_INSIDE.format(names=", ".join(tool.name for tool in callables), one=callables[0].name))
    command = {"type": "string", "description": "The command, or several lines of a script."}
    return _tool(BASH, " ".join(parts), {"command": command}, ["command"])


def _editor_tool() -> dict[str, Any]:
    text = (
        "View, create and edit text files in the container. `view` shows a file or lists a folder; `create` writes a "
        "whole file and replaces one that is there; `str_replace` replaces the one place where old_str occurs, which "
        "must be exact and unique."
    )
    properties = {
        "command": {"type": "string", "enum": ["view", "create", "str_replace"]},
        "path": {"type": "string", "description": "The path of the file."},
        "file_text": {"type": "string", "description": "For create: the whole content."},
        "old_str": {"type": "string", "description": "For str_replace: the text to replace."},
        "new_str": {"type": "string", "description": "For str_replace: the text in its place; leave out to delete."},
        "view_range": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "For view: first and last line, counted from 1; -1 for the end.",
        },
    }
    return _tool(EDITOR, text, properties, ["command", "path"])


def _tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"name": name, "description": description, "input_schema": schema}
