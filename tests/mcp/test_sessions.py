"""Clients do not see each other's sandboxes, and what they had ends with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mcp import Client

from ramet import Sandbox
from tests.behaviour.waiting import wait_until
from tests.lifetime.programs import Program, Watch, groups_of, mounts
from tests.mcp.clients import WAIT_SECONDS, Talk, client_program, http_server, talking, text_of
from tests.processes import command_line, descendants
from tests.server.running import running_server


@pytest.fixture(scope="module")
def ramet_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server of sandboxes, at which it can be seen what there is."""
    with running_server(tmp_path_factory.mktemp("ramet")) as server:
        yield server.url


def nothing_at(url: str) -> Callable[[], bool]:
    return lambda: Sandbox.list_all(url=url) == []


@pytest.mark.parametrize("transport", ["http", "http-without-sessions"])
async def test_two_clients_do_not_see_each_other(server_url: str, tmp_path: Path, transport: str) -> None:
    async with (
        talking(transport, server_url, tmp_path / "log") as one,
        talking(transport, server_url, tmp_path / "log") as other,
    ):
        await one.call("run_python", code="secret = 'of one'")
        await other.call("run_python", code="secret = 'of another'")
        assert one.sandbox != other.sandbox
        assert await one.text("run_python", code="secret") == "value: 'of one'"
        taken = (await one.structure("snapshot"))["snapshot"]
        listed = await other.structure("list_sandboxes")
        assert [row["id"] for row in listed["sandboxes"]] == [other.sandbox]
        assert listed["snapshots"] == []
        for tool, arguments in [
            ("diff", {"other": one.sandbox}),
            ("merge_into", {"winner": one.sandbox}),
            ("restore", {"snapshot": taken}),
        ]:
            refused = await other.call(tool, **arguments)
            assert refused.is_error
            assert "this session has no" in text_of(refused)
        assert await one.text("run_python", code="secret") == "value: 'of one'"


async def test_a_session_does_not_open_sandboxes_of_others_by_their_id(server_url: str, tmp_path: Path) -> None:
    """Whoever has sessions has only those; without them the id is what a client has."""
    log = tmp_path / "log"
    async with (
        talking("http", server_url, log) as one,
        talking("http", server_url, log) as other,
        talking("http-without-sessions", server_url, log) as third,
    ):
        await one.call("run_python", code="x = 1")
        await third.call("run_python", code="x = 3")
        for stranger in (other, third):
            refused = await stranger.call("run_python", sandbox=one.sandbox, code="x")
            assert refused.is_error
            assert one.sandbox is not None
            assert one.sandbox in text_of(refused)
        assert (await one.call("run_python", sandbox=third.sandbox, code="x")).is_error


async def test_a_client_without_sessions_is_told_which_sandbox_it_got(server_url: str, tmp_path: Path) -> None:
    async with talking("http-without-sessions", server_url, tmp_path / "log") as talk:
        made = await talk.call("run_python", code="x = 1")
        assert made.content[-1].type == "text"
        assert f"(sandbox {talk.sandbox}: give this id" in made.content[-1].text
        assert len((await talk.call("run_python", code="x")).content) == 1
        fresh = await talk.client.call_tool("run_python", {"code": "'x' in globals()"})
        assert text_of(fresh) == "value: False"
        (child,) = (await talk.structure("fork"))["children"]
        found = (await talk.structure("list_sandboxes", sandbox=child))["sandboxes"]
        assert [row["id"] for row in found] == [talk.sandbox, child]


async def test_a_session_that_a_client_ends_leaves_nothing(ramet_url: str) -> None:
    with http_server("--url", ramet_url) as server:
        async with Client(server.url) as client:
            talk = Talk(client, names=False)
            await talk.call("run_python", code="x = 1")
            await talk.call("fork", n=2)
            await talk.call("snapshot")
            assert len(await asyncio.to_thread(Sandbox.list_all, url=ramet_url)) == 3
        await asyncio.to_thread(wait_until, nothing_at(ramet_url), "the sandboxes are closed")


@pytest.mark.deep("restarts")
@pytest.mark.parametrize("transport", ["http", "http-without-sessions"])
async def test_a_session_that_is_not_used_ends(ramet_url: str, tmp_path: Path, transport: str) -> None:
    """Its client is killed in the middle of a cell, and says nothing any more."""
    with http_server("--url", ramet_url, "--idle-timeout", "0.5") as server:
        mode = "auto" if transport == "http" else "2026-07-28"
        program = Program(client_program(server.url, mode), tmp_path / "program")
        try:
            program.until("ready")
            assert len(await asyncio.to_thread(Sandbox.list_all, url=ramet_url)) >= 1
            program.process.kill()
            await asyncio.to_thread(wait_until, nothing_at(ramet_url), "the sandboxes are closed")
        finally:
            program.close()
        async with talking(transport, server.url, tmp_path / "log") as talk:
            assert await talk.text("run_python", code="6 * 7") == "value: 42"


@pytest.mark.deep("load")
async def test_a_session_that_is_used_goes_on(tmp_path: Path) -> None:
    """A cell that takes longer than the idle time keeps its session. Time is the subject: twice that time is enough."""
    with http_server("--idle-timeout", "0.3") as server:
        async with talking("http", server.url, tmp_path / "log") as talk:
            assert await talk.text("run_python", code="import time; time.sleep(0.6); x = 1; x") == "value: 1"
            assert await talk.text("run_python", code="x") == "value: 1"


@pytest.mark.deep("restarts")
async def test_a_server_that_is_told_to_stop_closes_what_there_is(ramet_url: str) -> None:
    with http_server("--url", ramet_url) as server:
        async with Client(server.url, mode="2026-07-28") as client:
            await client.call_tool("run_python", {"code": "x = 1"})
        assert len(await asyncio.to_thread(Sandbox.list_all, url=ramet_url)) == 1
        assert await asyncio.to_thread(server.stop) == 0
        assert nothing_at(ramet_url)()


@pytest.mark.deep("restarts")
@pytest.mark.parametrize("end", ["is told to end", "is killed"])
def test_nothing_is_left_of_a_server_whose_client(tmp_path: Path, end: str) -> None:
    mounted = mounts()
    program = Program(client_program(None), tmp_path / "program")
    try:
        program.until("ready")
        (server,) = [pid for pid in descendants(program.process.pid) if b"\0mcp\0" in command_line(pid)][:1]
        watch = Watch([server, *descendants(server)])
        assert len(watch) > 3
        if end == "is killed":
            program.process.kill()
        else:
            program.process.terminate()
        program.process.wait(WAIT_SECONDS)
        watch.wait_until_all_ended()
        assert groups_of(server) == []
        assert mounts() <= mounted
    finally:
        program.close()


@pytest.mark.deep("restarts")
async def test_sandboxes_at_a_server_end_with_a_client_over_stdio(ramet_url: str, tmp_path: Path) -> None:
    async with talking("stdio", None, tmp_path / "log", "--url", ramet_url) as talk:
        await talk.call("run_python", code="x = 1")
        assert [row.id for row in await asyncio.to_thread(Sandbox.list_all, url=ramet_url)] == [talk.sandbox]
    await asyncio.to_thread(wait_until, nothing_at(ramet_url), "the sandbox is closed")


@pytest.mark.deep("restarts")
async def test_a_sandbox_that_ended_by_itself_is_told_and_replaced(ramet_url: str, tmp_path: Path) -> None:
    async with talking("stdio", None, tmp_path / "log", "--url", ramet_url) as talk:
        await talk.call("run_python", code="x = 1")
        assert talk.sandbox is not None
        ended = await asyncio.to_thread(Sandbox.connect, talk.sandbox, url=ramet_url)
        await asyncio.to_thread(ended.close)
        told = await talk.call("run_python", code="x")
        assert told.is_error
        assert talk.sandbox in text_of(told)
        assert await talk.text("run_python", code="'x' in globals()") == "value: False"
