"""Code that runs over MCP: state, output, images, errors, progress, cancelling; the same over every transport."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from mcp import types

from tests.mcp.clients import WAIT_SECONDS, about, talking, text_of
from tests.mcp.conftest import Connect

PLOT = """
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
"""


@pytest.mark.every_face
async def test_variables_files_and_folders_stay_between_calls(connect: Connect) -> None:
    async with connect() as talk:
        assert await talk.text("run_python", code="x = 6\nprint('hi')\nx * 7") == "hi\nvalue: 42"
        assert await talk.text("run_python", code="x + 1") == "value: 7"
        assert await talk.text("run_bash", command="echo from bash > note.txt; pwd") == "/root"
        assert await talk.text("run_python", code="print(open('note.txt').read())") == "from bash"
        assert await talk.text("run_python", code="y = 1") == "(no output)"


async def test_an_error_is_an_error_and_keeps_variables(connect: Connect) -> None:
    async with connect() as talk:
        await talk.call("run_python", code="x = 6")
        failed = await talk.call("run_python", code="print('before')\nx / 0")
        assert failed.is_error
        assert text_of(failed).startswith("before\nstderr:\nTraceback")
        assert text_of(failed).endswith("ZeroDivisionError: division by zero")
        assert (about(failed)["exit_code"], about(failed)["error"]) == (1, "ZeroDivisionError")
        assert await talk.text("run_python", code="x") == "value: 6"
        failed = await talk.call("run_bash", command="echo no >&2; exit 3")
        assert (failed.is_error, text_of(failed)) == (True, "stderr: no\n(exit code 3)")
        failed = await talk.call("run_python", code="!exit 3\nx")
        assert (failed.is_error, text_of(failed)) == (True, "value: 6\n(!exit 3 ended with exit code 3)")


async def test_a_plot_comes_back_as_an_image(connect: Connect) -> None:
    async with connect() as talk:
        made = await talk.call("run_python", code=PLOT)
        images = [one for one in made.content if isinstance(one, types.ImageContent)]
        assert [one.mime_type for one in images] == ["image/png"]
        assert base64.b64decode(images[0].data).startswith(b"\x89PNG\r\n")
        assert "(1 image)" in text_of(made)


@pytest.mark.every_face
async def test_a_timeout_interrupts_and_keeps_variables(connect: Connect) -> None:
    async with connect() as talk:
        await talk.call("run_python", code="import time; x = 6")
        late = await talk.call("run_python", code="time.sleep(3600)", timeout_seconds=0.2)
        assert late.is_error
        assert "interrupted at its timeout" in text_of(late)
        assert (about(late)["cause"], about(late)["state"]) == ("timeout", "kept")
        assert await talk.text("run_python", code="x") == "value: 6"


async def test_a_dead_interpreter_is_told(connect: Connect) -> None:
    async with connect() as talk:
        await talk.call("run_python", code="x = 6")
        async with asyncio.timeout(WAIT_SECONDS):
            while not (await talk.structure("history"))["points"][-1]["kept"]:
                await asyncio.sleep(0.01)  # until it has been idle for a moment
        dead = await talk.call("run_python", code="import os; os._exit(3)")
        assert dead.is_error
        assert "Python ended: it exited with code 3. The sandbox was restored to the state after cell" in text_of(dead)
        assert await talk.text("run_python", code="x") == "value: 6"
        # The first cell has no state before it that is worth more than the files.
        other = (await talk.structure("create_sandbox"))["sandbox"]
        dead = await talk.call("run_python", sandbox=other, code="import os; os._exit(3)")
        assert "the sandbox's Python ended: it exited with code 3. Its variables, imports" in text_of(dead)
        after = await talk.call("run_python", sandbox=other, code="'x' in globals()")
        assert text_of(after).startswith("value: False\nstderr: ramet: this cell started in a fresh Python")
        assert "fresh Python" not in await talk.text("run_python", sandbox=other, code="1")


async def test_an_interpreter_that_died_between_two_calls_is_told_by_the_next(connect: Connect) -> None:
    async with connect() as talk:
        await talk.call("run_python", code="import os, threading; threading.Timer(0.2, os._exit, (5,)).start()")
        async with asyncio.timeout(WAIT_SECONDS):
            while "ended: it exited with code 5" not in (text := text_of(await talk.call("run_python", code="os.sep"))):
                assert text == "value: '/'"


async def test_long_output_is_cut_in_the_middle(connect: Connect) -> None:
    async with connect() as talk:
        text = await talk.text("run_python", code="print('begin'); print('x' * 100_000); print('end')")
        assert text.startswith("begin\nxxx")
        assert text.endswith("xxx\nend")
        assert "80011 characters left out" in text
        assert len(text) < 21_000
        text = await talk.text("run_python", code="'y' * 100_000")
        assert text.startswith("value:\n'yyy")
        assert len(text) < 8_000


@pytest.mark.every_face
async def test_progress_tells_what_is_printed_while_it_runs(connect: Connect) -> None:
    """The cell goes on when a report of its first line has arrived: it was told while the cell ran."""
    async with connect() as talk:
        await talk.call("run_python", code="import os, time")
        reports: list[tuple[float, str | None]] = []
        arrived = asyncio.Event()

        async def progress(count: float, total: float | None, message: str | None) -> None:
            reports.append((count, message))
            arrived.set()

        code = "print('first')\nwhile not os.path.exists('/root/go'): time.sleep(0.005)\nprint('second'); 6 * 7"
        running = asyncio.create_task(talk.call("run_python", progress=progress, code=code))
        await asyncio.wait_for(arrived.wait(), WAIT_SECONDS)
        assert reports[0] == (6.0, "first\n")
        await talk.call("write_file", path="/root/go", content="")
        made = await asyncio.wait_for(running, WAIT_SECONDS)
        assert text_of(made) == "first\nsecond\nvalue: 42"
        counts = [count for count, _ in reports]
        assert counts == sorted(set(counts))


@pytest.mark.parametrize("watched", [False, True])
async def test_what_a_cell_has_cleared_is_not_told(connect: Connect, watched: bool) -> None:
    async def progress(count: float, total: float | None, message: str | None) -> None:
        pass

    code = "from IPython.display import clear_output\nfor n in 0, 1, 2:\n    clear_output(wait=True)\n    print(n)"
    async with connect() as talk:
        made = await talk.call("run_python", **({"progress": progress} if watched else {}), code=code)
        assert text_of(made) == "2"


@pytest.mark.deep("restarts")
async def test_a_plot_and_an_error_come_back_with_progress_too(connect: Connect) -> None:
    async with connect() as talk:

        async def progress(count: float, total: float | None, message: str | None) -> None:
            pass

        made = await talk.call("run_python", progress=progress, code=PLOT)
        assert [one.type for one in made.content[:2]] == ["text", "image"]
        made = await talk.call("run_python", progress=progress, code="print('x' * 100_000)\n1 / 0")
        assert made.is_error
        assert "characters left out" in text_of(made)
        assert text_of(made).endswith("ZeroDivisionError: division by zero")


@pytest.mark.every_face
async def test_cancelling_a_request_interrupts_its_cell(connect: Connect) -> None:
    async with connect() as talk:
        await talk.call("run_python", code="import os, time; x = 6; interrupted = False")
        code = """
            try:
                open('/root/begun', 'w').close()
                time.sleep(3600)
            except KeyboardInterrupt:
                interrupted = True
        """
        running = asyncio.create_task(talk.call("run_python", code=code))
        while "begun" not in await talk.text("list_files"):
            assert not running.done()
        running.cancel()
        await asyncio.wait([running], timeout=WAIT_SECONDS)
        assert running.cancelled()
        after = await asyncio.wait_for(talk.text("run_python", code="x, interrupted"), WAIT_SECONDS)
        assert after == "value: (6, True)"


async def test_wrong_arguments_are_told_to_the_model(connect: Connect) -> None:
    async with connect() as talk:
        wrong: list[tuple[str, dict[str, Any], str]] = [
            ("run_python", {}, "code: Field required"),
            ("run_python", {"code": "1", "cell": 2}, "cell: Extra inputs are not permitted"),
            ("run_python", {"code": "1", "timeout_seconds": 0}, "timeout_seconds: Input should be greater than 0"),
            ("fork", {"n": 1000}, "n: Input should be less than or equal to 32"),
            ("read_file", {"path": "nothing.txt"}, "nothing.txt"),
            ("write_file", {"path": "a", "content": "?", "encoding": "base64"}, "content must be base64"),
            ("close_sandbox", {"sandbox": "sbx_0"}, "sbx_0"),
        ]
        for tool, arguments, said in wrong:
            made = await talk.client.call_tool(tool, arguments)
            assert made.is_error
            assert said in text_of(made)


async def test_tools_are_described_for_models(connect: Connect) -> None:
    async with connect() as talk:
        tools = {tool.name: tool for tool in (await talk.client.list_tools()).tools}
        assert set(tools) == {
            *("run_python", "run_bash", "list_files", "read_file", "write_file"),
            *("fork", "diff", "merge_into", "snapshot", "restore", "history", "undo", "rewind"),
            *("create_sandbox", "list_sandboxes", "close_sandbox"),
        }
        assert all(tool.description for tool in tools.values())
        assert "sandbox" in tools["run_python"].input_schema["properties"]
        assert tools["run_python"].input_schema["required"] == ["code"]
        assert "title" not in str(tools["run_python"].input_schema)
        assert tools["fork"].output_schema is not None


@pytest.mark.deep("restarts")
async def test_models_are_told_how_to_use_it(server_url: str, tmp_path: Path) -> None:
    for transport in ("stdio", "stdio-handshake", "http"):
        async with talking(transport, server_url, tmp_path / "server.log") as talk:
            assert "keep their state" in (talk.client.instructions or "")


@pytest.mark.deep("restarts")
async def test_an_older_client_over_stdio(tmp_path: Path) -> None:
    async with talking("stdio-handshake", None, tmp_path / "server.log") as talk:
        assert talk.client.protocol_version == "2025-11-25"
        await talk.text("run_python", code="x = 6")
        running = asyncio.create_task(talk.call("run_python", code="open('begun', 'w')\nwhile True: pass"))
        while "begun" not in await talk.text("list_files"):
            assert not running.done()
        running.cancel()
        await asyncio.wait([running], timeout=WAIT_SECONDS)
        (child,) = (await talk.structure("fork"))["children"]
        assert await talk.text("run_python", sandbox=child, code="x") == "value: 6"
