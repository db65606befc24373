"""Containers: found again by id, frozen and thawed, copied, forgotten, and never another owner's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ramet import AsyncSandbox
from ramet.doors.gateway.containers.registry import (
    ContainerBusy,
    ContainerExpired,
    ContainersFull,
    ContainerUnknown,
)
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.errors import ApiError
from ramet.doors.gateway.files.refusals import FileUnknown
from ramet.doors.gateway.running.outcomes import ClientTool
from tests.gateway.rooms import ALICE, BOB, Place, a_place, bash, carried_out, content, ends, pieces, python, waits


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with a_place(tmp_path) as some:
        yield some


async def shown(container: Any, expression: str) -> str:
    return str(content(await carried_out(container, python(expression)))["stdout"]).strip()


async def test_a_container_is_found_again_by_its_id(place: Place) -> None:
    container = await place.container()
    assert container.id.startswith("container_")
    assert len(container.id) == len("container_") + 24
    await carried_out(container, python("x = 6"))
    again = await place.containers.open(ALICE, container.id)
    assert again is container
    assert await shown(again, "x * 7") == "42"


async def test_an_unknown_container_and_one_of_another_owner_look_the_same(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("x = 6"))
    messages = []
    for container_id in (container.id, "container_" + "0" * 24, "nonsense"):
        with pytest.raises(ContainerUnknown) as refused:
            await place.containers.open(BOB, container_id)
        assert (refused.value.status, refused.value.error_code) == (404, "container_not_found")
        messages.append(refused.value.message.replace(container_id, "X"))
    assert len(set(messages)) == 1
    for asking in (
        place.containers.describe(BOB, container.id),
        place.containers.fork(BOB, container.id, 1),
        place.containers.history(BOB, container.id),
        place.containers.undo(BOB, container.id, 1),
        place.containers.delete(BOB, container.id),
    ):
        with pytest.raises(ContainerUnknown):
            await asking
    assert place.containers.list(BOB) == []
    assert await shown(container, "x") == "6"


async def test_files_of_another_owner_cannot_be_brought_in(place: Place) -> None:
    row = await place.files.add(BOB, "secret.txt", None, pieces(b"x"))
    with pytest.raises(FileUnknown):
        await (await place.container()).upload([row.id])


async def test_a_file_that_does_not_fit_is_a_clear_refusal(tmp_path: Path) -> None:
    async with a_place(tmp_path, ContainerSettings(disk_mib=16)) as place:
        container = await place.container()
        row = await place.files.add(ALICE, "large", None, pieces(*[b"x" * 1024 * 1024] * 32))
        with pytest.raises(ApiError, match="could not be copied into it.*No space left") as refused:
            await container.upload([row.id])
        assert refused.value.status == 400
        assert await shown(container, "6 * 7") == "42"


async def test_a_new_container_costs_no_sandbox_before_its_first_use(place: Place) -> None:
    before = len(await AsyncSandbox.list_all())
    container = await place.container()
    assert (container.state, len(await AsyncSandbox.list_all())) == ("new", before)
    await carried_out(container, python("1"))
    assert (container.state, len(await AsyncSandbox.list_all())) == ("idle", before + 1)


async def test_the_expiry_rolls_with_each_use(place: Place) -> None:
    container = await place.container()
    assert container.expires_at == datetime.fromtimestamp(place.clock.now + 300, UTC)
    place.clock.now += 200
    assert container.expires_at == datetime.fromtimestamp(place.clock.now + 100, UTC)
    await carried_out(container, python("1"))
    assert container.expires_at == datetime.fromtimestamp(place.clock.now + 300, UTC)
    place.clock.now += 250
    await place.containers.open(ALICE, container.id)
    assert container.expires_at == datetime.fromtimestamp(place.clock.now + 300, UTC)


async def test_an_idle_container_is_frozen_and_thaws_with_all_it_had(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("x = 6; open('note', 'w').write('kept');"))
    await carried_out(container, bash("echo 1 > $OUTPUT_DIR/a"))
    place.clock.now += 299
    await place.containers.tend()
    assert container.state == "idle"
    place.clock.now += 1
    await place.containers.tend()
    states = {row.id: row.state for row in await AsyncSandbox.list_all()}
    assert (container.state, states[str(container.stored().sandbox_id)]) == ("frozen", "hibernated")
    again = await place.containers.open(ALICE, container.id)
    assert await shown(again, "x, open('note').read()") == "(6, 'kept')"
    finished = await carried_out(again, bash("ls $OUTPUT_DIR $INPUT_DIR; echo 2 > $OUTPUT_DIR/b"))
    assert content(finished)["return_code"] == 0
    assert [place.files.get(ALICE, one["file_id"]).filename for one in content(finished)["content"]] == ["b"]
    place.clock.now += 300
    await place.containers.tend()
    assert await shown(again, "x") == "6"


async def test_a_container_in_use_is_neither_frozen_nor_forgotten(place: Place) -> None:
    container = await place.container()
    run = await container.start(python("import os, time\nwhile not os.path.exists('go'): time.sleep(0.005)"))
    place.clock.now += 200
    await place.containers.tend()
    assert container.state == "running"
    sandbox = await asyncio.wait_for(container.upload([(await place.files.add(ALICE, "f", None, pieces())).id]), 60)
    assert sandbox == ["/tmp/inputs/f"]
    with container.in_use():
        place.clock.now += 10 * 24 * 3600
        await place.containers.tend()
        assert container.state == "running"
    await run.abandon()
    assert (await ends(run)).block["type"] == "code_execution_tool_result"


async def test_code_that_nobody_asks_for_any_more_is_interrupted_and_its_container_frozen(place: Place) -> None:
    container = await place.container()
    run = await container.start(python("while True: pass"))
    place.clock.now += 300 + 270 + 90 + 1
    await place.containers.tend()
    assert run.ended
    assert container.state == "frozen"


async def test_a_container_not_used_for_long_has_expired_and_says_so(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("x = 6"))
    sandbox_id = container.stored().sandbox_id
    place.clock.now += 300
    await place.containers.tend()
    place.clock.now += 30 * 24 * 3600 - 301
    await place.containers.tend()
    assert container.state == "frozen"
    place.clock.now += 1
    await place.containers.tend()
    assert [row for row in await AsyncSandbox.kept() if row.id == sandbox_id] == []
    with pytest.raises(ContainerExpired) as refused:
        await place.containers.open(ALICE, container.id)
    assert (refused.value.status, refused.value.error_code) == (404, "container_expired")
    assert container.id in refused.value.message
    with pytest.raises(ContainerUnknown):
        await place.containers.open(BOB, container.id)
    with pytest.raises(ContainerExpired):
        await container.start(python("x"))


async def test_a_deleted_container_is_gone_whatever_ran_in_it(place: Place) -> None:
    before = len(await AsyncSandbox.list_all())
    container = await place.container()
    run = await container.start(python("while True: pass"))
    await asyncio.wait_for(place.containers.delete(ALICE, container.id), 60)
    assert run.ended
    assert len(await AsyncSandbox.list_all()) == before
    with pytest.raises(ContainerExpired, match="it was deleted"):
        await place.containers.open(ALICE, container.id)


async def test_copies_have_what_their_origin_had_and_go_their_own_ways(place: Place) -> None:
    container = await place.container()
    row = await place.files.add(ALICE, "in.txt", None, pieces(b"in"))
    await container.upload([row.id])
    await carried_out(container, python("x = [1]; open('note', 'w').write('kept');"))
    await carried_out(container, bash("echo 1 > $OUTPUT_DIR/a"))
    left, right = await place.containers.fork(ALICE, container.id, 2)
    assert len({container.id, left.id, right.id}) == 3
    await carried_out(left, python("x.append(2)"))
    assert await shown(left, "x, open('note').read()") == "([1, 2], 'kept')"
    assert await shown(right, "x") == await shown(container, "x") == "[1]"
    assert await left.upload([row.id]) == ["/tmp/inputs/in.txt"]
    finished = await carried_out(right, bash("cat $INPUT_DIR/in.txt; ls $OUTPUT_DIR; echo 2 > $OUTPUT_DIR/b"))
    assert content(finished)["stdout"] == "in"
    assert [place.files.get(ALICE, one["file_id"]).container for one in content(finished)["content"]] == [right.id]
    assert [one.id for one in place.containers.list(ALICE)] == [container.id, left.id, right.id]
    await place.containers.delete(ALICE, container.id)
    assert await shown(right, "x") == "[1]"


async def test_a_frozen_container_can_be_copied(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("x = 6"))
    place.clock.now += 300
    await place.containers.tend()
    (child,) = await place.containers.fork(ALICE, container.id, 1)
    assert await shown(child, "x") == "6"


@pytest.mark.parametrize("n", [0, -1, 17])
async def test_a_senseless_number_of_copies_is_refused(place: Place, n: int) -> None:
    container = await place.container()
    with pytest.raises(ApiError, match="from 1 to 16") as refused:
        await place.containers.fork(ALICE, container.id, n)
    assert refused.value.status == 400


async def test_a_description_tells_names_files_and_cells(place: Place) -> None:
    container = await place.container()
    assert (await place.containers.describe(ALICE, container.id))["names"] == []
    row = await place.files.add(ALICE, "in.txt", None, pieces(b"in"))
    await container.upload([row.id])
    await carried_out(container, python("x = [1, 2]\ndef f(): pass\nopen('note', 'w').write('kept');"))
    await carried_out(container, bash("echo 1 > $OUTPUT_DIR/a; exit 2"))
    described: dict[str, Any] = await place.containers.describe(ALICE, container.id)
    assert {one["name"]: (one["type"], one["value"]) for one in described["names"]} == {
        "x": ("list", "[1, 2]"),
        "f": ("function", "f()"),
    }
    assert [one["path"] for one in described["files"]] == ["/root/note", "/tmp/inputs/in.txt", "/tmp/outputs/1/a"]
    assert [(one["name"], one["return_code"]) for one in described["cells"]] == [
        ("code_execution", 0),
        ("bash_code_execution", 2),
    ]
    assert described["cells"][1]["code"] == "echo 1 > $OUTPUT_DIR/a; exit 2"
    assert described["state"] == "idle"
    # Looking leaves nothing behind.
    assert await shown(container, "[name for name in dir() if name[0] != '_']") == "['In', 'Out', 'f', 'x']"


async def test_a_description_of_code_that_runs_does_not_wait_for_it(place: Place) -> None:
    container = await place.container()
    run = await container.start(python("while True: pass"))
    described = await asyncio.wait_for(place.containers.describe(ALICE, container.id), 60)
    assert (described["state"], described["names"], described["files"]) == ("running", None, None)
    await run.abandon()


async def test_containers_of_an_owner_are_bounded_and_expired_ones_make_room(tmp_path: Path) -> None:
    async with a_place(tmp_path, ContainerSettings(owner_containers=2)) as place:
        first, second = await place.container(), await place.container()
        with pytest.raises(ContainersFull) as refused:
            await place.container()
        assert refused.value.status == 429
        await place.containers.open(BOB)
        place.clock.now += 300
        await place.containers.open(ALICE, second.id)
        third = await place.container()
        assert place.containers.list(ALICE) == [second, third]
        with pytest.raises(ContainerExpired, match="made room"):
            await place.containers.open(ALICE, first.id)
        with pytest.raises(ContainersFull):
            await place.containers.fork(ALICE, second.id, 1)


async def test_a_container_whose_sandbox_was_closed_goes_on_from_its_state_on_disk(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("x = 6"))
    await (await AsyncSandbox.connect(str(container.stored().sandbox_id))).close()
    outcome = content(await carried_out(container, python("x")))
    assert outcome["error_code"] == "unavailable"
    assert await shown(container, "x") == "6"
    await place.containers.tend()
    assert await shown(await place.containers.open(ALICE, container.id), "x") == "6"


async def test_a_container_whose_sandbox_is_gone_has_expired(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("x = 6"))
    await AsyncSandbox.discard(str(container.stored().sandbox_id))
    outcome = content(await carried_out(container, python("x")))
    assert outcome["error_code"] == "unavailable"
    with pytest.raises(ContainerExpired, match="it was lost"):
        await container.start(python("x"))
    for _ in range(2):
        with pytest.raises(ContainerExpired, match="it was lost"):
            await place.containers.open(ALICE, container.id)
        await place.containers.tend()


_ENGINE_ENDS = """
import asyncio, pathlib, sys
from ramet import close_engine
from ramet.doors.gateway.containers.registry import Containers, ContainerSettings
from ramet.doors.gateway.containers.store import ContainerStore
from ramet.doors.gateway.files.store import FileStore
from ramet.doors.gateway.running.cell_run import CellRequest

def cell(code):
    return CellRequest("srvtoolu_1", "code_execution", {"code": code}, "20260120")

async def run(container, code):
    return (await (await container.start(cell(code))).next()).model_text

async def main():
    files = FileStore(sys.argv[1])
    store = ContainerStore(pathlib.Path(sys.argv[1], "containers.sqlite"))
    containers = Containers(ContainerSettings(container_idle_seconds=0), files, store)
    awake, frozen, unused = [await containers.open("alice") for _ in range(3)]
    for number, container in enumerate((awake, frozen, unused)):
        await run(container, f"x = {number}")
    await frozen.freeze()
    await asyncio.to_thread(close_engine)
    print(await run(awake, "x"))
    await containers.tend()
    for container in (awake, frozen, unused):
        print(await run(container, "x"))
        await containers.delete("alice", container.id)
    await containers.close()
    store.close()
    files.close()

asyncio.run(main())
"""


@pytest.mark.deep("restarts")
async def test_containers_survive_their_engine_and_go_on_in_another(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", _ENGINE_ENDS, str(tmp_path / "files"), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await asyncio.wait_for(process.communicate(), 60)
    assert printed.decode().splitlines() == [
        "error: unavailable: the engine was closed; the next call goes on from its last state on disk, if there is one",
        "0",
        "1",
        "2",
    ]


async def test_the_last_calls_in_a_container_can_be_undone(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("x = 1"))
    await carried_out(container, python("x = 2; open('/tmp/made', 'w').close()"))
    past = await place.containers.history(ALICE, container.id)
    assert [point.code for point in past if point.kind == "cell"][-1].startswith("x = 2")
    row = await place.files.add(ALICE, "given.txt", None, pieces(b"given"))
    (path,) = await container.upload([row.id])
    undone = await place.containers.undo(ALICE, container.id, 1)
    assert len(undone.cell_ids) == 1
    assert await shown(container, "x") == "1"
    assert await shown(container, "import os; os.path.exists('/tmp/made')") == "False"
    # What was uploaded since is uploaded again when a request names it.
    assert await container.upload([row.id]) == [path]
    assert await shown(container, f"open({path!r}).read()") == "'given'"
    for n in (0, 99):
        with pytest.raises(ApiError) as refused:
            await place.containers.undo(ALICE, container.id, n)
        assert refused.value.status == 400


async def test_nothing_is_undone_while_code_waits_for_its_client(place: Place) -> None:
    container = await place.container()
    run = await container.start(python("await look_up()"), [ClientTool("look_up", "", {"type": "object"})])
    await waits(run)
    with pytest.raises(ContainerBusy):
        await place.containers.undo(ALICE, container.id, 1)
    await run.abandon()
