"""Carries out one call of a server tool in a sandbox: from the model's input to the block for the client."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ramet import AsyncSandbox, Language, Result
from ramet.doors.gateway.containers.kept_sandbox import LOST
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.files.store import FileStore
from ramet.doors.gateway.running import cell_reports
from ramet.doors.gateway.running.blocks import EDITOR, execution_result, tool_result
from ramet.doors.gateway.running.cell_run import CellRun
from ramet.doors.gateway.running.outcomes import Finished
from ramet.doors.gateway.running.outputs import Outputs, Taking
from ramet.doors.gateway.running.text_editor import edit
from ramet.errors import InvalidArgument, LimitReached, RametError

# The language of each tool, and the field of its input that holds the code.
_LANGUAGES: dict[str, tuple[Language, str]] = {
    "code_execution": ("python", "code"),
    "bash_code_execution": ("bash", "command"),
}


@dataclass(frozen=True, slots=True)
class ExecutionPlace:
    """Where a call is carried out: the parts of a container that this needs."""

    container: str
    owner: str
    sandbox: AsyncSandbox
    files: FileStore
    outputs: Outputs
    settings: ContainerSettings
    carried_out: Callable[[CellRun, float, Finished], None]  # the float is the duration in seconds
    lost: Callable[[RametError], object]
    went_back: Callable[[], None]  # to an earlier state
    notice: Callable[[], str]  # text for the next cell's stderr, returned once


async def carry_out(run: CellRun, place: ExecutionPlace) -> Finished:
    """Carry out a call. Everything that the code or a broken sandbox can do becomes an outcome."""
    began = time.monotonic()
    try:
        finished = await _carry_out(run, place)
    except InvalidArgument as error:
        finished = run.fail("invalid_tool_input", error.message)
    except LimitReached as error:
        finished = run.fail("too_many_requests", error.message)
    except LOST as error:
        goes_on = "" if place.lost(error) else "; the next call goes on from its last state on disk, if there is one"
        finished = run.fail("unavailable", error.message + goes_on)
    except RametError as error:
        finished = run.fail("unavailable", error.message)
    place.carried_out(run, time.monotonic() - began, finished)
    return finished


async def _carry_out(run: CellRun, place: ExecutionPlace) -> Finished:
    request = run.request
    if request.name == EDITOR:
        edited = await edit(place.sandbox.files, request.input)
        return Finished(tool_result(request.name, request.tool_use_id, edited.content), edited.model_text)
    if request.name not in _LANGUAGES:
        return run.fail("invalid_tool_input", f"there is no tool {request.name!r}")
    language, field = _LANGUAGES[request.name]
    code = request.input.get(field)
    if not isinstance(code, str):
        return run.fail("invalid_tool_input", f"{field!r} must be there, and be a string")
    prepared = await place.outputs.prepare(place.sandbox)
    run.time.go()
    try:
        result = await place.sandbox.run_code(code, language)
    finally:
        run.time.stop()
    if _is_another_repl(result) or (prepared is not None and _is_another_repl(prepared)):
        place.went_back()
    taking = Taking(place.files, place.settings.outputs, place.owner, place.container)
    await taking.take_images(cell_reports.images(result))
    await place.outputs.take(place.sandbox, taking)
    return await _told(run, place, result, taking, prepared)


def _is_another_repl(result: Result) -> bool:
    """Whether the REPL ended in the cell or before it. One that was restored may know an earlier folder for outputs."""
    return result.state != "kept" or result.restarted or result.restored


async def _told(
    run: CellRun, place: ExecutionPlace, result: Result, taking: Taking, prepared: Result | None
) -> Finished:
    """The outcome of a cell. ``prepared`` is the result of our own cell before it, whose output is reported as well."""
    request, truncated = run.request, result.truncated
    paths = (None, None) if truncated is None else (truncated.stdout_path, truncated.stderr_path)
    background = "" if prepared is None else prepared.background
    # A container that came back in an earlier state says itself what is missing, in words that a model knows.
    notice = place.notice()
    loss = prepared.stderr if prepared is not None and _is_another_repl(prepared) and not notice else ""
    stdout = await _bounded(place, result, "stdout", background + cell_reports.shown_text(result), paths[0])
    stderr = await _bounded(place, result, "stderr", notice + loss + result.stderr, paths[1])
    return_code = result.exit_code
    if run.timed_out and result.interrupted:
        stderr = cell_reports.noted(stderr, cell_reports.time_note(run.limits.cell_seconds))
        return_code = return_code or 1
    notes = taking.notes()
    if taking.too_large and request.name == "bash_code_execution":
        failed = run.fail("output_file_too_large", " ".join(notes))
        text = cell_reports.model_text(
            stdout, "\n".join([stderr.rstrip("\n"), *notes]).strip(), return_code, taking.rows
        )
        return Finished(failed.block, f"error: output_file_too_large\n{text}", run.hidden_chars)
    for note in notes:
        stderr = cell_reports.noted(stderr, note)
    content = execution_result(request.name, stdout, stderr, return_code, [row.id for row in taking.rows])
    return Finished(
        tool_result(request.name, request.tool_use_id, content),
        cell_reports.model_text(stdout, stderr, return_code, taking.rows),
        run.hidden_chars,
    )


async def _bounded(place: ExecutionPlace, result: Result, stream: str, text: str, whole: str | None) -> str:
    """The part of a stream that client and model get. A file in the sandbox holds all of it, if there is room."""
    characters = place.settings.output_characters
    if len(text) > characters and whole is None:
        whole = f"/tmp/{stream}-of-cell-{result.cell_id}.txt"
        try:
            await place.sandbox.files.write(whole, text.encode("utf-8", "replace"))
        except RametError:
            whole = None
    return cell_reports.bounded(text, characters, whole)
