"""Cells and shell commands in a container: what client and model are told of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.running.outputs import OutputLimits
from tests.gateway.rooms import (
    ALICE,
    Place,
    a_place,
    bash,
    carried_out,
    content,
    ends,
    pieces,
    python,
    quick,
    read_all,
)
from tests.waiting import settle


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with a_place(tmp_path) as some:
        yield some


async def test_a_cell_gives_the_published_block(place: Place) -> None:
    request = python("import math\nroots = [math.sqrt(x) for x in (4, 9)]\nprint(roots)")
    finished = await carried_out(await place.container(), request)
    assert finished.block == {
        "type": "code_execution_tool_result",
        "tool_use_id": request.tool_use_id,
        "content": {
            "type": "code_execution_result",
            "stdout": "[2.0, 3.0]\n",
            "stderr": "",
            "return_code": 0,
            "content": [],
        },
    }
    assert (finished.model_text, finished.hidden_chars) == ("[2.0, 3.0]", 0)


async def test_variables_stay_from_cell_to_cell(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("roots = [2.0, 3.0]"))
    later = await carried_out(container, python("print('mean'); sum(roots) / len(roots)"))
    assert content(later)["stdout"] == "mean\n2.5\n"


async def test_bash_gives_its_own_block_and_starts_fresh(place: Place) -> None:
    container = await place.container()
    first = await carried_out(container, bash("X=1; echo $X; echo oops >&2; exit 3"))
    assert first.block["type"] == "bash_code_execution_tool_result"
    assert content(first) == {
        "type": "bash_code_execution_result",
        "stdout": "1\n",
        "stderr": "oops\n",
        "return_code": 3,
        "content": [],
    }
    assert first.model_text == "1\nstderr:\noops\nreturn code: 3"
    second = await carried_out(container, bash("echo [$X]"))
    assert content(second)["stdout"] == "[]\n"


async def test_an_exception_is_an_ordinary_result(place: Place) -> None:
    failed = await carried_out(await place.container(), python("1/0"))
    assert content(failed)["return_code"] == 1
    assert content(failed)["stderr"].endswith("ZeroDivisionError: division by zero\n")
    assert str(failed.model_text).endswith("division by zero\nreturn code: 1")


async def test_silence_is_told_to_the_model_too(place: Place) -> None:
    quiet = await carried_out(await place.container(), python("x = 1"))
    assert (content(quiet)["stdout"], quiet.model_text) == ("", "(no output)")


@pytest.mark.parametrize("given", [None, 7, ["print(1)"]])
async def test_input_that_is_no_code_is_an_error_block(place: Place, given: object) -> None:
    container = await place.container()
    for request in (python(given), bash(given)):
        failed = await carried_out(container, request)
        assert content(failed) == {
            "type": f"{request.name}_tool_result_error",
            "error_code": "invalid_tool_input",
        }
        assert "invalid_tool_input" in str(failed.model_text)
    assert content(await carried_out(container, python("1")))["stdout"] == "1\n"


async def test_a_nul_character_in_code_is_an_error_of_the_code(place: Place) -> None:
    failed = content(await carried_out(await place.container(), python("a\0b")))
    assert (failed["type"], failed["return_code"]) == ("code_execution_result", 1)
    assert "SyntaxError: a NUL character cannot be part of code" in failed["stderr"]


async def test_files_in_the_output_folder_become_files_of_the_owner(place: Place) -> None:
    container = await place.container()
    command = "printf 'a,b\\n' > $OUTPUT_DIR/table.csv; mkdir $OUTPUT_DIR/deep; echo x > $OUTPUT_DIR/deep/not.txt"
    finished = await carried_out(container, bash(command))
    (output,) = content(finished)["content"]
    assert output["type"] == "bash_code_execution_output"
    row = place.files.get(ALICE, output["file_id"])
    assert (row.filename, row.mime_type, row.downloadable, row.container) == (
        "table.csv",
        "text/csv",
        True,
        container.id,
    )
    assert await read_all(place.files.content(ALICE, row.id)) == b"a,b\n"
    assert f"file: {row.id} table.csv" in str(finished.model_text)


async def test_only_plain_files_are_taken(place: Place) -> None:
    command = "cd $OUTPUT_DIR; echo x > plain; ln -s plain link; ln -s /etc/passwd away; mkfifo pipe; mkdir folder"
    finished = await carried_out(await place.container(), bash(command))
    assert [place.files.get(ALICE, one["file_id"]).filename for one in content(finished)["content"]] == ["plain"]


async def test_each_call_finds_the_output_folder_empty_and_older_files_stay(place: Place) -> None:
    container = await place.container()
    first = await carried_out(container, bash("echo 1 > $OUTPUT_DIR/a; echo $OUTPUT_DIR"))
    older = content(first)["stdout"].strip()
    second = await carried_out(container, bash(f"ls $OUTPUT_DIR; cat {older}/a; echo 2 > $OUTPUT_DIR/b"))
    assert content(second)["stdout"] == "1\n"
    assert [place.files.get(ALICE, one["file_id"]).filename for one in content(second)["content"]] == ["b"]
    third = await carried_out(container, python("import os; open(os.environ['OUTPUT_DIR'] + '/c', 'w').close()"))
    (output,) = content(third)["content"]
    assert (output["type"], place.files.get(ALICE, output["file_id"]).filename) == ("code_execution_output", "c")


async def test_the_output_folder_is_there_again_after_code_removed_it_or_the_repl_died(place: Place) -> None:
    container = await place.container()
    await carried_out(container, bash("echo 1 > $OUTPUT_DIR/a"))
    await carried_out(container, bash("rm -r $OUTPUT_DIR"))
    await carried_out(container, python("import os; os._exit(0)"))
    finished = await carried_out(container, bash("echo 2 > $OUTPUT_DIR/b; ls $INPUT_DIR"))
    assert [place.files.get(ALICE, one["file_id"]).filename for one in content(finished)["content"]] == ["b"]
    assert content(finished)["return_code"] == 0


async def test_a_figure_becomes_a_png(place: Place) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nprint('drawn')"
    finished = await carried_out(await place.container(), python(code))
    (output,) = content(finished)["content"]
    row = place.files.get(ALICE, output["file_id"])
    assert (row.filename, row.mime_type) == ("figure-1.png", "image/png")
    assert (await read_all(place.files.content(ALICE, row.id))).startswith(b"\x89PNG")
    assert "Figure" not in content(finished)["stdout"].replace("drawn", "")


async def test_an_output_that_is_too_large_is_an_error_of_bash_and_a_note_of_python(tmp_path: Path) -> None:
    settings = ContainerSettings(outputs=OutputLimits(file_bytes=1000, files=2))
    async with a_place(tmp_path, settings) as place:
        container = await place.container()
        large = await carried_out(container, bash("echo made; head -c 2000 /dev/zero > $OUTPUT_DIR/large"))
        assert content(large) == {
            "type": "bash_code_execution_tool_result_error",
            "error_code": "output_file_too_large",
        }
        assert "made" in str(large.model_text)
        assert "large is 2000 bytes long" in str(large.model_text)
        code = "import os\nopen(os.environ['OUTPUT_DIR'] + '/large', 'wb').write(bytes(2000));"
        noted = await carried_out(container, python(code))
        assert (content(noted)["return_code"], content(noted)["content"]) == (0, [])
        assert "large is 2000 bytes long" in content(noted)["stderr"]
        many = await carried_out(container, bash("touch $OUTPUT_DIR/{a,b,c,d}"))
        assert len(content(many)["content"]) == 2
        assert "2 files were left out" in content(many)["stderr"]


async def test_long_output_keeps_both_ends_and_says_where_the_rest_is(tmp_path: Path) -> None:
    async with a_place(tmp_path, ContainerSettings(output_characters=1000)) as place:
        container = await place.container()
        finished = await carried_out(container, python("print('begin' + 'x' * 50_000 + 'end')"))
        stdout = content(finished)["stdout"]
        assert (stdout[:5], stdout[-4:]) == ("begin", "end\n")
        assert len(stdout) < 1200
        assert "49009 of 50009 characters left out; all of it is in /tmp/stdout-of-cell-" in stdout
        path = stdout.partition("all of it is in ")[2].partition(" ")[0]
        assert content(await carried_out(container, bash(f"wc -c < {path}")))["stdout"].strip() == "50009"


async def test_a_cell_beyond_its_time_is_interrupted_and_says_so(tmp_path: Path) -> None:
    async with a_place(tmp_path, quick(cell_seconds=0.3)) as place:
        container = await place.container()
        await carried_out(container, python("x = 7"))
        for request in (python("print('begun', flush=True)\nwhile True: pass"), bash("echo begun; sleep 1000")):
            late = await carried_out(container, request)
            assert content(late)["stdout"] == "begun\n"
            assert content(late)["return_code"] != 0
            assert "ran for more than 0.3 seconds and was interrupted" in content(late)["stderr"]
        assert content(await carried_out(container, python("x")))["stdout"] == "7\n"


async def test_a_repl_that_dies_is_told_and_the_next_cell_runs(place: Place) -> None:
    container = await place.container()
    dead = await carried_out(container, python("x = 1; import os; os._exit(4)"))
    assert content(dead)["return_code"] == 4
    assert "Python ended: it exited with code 4. Its variables, imports" in content(dead)["stderr"]
    after = await carried_out(container, python("'x' in dir()"))
    assert content(after)["stdout"] == "False\n"
    assert "started in a fresh Python" in content(after)["stderr"]
    assert content(await carried_out(container, python("1")))["stderr"] == ""


@pytest.mark.parametrize("before", ["", "open(os.environ['OUTPUT_DIR'] + '/file', 'w').write('x')\n"])
async def test_a_repl_that_died_between_two_requests_is_told_by_the_next(place: Place, before: str) -> None:
    """Also if the gateway gives it a cell of its own first, because the folder for outputs is another one."""
    container = await place.container()
    code = f"import os, threading\n{before}threading.Timer(0.1, os._exit, (5,)).start()"
    assert content(await carried_out(container, python(code)))["stderr"] == ""
    async with asyncio.timeout(60):
        while (sandbox := await container.sandbox_between_cells()) is None or (await sandbox.info()).state != "lost":
            await asyncio.sleep(0.01)
    after = content(await carried_out(container, python("'threading' in dir()")))
    assert (after["stdout"], after["return_code"]) == ("False\n", 0)
    assert "fresh Python, because the one before had ended: it exited with code 5" in after["stderr"]


async def test_cells_of_one_container_never_run_side_by_side(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("running = 0; most = 0"))
    code = "import time\nrunning += 1; most = max(most, running); time.sleep(0.05); running -= 1"
    runs = await asyncio.gather(*(container.start(python(code)) for _ in range(5)))
    await asyncio.gather(*(ends(run) for run in runs))
    assert content(await carried_out(container, python("most")))["stdout"] == "1\n"


async def test_a_caller_that_goes_away_leaves_its_cell_running(place: Place) -> None:
    container = await place.container()
    code = "import os, time\nwhile not os.path.exists('/tmp/inputs/go.txt'): time.sleep(0.005)\nprint('done')"
    run = await container.start(python(code))
    asking = asyncio.create_task(run.next())
    await settle()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert container.pending is run
    await container.upload([(await place.files.add(ALICE, "go.txt", None, pieces(b""))).id])
    assert content(await ends(run))["stdout"] == "done\n"
    assert container.pending is None


async def test_an_abandoned_cell_is_interrupted(place: Place) -> None:
    container = await place.container()
    await carried_out(container, python("kept = 1"))
    run = await container.start(python("while True: pass"))
    await asyncio.wait_for(run.abandon(), 60)
    assert run.ended
    assert content(await carried_out(container, python("kept")))["stdout"] == "1\n"


async def test_uploads_lie_in_the_input_folder_under_names_of_their_own(place: Place) -> None:
    container = await place.container()
    first = await place.files.add(ALICE, "data.csv", None, pieces(b"first"))
    second = await place.files.add(ALICE, "data.csv", None, pieces(b"second"))
    paths = await container.upload([first.id, second.id])
    assert await container.upload([second.id, first.id]) == paths[::-1]
    finished = await carried_out(container, bash("cd $INPUT_DIR; for f in *; do echo $f $(cat $f); done"))
    assert content(finished)["stdout"] == "data-2.csv second\ndata.csv first\n"
    assert paths == ["/tmp/inputs/data.csv", "/tmp/inputs/data-2.csv"]


async def test_a_container_with_a_pending_task_and_a_server_is_frozen_and_comes_back_as_it_was(place: Place) -> None:
    container = await place.container()
    code = """
import asyncio
turns = 0
async def take_turns():
    global turns
    while True:
        turns += 1
        await asyncio.sleep(0.001)
task = asyncio.create_task(take_turns())
server = await asyncio.start_server(lambda reader, writer: writer.close(), '127.0.0.1', 0)
"""
    assert content(await carried_out(container, python(code)))["return_code"] == 0
    for _ in range(3):
        await container.freeze()
        look = "before = turns\nwhile turns == before: await asyncio.sleep(0.001)\nturns > before, task.done()"
        after = content(await carried_out(container, python(look)))
        assert (after["stdout"], after["stderr"], after["return_code"]) == ("(True, False)\n", "", 0)
