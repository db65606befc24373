"""Files that go into a conversation's container and come out of it, through the published client."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.gateway.clients import Asking, said, user
from tests.gateway.upstreams import ScriptedUpstream, bash, python, says


def upload(file_id: str) -> dict[str, Any]:
    return {"type": "container_upload", "file_id": file_id}


def test_an_uploaded_file_is_there_before_the_first_cell(upstream: ScriptedUpstream, ask: Asking, client: Any) -> None:
    file = client.beta.files.upload(file=("data.csv", b"a,b\n1,2\n", "text/csv"))
    code = "import os\nprint(open(os.environ['INPUT_DIR'] + '/data.csv').read())"
    upstream.will(says(python(code)), says("done"), says(bash('cat "$INPUT_DIR/data.csv"')), says("done"))
    question = user([{"type": "text", "text": "Read it."}, upload(file.id)])
    first = ask([question])
    assert first.content[1].content.stdout == "a,b\n1,2\n\n"
    told = upstream.samples[0].messages[0]["content"]
    assert [block["type"] for block in told] == ["text", "text"]
    assert '"data.csv"' in told[1]["text"]
    assert "/data.csv." in told[1]["text"]

    second = ask([question, said(first), user("again")], container=first.container.id)
    assert second.content[1].content.stdout == "a,b\n1,2\n"
    assert upstream.samples[3].messages[0] == upstream.samples[0].messages[0]


def test_a_file_that_code_made_can_be_downloaded(upstream: ScriptedUpstream, ask: Asking, client: Any) -> None:
    upstream.will(says(bash('echo made > "$OUTPUT_DIR/out.txt"')), says("done"))
    answer = ask("make a file")
    outputs = answer.content[1].content.content
    assert [output.type for output in outputs] == ["bash_code_execution_output"]
    file_id = outputs[0].file_id
    assert client.beta.files.retrieve_metadata(file_id).filename == "out.txt"
    assert client.beta.files.download(file_id).read() == b"made\n"
    assert file_id in upstream.samples[1].messages[-1]["content"][0]["content"]


def test_a_file_that_is_not_there_is_a_typed_error(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="file_nothing") as caught:
        Asking(client, stream=False)([user([{"type": "text", "text": "x"}, upload("file_nothing")])])
    assert caught.value.error_code == "file_not_found"


def test_what_was_uploaded_is_the_owners_alone(client: Any) -> None:
    file = client.beta.files.upload(file=("secret.txt", b"x", "text/plain"))
    with anthropic.Anthropic(base_url=str(client.base_url), api_key="sk-of-another", max_retries=0) as other:
        with pytest.raises(anthropic.NotFoundError):
            other.beta.files.retrieve_metadata(file.id)


def test_several_files_are_told_in_later_turns_as_they_were_at_first(upstream: ScriptedUpstream, ask: Asking) -> None:
    upstream.will(
        says(bash('cd "$OUTPUT_DIR"; echo b > b.txt; echo a > a.txt; echo c > c.txt')), says("done"), says("ok")
    )
    question = user("make files")
    first = ask([question])
    assert len(first.content[1].content.content) == 3
    ask([question, said(first), user("thanks")], container=first.container.id)
    assert upstream.samples[2].messages[:3] == upstream.samples[1].messages


def test_pictures_and_documents_named_by_their_files_reach_the_upstream(
    upstream: ScriptedUpstream, ask: Asking, client: Any
) -> None:
    picture = client.beta.files.upload(file=("p.png", b"\x89PNG", "image/png"))
    note = client.beta.files.upload(file=("n.txt", b"words", "text/plain"))
    other = client.beta.files.upload(file=("n.bin", b"\0", "application/octet-stream"))

    def named(kind: str, file_id: str) -> dict[str, Any]:
        return {"type": kind, "source": {"type": "file", "file_id": file_id}}

    upstream.will(says("I see."))
    result = {"type": "tool_result", "tool_use_id": "toolu_x", "content": [named("image", picture.id)]}
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_x", "name": "look", "input": {}}]}
    given = user([named("image", picture.id), named("document", note.id), named("document", "file_of_others"), result])
    ask([user("look"), called, given])
    found = upstream.samples[0].messages[2]["content"]
    encoded = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
    assert found[0] == {"type": "image", "source": encoded}
    assert found[1]["source"] == {"type": "text", "media_type": "text/plain", "data": "words"}
    assert found[2] == named("document", "file_of_others")
    assert found[3]["content"][0]["source"] == encoded
    with pytest.raises(anthropic.BadRequestError, match="a document must be PDF or text"):
        ask([user([named("document", other.id)])])
