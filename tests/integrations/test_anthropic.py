"""The published `anthropic` SDK against a scripted API, with the tools of a real sandbox."""

from __future__ import annotations

import base64
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam

from ramet import AsyncSandbox, InvalidArgument, Sandbox
from ramet.integrations.anthropic import AsyncSandboxTools, SandboxTools
from tests.integrations.scripted import PLOT, PNG, ScriptedApi, says, scripted_api, uses

ROOTS = ("run_python", {"code": "import math\nroots = [math.sqrt(n) for n in (1, 4, 9)]\nroots"})
MEAN = ("run_python", {"code": "sum(roots) / len(roots)"})


def client_of(api: ScriptedApi) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=api.url, api_key="key", max_retries=0)


def test_a_loop_of_ones_own_keeps_variables(sandbox: Sandbox) -> None:
    tools = SandboxTools(sandbox)
    with scripted_api(uses(ROOTS), uses(MEAN), says("2.0")) as api, client_of(api) as client:
        messages: list[MessageParam] = [{"role": "user", "content": "roots of 1, 4, 9, then their mean"}]
        while True:
            message = client.messages.create(
                model="scripted", max_tokens=1000, tools=tools.definitions, messages=messages
            )
            if message.stop_reason != "tool_use":
                break
            messages.append({"role": "assistant", "content": message.content})
            messages.append({"role": "user", "content": tools.results(message)})
        assert [block["content"][0]["text"] for request in (1, 2) for block in api.told(request)] == [
            "value: [1.0, 2.0, 3.0]",
            "value: 2.0",
        ]
        names = [tool["name"] for tool in api.requests[0]["tools"]]
        assert names == ["run_python", "run_bash", "list_files", "read_file", "write_file"]


def test_the_tool_runner_of_the_sdk(sandbox: Sandbox) -> None:
    tools = SandboxTools(sandbox)
    with scripted_api(uses(ROOTS), uses(MEAN, ("run_bash", {"command": "exit 3"})), says("2.0")) as api:
        with client_of(api) as client:
            runner = client.beta.messages.tool_runner(
                model="scripted",
                max_tokens=1000,
                tools=tools.runnable,
                messages=[{"role": "user", "content": "roots of 1, 4, 9, then their mean"}],
            )
            final = runner.until_done()
        assert [block.text for block in final.content if block.type == "text"] == ["2.0"]
        first, second = api.told()
        assert (first["content"][0]["text"], first.get("is_error", False)) == ("value: 2.0", False)
        assert (second["content"][0]["text"], second["is_error"]) == ("(exit code 3)", True)


async def test_the_asynchronous_client_and_runner() -> None:
    with scripted_api(uses(ROOTS), uses(MEAN), says("2.0"), uses(MEAN)) as api:
        async with AsyncSandbox() as sandbox:
            tools = AsyncSandboxTools(sandbox)
            async with anthropic.AsyncAnthropic(base_url=api.url, api_key="key", max_retries=0) as client:
                runner = client.beta.messages.tool_runner(
                    model="scripted",
                    max_tokens=1000,
                    tools=tools.runnable,
                    messages=[{"role": "user", "content": "roots of 1, 4, 9, then their mean"}],
                )
                await runner.until_done()
                assert api.told()[0]["content"][0]["text"] == "value: 2.0"
                message = await client.messages.create(
                    model="scripted", max_tokens=1000, tools=tools.definitions, messages=[]
                )
                (block,) = await tools.results(message)
                assert block["is_error"] is False


def test_plots_are_image_blocks(sandbox: Sandbox) -> None:
    block = SandboxTools(sandbox).result({"id": "toolu_1", "name": "run_python", "input": {"code": PLOT}})
    assert (block["type"], block["tool_use_id"], block["is_error"]) == ("tool_result", "toolu_1", False)
    content: Any = block["content"]
    text, image = content
    assert text == {"type": "text", "text": "(1 image)"}
    assert image["source"]["media_type"] == "image/png"
    assert base64.b64decode(image["source"]["data"]).startswith(PNG)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("run_python", {"code": "1 / 0"}, "ZeroDivisionError"),
        ("run_python", {}, "code is missing"),
        ("run_python", {"code": 5}, "code must be a string"),
        ("run_python", {"code": "1", "cell": 2}, "there is no argument cell; there are: code, timeout_seconds"),
        ("run_python", {"code": "1", "timeout_seconds": 0}, "timeout_seconds is too small: 0"),
        ("run_python", "code", "the arguments must be an object"),
        ("read_file", {"path": "nothing.txt"}, "nothing.txt"),
        ("read_file", {"path": "a", "first_line": 0}, "first_line is too small: 0"),
        ("list_files", {"path": "/nowhere"}, "/nowhere"),
    ],
)
def test_what_fails_is_an_error_for_the_model(sandbox: Sandbox, name: str, given: Any, said: str) -> None:
    block: Any = SandboxTools(sandbox).result({"id": "toolu_1", "name": name, "input": given})
    assert block["is_error"] is True
    assert said in block["content"][0]["text"]


def test_files_are_written_listed_and_read(sandbox: Sandbox) -> None:
    tools = SandboxTools(sandbox)

    def call(name: str, **given: Any) -> str:
        block: Any = tools.result({"id": "toolu_1", "name": name, "input": given})
        assert not block["is_error"]
        return str(block["content"][0]["text"])

    assert call("write_file", path="made/note.txt", content="one\ntwo\nthree\n") == "14 bytes written to made/note.txt"
    assert call("list_files", path="made") == "note.txt  14 bytes"
    assert call("read_file", path="made/note.txt", first_line=2, line_count=1) == "two\n(lines 2 to 2 of 3)"
    assert call("read_file", path="made/note.txt", line_count=None) == "one\ntwo\nthree"


def test_a_timeout_for_all_code(sandbox: Sandbox) -> None:
    tools = SandboxTools(sandbox, timeout_seconds=0.2)
    block: Any = tools.result({"id": "toolu_1", "name": "run_python", "input": {"code": "import time; time.sleep(60)"}})
    assert "interrupted at its timeout" in block["content"][0]["text"]


def test_tools_of_others_are_left_alone(sandbox: Sandbox) -> None:
    tools = SandboxTools(sandbox)
    content: list[dict[str, Any]] = [
        {"type": "text", "text": "let me see"},
        {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}},
        {"type": "tool_use", "id": "toolu_2", "name": "run_bash", "input": {"command": "echo here"}},
    ]
    assert [block["tool_use_id"] for block in tools.results({"content": content})] == ["toolu_2"]
    assert "run_bash" in tools
    assert "get_weather" not in tools
    with pytest.raises(InvalidArgument, match="get_weather"):
        tools.result(content[1])


async def test_an_asynchronous_sandbox_is_for_asynchronous_tools() -> None:
    async with AsyncSandbox() as sandbox:
        tools = SandboxTools(sandbox)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="AsyncSandbox"):
            tools.result({"id": "toolu_1", "name": "run_bash", "input": {"command": "echo"}})
