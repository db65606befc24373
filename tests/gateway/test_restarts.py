"""Containers outlive the gateway, its engine and the server behind it, and say what is missing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anthropic
import pytest

from ramet import AsyncSandbox
from ramet.doors.gateway.code_side import CodeSide
from ramet.doors.gateway.containers.container import Container
from ramet.doors.gateway.containers.refusals import ContainerExpired
from ramet.doors.gateway.containers.settings import ContainerSettings
from tests.gateway.clients import CODE_TOOL, KEY, Asking, results, said, user, weather_tool
from tests.gateway.commands import WAIT_SECONDS, Started, started
from tests.gateway.rooms import ALICE, carried_out, content, forget_all, pieces
from tests.gateway.rooms import python as cell
from tests.gateway.upstreams import ScriptedUpstream, python, says
from tests.processes import descendants
from tests.server.running import running_server

QUESTION = user("Count.")
TOOLS = [CODE_TOOL, weather_tool()]


@contextmanager
def asking(gateway: Started) -> Iterator[Asking]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        yield Asking(client, stream=False)


def kill(gateway: Started) -> None:
    """As a machine that goes down does: the gateway and all that it has started, at once."""
    for pid in [gateway.process.pid, *descendants(gateway.process.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    gateway.process.wait(WAIT_SECONDS)


def result(answer: Any) -> tuple[str, str]:
    (found,) = [block.content for block in answer.content if block.type == "code_execution_tool_result"]
    return found.stdout, found.stderr


def images() -> list[str]:
    """Of sandboxes, on disk."""
    names = Path(os.environ["XDG_CACHE_HOME"], "ramet/images/names")
    return sorted(path.name for path in names.glob("space-*")) if names.is_dir() else []


@pytest.mark.deep("restarts")
@pytest.mark.promise("containers-survive")
def test_a_container_outlives_a_stop_and_a_kill_and_says_what_is_missing(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    before = images()
    with started(tmp_path, upstream.url) as gateway, asking(gateway) as ask:
        upstream.will(says(python("x = 41; open('note', 'w').write('kept');")), says("Done."))
        first = ask([QUESTION])
        gateway.process.terminate()
        assert gateway.process.wait(WAIT_SECONDS) == 0
    container = first.container.id
    assert len(images()) == len(before) + 1
    with started(tmp_path, upstream.url) as gateway, asking(gateway) as ask:
        upstream.will(says(python("x += 1; print(x, open('note').read())")), says("42."))
        second = ask("And now?", container=container)
        assert (second.container.id, result(second)) == (container, ("42 kept\n", ""))
        # Code that waits for its client at that moment is gone.
        upstream.will(says(python("x = await get_weather({'location': 'Oslo'})")))
        third = ask("The weather?", TOOLS, container=container)
        kill(gateway)
    with started(tmp_path, upstream.url) as gateway, asking(gateway) as ask:
        upstream.will(says("It is gone."))
        late = ask([user("The weather?"), said(third), results(third, "rain")], TOOLS, container=container)
        assert late.content[0].content.error_code == "unavailable"
        upstream.will(says(python("print(x)")), says("41."))
        again = ask([QUESTION, said(first), user("Now?")])  # found by its history
        stdout, stderr = result(again)
        assert (again.container.id, stdout) == (container, "41\n")
        assert stderr.startswith("[this container came back in an earlier state")
        assert "the last 2 calls is missing" in stderr
        assert "`x += 1; print(x, open('note').read())`, `x = await get_weather({'location': 'Oslo'})`" in stderr
        upstream.will(says(python("print(x)")), says("41."))
        assert result(ask("And now?", container=container)) == ("41\n", "")
        (row,) = ask.client.get("/v1/containers", cast_to=dict[str, Any])["data"]
        assert (row["id"], row["state"]) == (container, "idle")
        described = ask.client.get(f"/v1/containers/{container}", cast_to=dict[str, Any])
        assert [one["code"] for one in described["cells"]][-2:] == ["print(x)"] * 2
        ask.client.delete(f"/v1/containers/{container}", cast_to=object)
        assert images() == before
        with pytest.raises(anthropic.NotFoundError, match="has expired: it was deleted"):
            ask("And now?", container=container)


@contextmanager
def _code_side(folder: Path, settings: ContainerSettings | None = None) -> Iterator[CodeSide]:
    side = CodeSide(folder, settings)
    try:
        yield side
    finally:
        side._store.close()
        side.files.close()


async def shown(container: Container, expression: str) -> str:
    return str(content(await carried_out(container, cell(expression)))["stdout"]).strip()


async def test_files_copies_and_folders_for_outputs_are_as_they_were(tmp_path: Path) -> None:
    with _code_side(tmp_path) as side:
        row = await side.files.add(ALICE, "in.txt", None, pieces(b"in"))
        container = await side.containers.open(ALICE)
        await container.upload([row.id])
        await carried_out(container, cell("import os; x = 1; open(os.environ['OUTPUT_DIR'] + '/a', 'w').close()"))
        (copy,) = await side.containers.fork(ALICE, container.id)
        await carried_out(copy, cell("x = 2"))
        ids, copied = (container.id, copy.id), copy.created_seconds
        await side.containers.close()
    with _code_side(tmp_path) as side:
        found, copy = [await side.containers.open(ALICE, one) for one in ids]
        assert (found.state, copy.state, copy.forked_from, copy.created_seconds) == ("frozen", "frozen", ids[0], copied)
        assert (await shown(found, "x"), await shown(copy, "x")) == ("1", "2")
        assert await found.upload([row.id]) == ["/tmp/inputs/in.txt"]
        assert await shown(found, "open('/tmp/inputs/in.txt').read(), os.listdir(os.environ['OUTPUT_DIR'])") == (
            "('in', [])"
        )
        (cell_id,) = list(copy._cell_ids)[:1]
        assert side.containers.find_by_cells(ALICE, [cell_id]) == copy.id
        await forget_all(side.containers)
        await side.containers.close()


async def test_an_upload_that_came_after_the_state_is_copied_again(tmp_path: Path) -> None:
    with _code_side(tmp_path) as side:
        row = await side.files.add(ALICE, "in.txt", None, pieces(b"in"))
        container = await side.containers.open(ALICE)
        await container.upload([row.id])
        sandbox_id = str(container.stored().sandbox_id)
        sandbox = await AsyncSandbox.connect(sandbox_id)
        await sandbox.files.remove("/tmp/inputs/in.txt")
        await side.containers.close()
    with _code_side(tmp_path) as side:
        container = await side.containers.open(ALICE, container.id)
        assert await shown(container, "1") == "1"
        assert await container.upload([row.id]) == ["/tmp/inputs/in.txt"]
        assert await shown(container, "open('/tmp/inputs/in.txt').read()") == "'in'"
        await forget_all(side.containers)
        await side.containers.close()


async def test_a_sandbox_that_could_not_be_discarded_is_discarded_by_the_next_gateway(tmp_path: Path) -> None:
    before = images()
    with _code_side(tmp_path) as side:
        container = await side.containers.open(ALICE)
        await carried_out(container, cell("x = 1"))
        await side.containers.close()
        # A gateway that is killed right after it has written down that the container was deleted.
        side._store.forget(container.id, ALICE, "it was deleted")
    assert len(images()) == len(before) + 1
    with _code_side(tmp_path) as side:
        with pytest.raises(ContainerExpired, match="it was deleted"):
            await side.containers.open(ALICE, container.id)
        await side.containers.tend()
        assert images() == before
        await side.containers.close()


@pytest.mark.deep("load")
async def test_a_container_goes_on_after_a_restart_of_the_server_behind_it(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        settings, port = ContainerSettings(url=server.url), server.port
        with _code_side(tmp_path, settings) as side:
            container = await side.containers.open(ALICE)
            await carried_out(container, cell("x = 41"))
            await container.freeze()
            assert server.stop() == 0
            server.start(port)
            assert await shown(container, "x + 1") == "42"
            await side.containers.close()
        with _code_side(tmp_path, settings) as side:
            assert await shown(await side.containers.open(ALICE, container.id), "x") == "41"
            await forget_all(side.containers)
            await side.containers.close()
