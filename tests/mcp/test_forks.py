"""Forks, snapshots and several sandboxes over MCP; the same over every transport."""

from __future__ import annotations

import asyncio

from tests.mcp.clients import Talk, text_of
from tests.mcp.conftest import Connect


async def ids(talk: Talk) -> list[str]:
    return [one["id"] for one in (await talk.structure("list_sandboxes"))["sandboxes"]]


async def test_forks_are_tried_compared_and_the_best_is_kept(connect: Connect) -> None:
    async with connect() as talk:
        await talk.call("run_python", code="data = list(range(10)); answer = None")
        forked = await talk.structure("fork", n=2)
        first, second = forked["children"]
        await talk.call("run_python", sandbox=first, code="answer = sum(data)")
        await talk.call("run_python", sandbox=second, code="answer = max(data); open('made.txt', 'w').write('x')")
        assert await talk.text("run_python", code="print(answer)") == "None"

        differing = await talk.structure("diff", other=second)
        assert [(one["path"], one["change"]) for one in differing["files"]] == [("/root/made.txt", "added")]
        assert [(one["name"], one["change"]) for one in differing["names"]] == [("answer", "changed")]
        assert "answer: NoneType None -> int 9" in await talk.text("diff", other=second)
        assert (await talk.structure("diff", other=second, paths=["/tmp"]))["files"] == []

        await talk.call("merge_into", winner=first)
        assert await talk.text("run_python", code="answer") == "value: 45"
        assert await ids(talk) == [forked["sandbox"], second]
        gone = await talk.call("run_python", sandbox=first, code="1")
        assert gone.is_error
        assert first in text_of(gone)


async def test_forks_can_have_randomness_of_their_own(connect: Connect) -> None:
    async with connect() as talk:
        await talk.call("run_python", code="import random; random.seed(1)")
        children = (await talk.structure("fork", n=2, reseed=True))["children"]
        drawn = {await talk.text("run_python", sandbox=child, code="random.random()") for child in children}
        assert len(drawn) == 2


async def test_a_snapshot_is_gone_back_to_and_begun_from(connect: Connect) -> None:
    async with connect() as talk:
        await talk.call("run_python", code="x = 1; open('note.txt', 'w').write('first')")
        taken = (await talk.structure("snapshot"))["snapshot"]
        await talk.call("run_python", code="x = 2; open('note.txt', 'w').write('second')")
        other = (await talk.structure("create_sandbox", snapshot=taken))["sandbox"]
        assert await talk.text("run_python", sandbox=other, code="x") == "value: 1"
        await talk.call("restore", snapshot=taken)
        assert await talk.text("run_python", code="x, open('note.txt').read()") == "value: (1, 'first')"
        assert (await talk.structure("list_sandboxes"))["snapshots"] == [taken]


async def test_sandboxes_are_listed_and_closed(connect: Connect) -> None:
    async with connect() as talk:
        await talk.call("run_python", code="x = 1")
        (child,) = (await talk.structure("fork"))["children"]
        listed = (await talk.structure("list_sandboxes"))["sandboxes"]
        assert [(one["id"], one["default"], one["parent"]) for one in listed] == [
            (talk.sandbox, True, None),
            (child, False, talk.sandbox),
        ]
        assert f"sandbox {talk.sandbox} (default): idle" in await talk.text("list_sandboxes")
        await talk.call("close_sandbox", sandbox=child)
        assert await ids(talk) == [talk.sandbox]
        assert (await talk.call("run_python", sandbox=child, code="1")).is_error


async def test_a_default_sandbox_that_was_closed_is_made_again(connect: Connect) -> None:
    async with connect() as talk:
        await talk.call("run_python", code="x = 1")
        await talk.call("close_sandbox", sandbox=talk.sandbox)
        talk.sandbox = None
        assert await talk.text("run_python", code="'x' in globals()") == "value: False"


async def test_cells_are_listed_and_taken_back(connect: Connect) -> None:
    async with connect() as talk:
        await talk.call("run_python", code="x = 1")
        async with asyncio.timeout(60):  # a state is kept when the sandbox has been idle for a moment
            while not (await talk.structure("history"))["points"][-1]["kept"]:
                await asyncio.sleep(0.02)
        await talk.call("run_python", code="x = 2")
        listed = await talk.structure("history")
        assert [point["code"] for point in listed["points"]][-2:] == ["x = 1", "x = 2"]
        undone = await talk.structure("undo")
        assert undone["undone_cells"] == [listed["points"][-1]["cell"]]
        assert await talk.text("run_python", code="x") == "value: 1"
        first = listed["points"][0]["id"]
        assert f"back at {first}" in await talk.text("rewind", point=first)
        assert (await talk.call("run_python", code="x")).is_error
        refused = await talk.call("rewind", point="p1000")
        assert refused.is_error
        assert "there is no point" in text_of(refused)
