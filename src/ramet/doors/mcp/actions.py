"""The action of each tool, carried out in the session of the client that calls it."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from mcp import types

from ramet import AsyncSandbox, InvalidArgument, Undone
from ramet.doors.mcp import answers, arguments
from ramet.doors.mcp.answers import answer
from ramet.doors.mcp.cells import Report, run_cell
from ramet.doors.mcp.sessions import McpSession
from ramet.integrations.bounding import bounded
from ramet.integrations.faces import AsyncFace
from ramet.integrations.reading import LOOKED_AT_BYTES, read_file, show_files, write_file
from ramet.integrations.results import PRINTED_CHARACTERS, Shown

Answer = types.CallToolResult


@dataclass(slots=True)
class ToolRequest:
    """One call of a tool in progress."""

    session: McpSession
    report: Report | None  # None: the client did not ask for progress
    sandbox_id: str | None = None  # the sandbox that the call used, once it is known

    async def sandbox(self, given: arguments.InSandbox) -> AsyncSandbox:
        """The named sandbox, or the default one. Raises InvalidArgument if the session has no such sandbox."""
        sandbox = await self.session.sandbox(given.sandbox)
        self.sandbox_id = sandbox.id
        return sandbox


async def run_python(call: ToolRequest, given: arguments.RunPython) -> Answer:
    sandbox = await call.sandbox(given)
    return answer(await run_cell(sandbox, given.code, "python", given.timeout_seconds, call.report))


async def run_bash(call: ToolRequest, given: arguments.RunBash) -> Answer:
    sandbox = await call.sandbox(given)
    return answer(await run_cell(sandbox, given.command, "bash", given.timeout_seconds, call.report))


async def create_sandbox(call: ToolRequest, given: arguments.CreateSandbox) -> Answer:
    call.sandbox_id = (await call.session.create(given.snapshot)).id
    return answer(Shown(f"new sandbox {call.sandbox_id}"), answers.MadeSandbox(sandbox=call.sandbox_id))


async def list_sandboxes(call: ToolRequest, given: arguments.ListSandboxes) -> Answer:
    infos = await call.session.infos()
    listed = [answers.ListedSandbox.of(info, call.session.default_id) for info in infos]
    lines = [
        f"sandbox {one.id}{' (default)' if one.default else ''}: {one.state}, {one.memory_bytes >> 20} MiB"
        f"{f', fork of {one.parent}' if one.parent else ''}"
        for one in listed
    ]
    snapshots = call.session.snapshot_ids
    lines += [f"snapshot {one}" for one in snapshots]
    structure = answers.ListedSandboxes(sandboxes=listed, snapshots=snapshots)
    return answer(Shown("\n".join(lines) or "no sandboxes yet; the first call that needs one creates it"), structure)


async def close_sandbox(call: ToolRequest, given: arguments.CloseSandbox) -> Answer:
    await call.session.close_sandbox(given.sandbox)
    return answer(Shown(f"sandbox {given.sandbox} is closed"))


async def fork(call: ToolRequest, given: arguments.Fork) -> Answer:
    sandbox = await call.sandbox(given)
    children = [child.id for child in await call.session.fork(sandbox, given.n, given.reseed)]
    text = "\n".join([f"forks of {sandbox.id}:", *children])
    return answer(Shown(text), answers.ForkAnswer(sandbox=sandbox.id, children=children))


async def diff(call: ToolRequest, given: arguments.DiffArguments) -> Answer:
    sandbox = await call.sandbox(given)
    found = await sandbox.diff(await call.session.sandbox(given.other), given.paths)
    text = f"what {given.other} has that {sandbox.id} has not:\n{found}"
    structure = answers.Differences.of(found, sandbox.id, given.other)
    return answer(Shown(bounded(text, PRINTED_CHARACTERS)), structure)


async def merge_into(call: ToolRequest, given: arguments.MergeInto) -> Answer:
    sandbox = await call.sandbox(given)
    await call.session.merge(sandbox, given.winner)
    text = f"sandbox {sandbox.id} now has the state of {given.winner}; {given.winner} no longer exists"
    return answer(Shown(text), answers.MadeSandbox(sandbox=sandbox.id))


async def snapshot(call: ToolRequest, given: arguments.SnapshotArguments) -> Answer:
    sandbox = await call.sandbox(given)
    taken = await call.session.snapshot(sandbox)
    structure = answers.TakenSnapshot(sandbox=sandbox.id, snapshot=taken.id)
    return answer(Shown(f"snapshot {taken.id} of sandbox {sandbox.id}"), structure)


async def restore(call: ToolRequest, given: arguments.Restore) -> Answer:
    sandbox = await call.sandbox(given)
    await call.session.restore(sandbox, given.snapshot)
    structure = answers.TakenSnapshot(sandbox=sandbox.id, snapshot=given.snapshot)
    return answer(Shown(f"sandbox {sandbox.id} is as it was at snapshot {given.snapshot}"), structure)


async def history(call: ToolRequest, given: arguments.HistoryArguments) -> Answer:
    sandbox = await call.sandbox(given)
    found = await sandbox.history()
    structure = answers.ListedHistory(
        sandbox=sandbox.id, points=[answers.ListedPoint.of(point) for point in found], note=found.note
    )
    return answer(Shown(str(found) or "no history"), structure)


async def undo(call: ToolRequest, given: arguments.Undo) -> Answer:
    sandbox = await call.sandbox(given)
    return _went_back(sandbox, await sandbox.undo(given.n))


async def rewind(call: ToolRequest, given: arguments.Rewind) -> Answer:
    sandbox = await call.sandbox(given)
    return _went_back(sandbox, await sandbox.rewind(given.point))


def _went_back(sandbox: AsyncSandbox, undone: Undone) -> Answer:
    structure = answers.UndoneCells(
        sandbox=sandbox.id,
        point=undone.point.id,
        undone_cells=list(undone.cell_ids),
        tool_calls=list(undone.tool_calls),
        connections=list(undone.connections),
    )
    return answer(Shown(f"sandbox {sandbox.id} is {undone}"), structure)


async def list_files(call: ToolRequest, given: arguments.ListFiles) -> Answer:
    sandbox = await call.sandbox(given)
    entries = await sandbox.files.list(given.path)
    return answer(show_files(entries), answers.ListedFiles.of(given.path, entries))


async def read(call: ToolRequest, given: arguments.ReadFile) -> Answer:
    face = AsyncFace(await call.sandbox(given))
    if given.encoding == "text":
        return answer(await read_file(face, given.path, given.first_line, given.line_count))
    data = await face.read(given.path, LOOKED_AT_BYTES + 1)
    if len(data) > LOOKED_AT_BYTES:
        text = f"{given.path}: more than {LOOKED_AT_BYTES} bytes; read it in parts, with code"
        return answer(Shown(text, failed=True))
    made = answer(Shown(f"{given.path}: {len(data)} bytes"))
    blob = types.BlobResourceContents(
        uri=f"sandbox://{call.sandbox_id}/{given.path.lstrip('/')}",
        mime_type="application/octet-stream",
        blob=base64.b64encode(data).decode("ascii"),
    )
    made.content.append(types.EmbeddedResource(resource=blob))
    return made


async def write(call: ToolRequest, given: arguments.WriteFile) -> Answer:
    face = AsyncFace(await call.sandbox(given))
    return answer(await write_file(face, given.path, _bytes(given)))


def _bytes(given: arguments.WriteFile) -> bytes:
    if given.encoding == "text":
        return given.content.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(given.content, validate=True)
    except binascii.Error as error:
        raise InvalidArgument(f"content must be base64: {error}") from error
