"""A program as its users write it, for any version of the published client: run by a test with one of its own.

python older_program.py GATEWAY_URL VERSION_BEGINNING
"""

import sys
from typing import Any

import anthropic

gateway, version = sys.argv[1:]
assert anthropic.__version__.startswith(version), anthropic.__version__

MODEL = "some-model"
CODE_TOOL = {"type": "code_execution_20260120", "name": "code_execution"}
WEATHER = {
    "name": "get_weather",
    "description": "The weather at a place.",
    "input_schema": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
    "allowed_callers": ["code_execution_20260120"],
}
client = anthropic.Anthropic(base_url=gateway, api_key="sk-of-an-older-client", max_retries=0)


def ask(stream: bool, **given: Any) -> Any:
    given = {"model": MODEL, "max_tokens": 1000, "tools": [CODE_TOOL, WEATHER], **given}
    if not stream:
        return client.messages.create(**given)
    with client.messages.stream(**given) as answer:
        return answer.get_final_message()


for stream in (False, True):
    history: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    first = ask(stream, messages=history)
    cell, call = first.content
    assert (cell.type, call.type, first.stop_reason) == ("server_tool_use", "tool_use", "tool_use"), first
    assert call.input == {"location": "A"}, call
    assert call.caller.tool_id == cell.id, call
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    history += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = ask(stream, messages=history, container=first.container.id)
    assert [block.type for block in second.content] == ["code_execution_tool_result", "text"], second
    assert second.content[0].content.stdout == "rain\n", second
    assert second.container.id == first.container.id

file = client.beta.files.upload(file=("data.txt", b"hello", "text/plain"))
assert client.beta.files.retrieve_metadata(file.id).size_bytes == 5
assert file.id in [one.id for one in client.beta.files.list()]
client.beta.files.delete(file.id)

told = ""
try:
    ask(False, messages=history, container="container_nothing")
except anthropic.NotFoundError as error:
    told = str(error)
assert "container not found" in told

print("all of it works with", anthropic.__version__)
