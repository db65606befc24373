"""The text editor: the published shapes, and every refusal with its code."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramet.doors.gateway.containers.registry import Container
from tests.gateway.rooms import a_place, bash, carried_out, content, editor

NAME = "text_editor_code_execution"


@pytest.fixture
async def container(tmp_path: Path) -> AsyncIterator[Container]:
    async with a_place(tmp_path) as place:
        yield await place.container()


async def edited(container: Container, **given: object) -> dict[str, Any]:
    return dict(content(await carried_out(container, editor(**given))))


async def refused(container: Container, **given: object) -> tuple[str, str]:
    failed = await edited(container, **given)
    assert failed["type"] == f"{NAME}_tool_result_error"
    return failed["error_code"], failed["error_message"]


async def test_create_says_whether_the_file_was_there(container: Container) -> None:
    request = editor(command="create", path="notes/note.txt", file_text="one\ntwo\n")
    finished = await carried_out(container, request)
    assert finished.block == {
        "type": f"{NAME}_tool_result",
        "tool_use_id": request.tool_use_id,
        "content": {"type": f"{NAME}_create_result", "is_file_update": False},
    }
    again = await edited(container, command="create", path="/root/notes/note.txt", file_text="three")
    assert again["is_file_update"] is True
    result = await carried_out(container, bash("cat notes/note.txt"))
    assert content(result)["stdout"] == "three"


async def test_view_gives_the_text_to_the_client_and_numbered_lines_to_the_model(container: Container) -> None:
    await edited(container, command="create", path="a.json", file_text='{\n  "debug": true\n}\n')
    finished = await carried_out(container, editor(command="view", path="a.json"))
    assert content(finished) == {
        "type": f"{NAME}_view_result",
        "file_type": "text",
        "content": '{\n  "debug": true\n}',
        "num_lines": 3,
        "start_line": 1,
        "total_lines": 3,
    }
    assert finished.model_text == '     1\t{\n     2\t  "debug": true\n     3\t}'


async def test_view_range_shows_some_lines(container: Container) -> None:
    await edited(container, command="create", path="a", file_text="".join(f"line {n}\n" for n in range(1, 11)))
    some = await edited(container, command="view", path="a", view_range=[3, 4])
    assert (some["content"], some["num_lines"], some["start_line"], some["total_lines"]) == ("line 3\nline 4", 2, 3, 10)
    rest = await edited(container, command="view", path="a", view_range=[9, -1])
    assert rest["content"] == "line 9\nline 10"
    for wrong in ([0, 1], [11, 12], [4, 3], [1], "1-2", [True, 2], [1.5, 2]):
        code, message = await refused(container, command="view", path="a", view_range=wrong)
        assert code == "invalid_tool_input"
        assert "view_range" in message


async def test_long_files_are_shown_in_part_and_said_so(container: Container) -> None:
    await edited(container, command="create", path="a", file_text=("x" * 99 + "\n") * 5000)
    finished = await carried_out(container, editor(command="view", path="a"))
    shown = content(finished)
    assert (shown["num_lines"], shown["total_lines"], len(shown["content"])) == (1000, 5000, 99_999)
    assert str(finished.model_text).endswith("[4000 more lines; use view_range to see them]")
    await carried_out(container, bash("truncate -s 20M large"))
    assert (await refused(container, command="view", path="large"))[0] == "invalid_tool_input"


async def test_an_empty_file_has_no_lines(container: Container) -> None:
    await edited(container, command="create", path="a", file_text="")
    shown = await edited(container, command="view", path="a")
    assert (shown["content"], shown["num_lines"], shown["total_lines"]) == ("", 0, 0)


async def test_folders_are_listed_two_levels_deep(container: Container) -> None:
    for path in ("tree/a.txt", "tree/b/c.txt", "tree/b/d/e.txt", "tree/.hidden"):
        await edited(container, command="create", path=path, file_text="x")
    shown = await edited(container, command="view", path="tree")
    assert shown["content"].split("\n") == ["tree/a.txt\t1 bytes", "tree/b/", "tree/b/c.txt\t1 bytes", "tree/b/d/"]


async def test_pictures_come_as_images(container: Container) -> None:
    data = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
    )
    await carried_out(container, bash(f"echo {base64.b64encode(data).decode()} | base64 -d > dot.png"))
    finished = await carried_out(container, editor(command="view", path="dot.png"))
    shown = content(finished)
    assert (shown["file_type"], base64.b64decode(shown["content"]), shown["num_lines"]) == ("image", data, None)
    assert isinstance(finished.model_text, list)
    assert finished.model_text[0]["type"] == "image"


async def test_str_replace_tells_the_lines_that_differ(container: Container) -> None:
    await edited(container, command="create", path="a", file_text="one\ntwo\nthree\nfour\n")
    changed = await edited(container, command="str_replace", path="a", old_str="o\nthree", new_str="o\n2.5\n3")
    assert changed == {
        "type": f"{NAME}_str_replace_result",
        "old_start": 3,
        "old_lines": 1,
        "new_start": 3,
        "new_lines": 2,
        "lines": ["-three", "+2.5", "+3"],
    }
    removed = await edited(container, command="str_replace", path="a", old_str="two\n")
    assert (removed["old_start"], removed["old_lines"], removed["new_lines"]) == (2, 1, 0)
    assert (await edited(container, command="view", path="a"))["content"] == "one\n2.5\n3\nfour"


async def test_str_replace_wants_text_that_occurs_exactly_once(container: Container) -> None:
    await edited(container, command="create", path="a", file_text="x\ny\nx\n")
    code, message = await refused(container, command="str_replace", path="a", old_str="x", new_str="z")
    assert code == "invalid_tool_input"
    assert "lines 1, 3" in message
    assert (await refused(container, command="str_replace", path="a", old_str="q", new_str=""))[0] == code
    assert (await refused(container, command="str_replace", path="a", old_str="", new_str=""))[0] == code
    assert (await refused(container, command="str_replace", path="a", old_str="y", new_str="\ud800"))[0] == code
    assert (await edited(container, command="view", path="a"))["content"] == "x\ny\nx"


async def test_bytes_that_are_no_text_survive_an_edit(container: Container) -> None:
    await carried_out(container, bash("printf 'a\\xff\\r\\nb\\n' > latin"))
    changed = await edited(container, command="str_replace", path="latin", old_str="b", new_str="c")
    assert changed["lines"] == ["-b", "+c"]
    result = await carried_out(container, bash("od -An -tx1 latin"))
    assert content(result)["stdout"].split() == ["61", "ff", "0d", "0a", "63", "0a"]
    await carried_out(container, bash("printf 'a\\0b' > binary"))
    assert (await refused(container, command="view", path="binary"))[0] == "invalid_tool_input"


async def test_what_is_not_there_is_file_not_found(container: Container) -> None:
    for given in ({"command": "view"}, {"command": "str_replace", "old_str": "a", "new_str": "b"}):
        assert (await refused(container, path="/root/none", **given))[0] == "file_not_found"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"command": "view"},
        {"command": "view", "path": ""},
        {"command": "view", "path": "a\0b"},
        {"command": "view", "path": 7},
        {"command": "delete", "path": "/root/a"},
        {"command": "create", "path": "/root/a"},
        {"command": "create", "path": "/root/a", "file_text": "\ud800"},
        {"command": "create", "path": "/root", "file_text": "x"},
        {"command": "create", "path": "/usr/bin/env/x", "file_text": "x"},
        {"command": "create", "path": "/proc/x", "file_text": "x"},
        {"command": "str_replace", "path": "/root", "old_str": "a", "new_str": "b"},
        {"command": "str_replace", "path": "/root/a", "new_str": "b"},
    ],
)
async def test_what_makes_no_sense_is_invalid_tool_input(container: Container, given: dict[str, object]) -> None:
    code, message = await refused(container, **given)
    assert code in ("invalid_tool_input", "file_not_found")
    assert message
