"""Containers whose sandboxes are at a Ramet server: the same, over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.running.cell_run import ClientTool
from tests.gateway.rooms import ALICE, a_place, bash, carried_out, content, ends, pieces, python, waits
from tests.server.running import running_server

LOOK_UP = ClientTool("look_up", "", {"type": "object"})


@pytest.mark.deep("restarts")
async def test_a_container_at_a_server_pauses_freezes_and_is_copied(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        async with a_place(tmp_path, ContainerSettings(url=server.url)) as place:
            container = await place.container()
            row = await place.files.add(ALICE, "in.txt", None, pieces(b"in"))
            await container.upload([row.id])
            run = await container.start(python("x = await look_up({'a': 1}); print(x)"), [LOOK_UP])
            (call,) = (await waits(run)).calls
            run.answer(call.id, "found", False)
            assert content(await ends(run))["stdout"] == "found\n"
            place.clock.now += 300
            await place.containers.tend()
            assert container.state == "frozen"
            finished = await carried_out(container, bash("cat $INPUT_DIR/in.txt; echo 1 > $OUTPUT_DIR/a"))
            assert content(finished)["stdout"] == "in"
            assert len(content(finished)["content"]) == 1
            (child,) = await place.containers.fork(ALICE, container.id, 1)
            assert content(await carried_out(child, python("x")))["stdout"] == "'found'\n"
            described = await place.containers.describe(ALICE, child.id)
            assert [one["name"] for one in described["names"]] == ["x"]  # type: ignore[attr-defined]
