"""`/v1/files` and `/v1/containers` over HTTP, also as the published client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ramet.doors.gateway.code_side import CodeSide
from ramet.doors.gateway.containers import routes as container_routes
from ramet.doors.gateway.containers.settings import ContainerSettings
from ramet.doors.gateway.errors import ApiError
from ramet.doors.gateway.files import routes as file_routes
from ramet.doors.gateway.files.store import FileLimits
from tests.gateway.rooms import bash, carried_out, content, python, read_all

BETA = {"anthropic-beta": "files-api-2025-04-14"}


def owner_of(request: Request) -> str:
    return request.headers.get("authorization", "nobody")


async def as_the_api_says_it(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body("req_test"), error.status)


@pytest.fixture
async def rooms(tmp_path: Path) -> AsyncIterator[CodeSide]:
    made = CodeSide(tmp_path / "files", ContainerSettings(), FileLimits(file_bytes=2_000_000))
    yield made
    await made.close()


@pytest.fixture
async def http(rooms: CodeSide) -> AsyncIterator[httpx2.AsyncClient]:
    routes = [*file_routes.routes(rooms, owner_of), *container_routes.routes(rooms, owner_of)]
    app = Starlette(routes=routes, exception_handlers={ApiError: as_the_api_says_it})
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://gateway") as client:
        yield client


@pytest.fixture
async def client(http: httpx2.AsyncClient) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key="key", base_url="http://gateway", http_client=http, max_retries=0)


OWNER = "Bearer key"


async def test_the_published_client_uploads_lists_and_deletes(client: anthropic.AsyncAnthropic) -> None:
    made = await client.files.upload(file=("data.csv", b"a,b\n", "text/csv"))
    assert (made.filename, made.mime_type, made.size_bytes, made.downloadable) == ("data.csv", "text/csv", 4, False)
    assert (await client.files.retrieve_metadata(made.id)) == made
    for number in range(4):
        await client.files.upload(file=(f"{number}.txt", b"x"))
    names = [file.filename async for file in client.files.list(limit=2)]
    assert names == ["3.txt", "2.txt", "1.txt", "0.txt", "data.csv"]
    assert [file.id async for file in client.files.list(ids=[made.id, "file_none"])] == [made.id]
    # Deleting what a page has shown does not break the next one.
    async for file in client.files.list(limit=2):
        assert (await client.files.delete(file.id)).type == "file_deleted"
    assert [file async for file in client.files.list()] == []


async def test_bytes_without_a_name_arrive_as_they_are(client: anthropic.AsyncAnthropic, rooms: CodeSide) -> None:
    data = bytes(range(256)) * 1000
    made = await client.files.upload(file=data)
    assert (made.filename, made.mime_type, made.size_bytes) == ("unnamed.bin", "application/octet-stream", len(data))
    assert await read_all(rooms.files.content(OWNER, made.id)) == data


async def test_fields_may_come_behind_the_file(http: httpx2.AsyncClient) -> None:
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="\xc3\xa4.txt"\r\n\r\nx\r\n--b\r\n'
        b'content-disposition: form-data; name="expires_in_seconds"\r\n\r\n%s\r\n--b--\r\n'
    )
    headers = {"content-type": "multipart/form-data; boundary=b"}
    made = (await http.post("/v1/files", content=form % b"3600", headers=headers)).json()
    assert made["filename"] == "ä.txt"
    assert made["expires_at"] is not None
    assert (await http.post("/v1/files", content=form % b"1", headers=headers)).status_code == 400
    assert len((await http.get("/v1/files")).json()["data"]) == 1


async def test_an_upload_can_say_how_long_it_is_kept(client: anthropic.AsyncAnthropic) -> None:
    made = await client.files.upload(file=b"x", expires_in_seconds=3600)
    assert made.expires_at is not None
    assert round((made.expires_at - made.created_at).total_seconds()) == 3600
    with pytest.raises(anthropic.BadRequestError, match="expires_in_seconds"):
        await client.files.upload(file=b"x", expires_in_seconds=10)


async def test_what_code_made_can_be_downloaded_and_uploads_cannot(
    client: anthropic.AsyncAnthropic, rooms: CodeSide
) -> None:
    container = await rooms.containers.open(OWNER)
    finished = await carried_out(container, bash('printf made > "$OUTPUT_DIR/ä b.txt"'))
    (output,) = content(finished)["content"]
    answer = await client.files.download(output["file_id"])
    assert await answer.read() == b"made"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%A4%20b.txt"
    assert answer.headers["content-type"].startswith("text/plain")
    upload = await client.files.upload(file=b"x")
    with pytest.raises(anthropic.BadRequestError) as refused:
        await client.files.download(upload.id)
    assert type(refused.value).__name__ == "FileNotDownloadableError"
    with pytest.raises(anthropic.NotFoundError):
        await client.files.download("file_none")


async def test_the_older_beta_gets_its_own_shape_of_lists(http: httpx2.AsyncClient) -> None:
    ids = []
    for number in range(3):
        ids.append((await http.post("/v1/files", files={"file": (f"{number}", b"x")})).json()["id"])
    older = (await http.get("/v1/files", params={"limit": 2}, headers=BETA)).json()
    assert (older["first_id"], older["last_id"], older["has_more"]) == (ids[2], ids[1], True)
    assert [one["id"] for one in older["data"]] == [ids[2], ids[1]]
    rest = (await http.get("/v1/files", params={"after_id": ids[1]}, headers=BETA)).json()
    assert (rest["first_id"], rest["last_id"], rest["has_more"]) == (ids[0], ids[0], False)
    current = (await http.get("/v1/files")).json()
    assert set(current) == {"data", "next_page"}


async def test_an_upload_that_is_too_large_breaks_off(http: httpx2.AsyncClient, tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
        for _ in range(100):
            yield b"x" * 100_000
            sent.append(1)

    sent: list[int] = []
    headers = {"content-type": "multipart/form-data; boundary=b"}
    answer = await http.post("/v1/files", content=endless(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")
    assert len(sent) < 100
    answer = await http.post("/v1/files", files={"file": ("f", b"x" * 2_000_001)})
    assert answer.status_code == 413
    assert list((tmp_path / "files" / "content").iterdir()) == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data; boundary=b"),
        (b"{}", "application/json"),
        (b"nonsense", "multipart/form-data; boundary=b"),
        (b"x", "multipart/form-data"),
        (
            b'--b\r\ncontent-disposition: form-data; name="other"\r\n\r\nx\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
        ),
        (
            b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\nx',
            "multipart/form-data; boundary=b",
        ),
    ],
)
async def test_a_form_without_a_file_is_a_clear_400(http: httpx2.AsyncClient, body: bytes, kind: str) -> None:
    answer = await http.post("/v1/files", content=body, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "page=x", "page=page_%21", "ids[]=a&limit=1"])
async def test_a_senseless_query_is_a_clear_400(http: httpx2.AsyncClient, query: str) -> None:
    assert (await http.get(f"/v1/files?{query}")).status_code == 400


async def test_files_of_one_key_are_not_there_for_another(http: httpx2.AsyncClient) -> None:
    made = (await http.post("/v1/files", files={"file": ("f", b"x")}, headers={"authorization": "a"})).json()
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answer = await http.request(method, f"/v1/files/{made['id']}{path}", headers={"authorization": "b"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    assert (await http.get("/v1/files", headers={"authorization": "b"})).json()["data"] == []
    assert (await http.get(f"/v1/files/{made['id']}", headers={"authorization": "a"})).json() == made


async def test_containers_can_be_listed_looked_into_copied_and_deleted(
    http: httpx2.AsyncClient, rooms: CodeSide
) -> None:
    container = await rooms.containers.open("nobody")
    await carried_out(container, python("x = 6"))
    listed = (await http.get("/v1/containers")).json()["data"]
    assert [(one["id"], one["type"], one["state"]) for one in listed] == [(container.id, "container", "idle")]
    described = (await http.get(f"/v1/containers/{container.id}")).json()
    assert described["names"] == [{"name": "x", "type": "int", "value": "6", "size_bytes": 28}]
    assert described["cells"][0]["code"] == "x = 6"
    copies = (await http.post(f"/v1/containers/{container.id}/fork", json={"n": 2})).json()["data"]
    assert [one["forked_from"] for one in copies] == [container.id] * 2
    assert len((await http.post(f"/v1/containers/{container.id}/fork")).json()["data"]) == 1
    child = await rooms.containers.open("nobody", copies[0]["id"])
    assert content(await carried_out(child, python("x * 7")))["stdout"] == "42\n"
    answer = await http.delete(f"/v1/containers/{container.id}")
    assert answer.json() == {"id": container.id, "type": "container_deleted"}
    gone = await http.get(f"/v1/containers/{container.id}")
    assert (gone.status_code, gone.json()["error"]["details"]["error_code"]) == (404, "container_expired")
    unknown: dict[str, Any] = (await http.delete("/v1/containers/container_none")).json()
    assert unknown["error"]["details"]["error_code"] == "container_not_found"
    hidden = await http.get(f"/v1/containers/{child.id}", headers={"authorization": "other"})
    assert hidden.json()["error"]["details"]["error_code"] == "container_not_found"


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"n": "2"}', b'{"n": true}', b'{"n": 99}', b"[" * 60_000])
async def test_a_senseless_copy_is_a_clear_400(http: httpx2.AsyncClient, rooms: CodeSide, body: bytes) -> None:
    container = await rooms.containers.open("nobody")
    answer = await http.post(f"/v1/containers/{container.id}/fork", content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
