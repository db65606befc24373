"""The tools, with the descriptions that clients and models read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mcp import types
from pydantic import BaseModel

from ramet.doors.mcp import actions, answers, arguments
from ramet.doors.mcp.actions import ToolRequest
from ramet.integrations import toolbox

INSTRUCTIONS = """\
Python sandboxes that keep their state. run_python works like the cells of one notebook: variables, imports and files \
stay between calls, so work in small steps and build on what is there. Before something risky or something you may \
want to try in several ways, fork the sandbox: each fork is a full copy of the live state, variables and threads \
included, made in milliseconds. Run a variant in each, compare with diff, and keep the best with merge_into. undo \
takes back the last cell; snapshot and restore go back further. The sandboxes cannot see the user's files: bring data \
in with write_file, look at it with read_file and list_files."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool: its description for clients, and its action."""

    name: str
    title: str
    description: str
    arguments: type[arguments.Arguments]
    action: Callable[[ToolRequest, Any], Awaitable[types.CallToolResult]]
    structure: type[BaseModel] | None = None
    reads_only: bool = False
    destroys: bool = False

    def face(self) -> types.Tool:
        return types.Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=self.arguments.schema_for_models(),
            output_schema=None if self.structure is None else self.structure.model_json_schema(mode="serialization"),
            annotations=types.ToolAnnotations(
                read_only_hint=self.reads_only,
                destructive_hint=self.destroys,
                open_world_hint=False,
            ),
        )


TOOLS = (
    McpTool("run_python", "Run Python", toolbox.RUN_PYTHON, arguments.RunPython, actions.run_python),
    McpTool("run_bash", "Run bash", toolbox.RUN_BASH, arguments.RunBash, actions.run_bash),
    McpTool(
        "fork",
        "Fork a sandbox",
        "Make copies of a sandbox as it is now: memory, variables, files, threads. They are independent of each other; "
        "the original is not touched. Use it to try several approaches from the same prepared state, or to try "
        "something risky. Returns the ids of the forks, for the argument `sandbox` of the other tools.",
        arguments.Fork,
        actions.fork,
        answers.ForkAnswer,
    ),
    McpTool(
        "diff",
        "Compare two sandboxes",
        "Show which variables and files of another sandbox differ from this one, for instance what a fork changed.",
        arguments.DiffArguments,
        actions.diff,
        answers.Differences,
        reads_only=True,
    ),
    McpTool(
        "merge_into",
        "Keep a fork",
        "Replace a sandbox with the state of one of its forks: keep the best attempt under the original's id. The "
        "sandbox's own state is lost, and the winner's id ends. Other forks stay; close those you do not need.",
        arguments.MergeInto,
        actions.merge_into,
        answers.MadeSandbox,
        destroys=True,
    ),
    McpTool(
        "snapshot",
        "Take a snapshot",
        "Save the state of a sandbox, to go back to it with restore or to start others from it with create_sandbox.",
        arguments.SnapshotArguments,
        actions.snapshot,
        answers.TakenSnapshot,
    ),
    McpTool(
        "restore",
        "Go back to a snapshot",
        "Bring a sandbox back to the state of a snapshot, variables and files. Its current state is lost.",
        arguments.Restore,
        actions.restore,
        answers.TakenSnapshot,
        destroys=True,
    ),
    McpTool(
        "history",
        "Show the past of a sandbox",
        "List the cells that a sandbox has run, and which of the states after them it can go back to with rewind.",
        arguments.HistoryArguments,
        actions.history,
        answers.ListedHistory,
        reads_only=True,
    ),
    McpTool(
        "undo",
        "Undo the last cells",
        "Bring a sandbox back to the state before its last cell, or its last n: variables, threads and files. Use it "
        "when a cell has spoilt something. What the cells sent elsewhere is not undone.",
        arguments.Undo,
        actions.undo,
        answers.UndoneCells,
        destroys=True,
    ),
    McpTool(
        "rewind",
        "Go back to a point",
        "Bring a sandbox back to the state after a cell that history lists as kept. Its current state is lost.",
        arguments.Rewind,
        actions.rewind,
        answers.UndoneCells,
        destroys=True,
    ),
    McpTool(
        "list_files",
        "List files",
        toolbox.LIST_FILES,
        arguments.ListFiles,
        actions.list_files,
        answers.ListedFiles,
        reads_only=True,
    ),
    McpTool("read_file", "Read a file", toolbox.READ_FILE, arguments.ReadFile, actions.read, reads_only=True),
    McpTool("write_file", "Write a file", toolbox.WRITE_FILE, arguments.WriteFile, actions.write, destroys=True),
    McpTool(
        "list_sandboxes",
        "List sandboxes",
        "Your sandboxes, forks and snapshots, with their ids.",
        arguments.ListSandboxes,
        actions.list_sandboxes,
        answers.ListedSandboxes,
        reads_only=True,
    ),
    McpTool(
        "create_sandbox",
        "Make a sandbox",
        "Make another sandbox, empty or from a snapshot. The default one is made automatically: use this only for "
        "work that must be kept apart.",
        arguments.CreateSandbox,
        actions.create_sandbox,
        answers.MadeSandbox,
    ),
    McpTool(
        "close_sandbox",
        "Close a sandbox",
        "End a sandbox or fork that you no longer need. Its variables and files are lost.",
        arguments.CloseSandbox,
        actions.close_sandbox,
        destroys=True,
    ),
)
