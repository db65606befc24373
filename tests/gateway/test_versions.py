"""The four versions of the tool, with what differs between them."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.gateway.clients import Asking, results, said, shape, user, weather_tool
from tests.gateway.upstreams import ScriptedUpstream, bash, python, says


def entry(version: str, **more: Any) -> Any:
    return {"type": f"code_execution_{version}", "name": "code_execution", **more}


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("20250522", ["code_execution"]),
        ("20250825", ["bash_code_execution", "text_editor_code_execution"]),
        ("20260120", ["code_execution", "bash_code_execution", "text_editor_code_execution"]),
        ("20260521", ["code_execution", "bash_code_execution", "text_editor_code_execution"]),
    ],
)
def test_each_version_has_its_tools(upstream: ScriptedUpstream, ask: Asking, version: str, names: list[str]) -> None:
    run = bash("echo hello") if version == "20250825" else python("print('hello')")
    upstream.will(says(run), says("done"))
    answer = ask("go", [entry(version)])
    assert upstream.samples[0].tool_names == names
    result = answer.content[1]
    assert result.to_dict()["content"]["stdout"] == "hello\n"
    assert answer.content[0].to_dict()["name"] == names[0]


@pytest.mark.parametrize("version", ["20250522", "20250825", "20260120", "20260521"])
def test_only_the_newest_tells_the_model_of_the_time_limit(
    upstream: ScriptedUpstream, client: Any, version: str
) -> None:
    upstream.will(says("ok"))
    Asking(client, stream=False)("go", [entry(version)])
    told = " ".join(tool["description"] for tool in upstream.samples[0].body["tools"])
    assert ("90 seconds" in told) == (version == "20260521")


@pytest.mark.parametrize("version", ["20260120", "20260521"])
def test_both_repls_call_tools_and_name_the_same_caller(upstream: ScriptedUpstream, ask: Asking, version: str) -> None:
    tools = [entry(version), weather_tool(allowed_callers=[f"code_execution_{version}"])]
    upstream.will(says(python("print(await get_weather(location='A'))")), says("done"))
    question = user("weather?")
    first = ask([question], tools)
    assert first.content[1].to_dict()["caller"]["type"] == "code_execution_20260120"
    second = ask([question, said(first), results(first, "rain")], tools, container=first.container.id)
    assert shape(second) == ["code_execution_tool_result", "text"]


@pytest.mark.parametrize("version", ["20250522", "20250825"])
def test_older_ones_cannot_call_tools(client: Any, version: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=f"code cannot call tools in code_execution_{version}"):
        Asking(client, stream=False)("go", [entry(version), weather_tool()])


def test_blocks_of_older_versions_name_no_caller(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(says(bash("true")), says("done"))
    assert "caller" not in ask("go", [entry("20250825")]).content[0].to_dict()


def test_bash_begins_anew_with_each_command_but_files_stay(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(
        says(bash("cd /tmp; x=5; echo kept > /tmp/file")), says(bash('echo "[$x]"; cat /tmp/file')), says("done")
    )
    answer = ask("go", [entry("20250825")])
    assert answer.content[3].to_dict()["content"]["stdout"] == "[]\nkept\n"


def test_the_mark_for_the_cache_goes_to_the_last_of_the_ordinary_tools(upstream: ScriptedUpstream, client: Any) -> None:
    upstream.will(says("ok"))
    Asking(client, stream=False)("go", [entry("20260120", cache_control={"type": "ephemeral"})])
    marked = [tool["name"] for tool in upstream.samples[0].body["tools"] if "cache_control" in tool]
    assert marked == ["text_editor_code_execution"]
