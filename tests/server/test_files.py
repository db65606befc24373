"""Files over HTTP: what was sent is there, in whole and in parts, and no path leads out of the sandbox."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import socket
from collections.abc import Iterator

import pytest

from tests.server.asking import Answer, Caller, encoded
from tests.server.engines import wait_until
from tests.server.running import Server


@pytest.fixture
def caller(shared_server: Server) -> Caller:
    """Without a key, as on loopback."""
    return Caller(shared_server.url)


class Files:
    """The files of one sandbox."""

    def __init__(self, caller: Caller, sandbox_id: str) -> None:
        self.caller = caller
        self.sandbox_id = sandbox_id
        self.base = f"/v1/sandboxes/{sandbox_id}/files"

    def target(self, path: str | bytes) -> str:
        return f"{self.base}?path={encoded(path)}"

    def put(self, path: str | bytes, data: object) -> Answer:
        return self.caller.ask("PUT", self.target(path), data)

    def get(self, path: str | bytes, asked_range: str | None = None) -> Answer:
        return self.caller.ask("GET", self.target(path), headers={} if asked_range is None else {"Range": asked_range})

    def listed(self, path: str) -> list[str]:
        answer = self.caller.ask("GET", f"{self.base}/list?path={encoded(path)}")
        assert answer.status == 200
        return [entry["name"] for entry in answer.json["entries"]]


@pytest.fixture
def files(caller: Caller, sandbox_id: str) -> Files:
    return Files(caller, sandbox_id)


def test_what_was_put_is_got_and_seen_in_the_sandbox(files: Files) -> None:
    assert files.put("out/deep/a.txt", b"hello").status == 204
    answer = files.get("/root/out/deep/a.txt")
    assert (answer.status, answer.body) == (200, b"hello")
    assert answer.headers["content-length"] == "5"
    assert answer.headers["accept-ranges"] == "bytes"
    assert files.caller.run(files.sandbox_id, "open('out/deep/a.txt').read()")["value"] == "'hello'"


def test_what_a_sandbox_wrote_is_never_a_page_of_this_server(files: Files) -> None:
    files.put("page.html", b"<script>alert(1)</script>")
    headers = files.get("page.html").headers
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-disposition"] == "attachment"
    assert headers["x-content-type-options"] == "nosniff"


def test_an_empty_file_is_a_file(files: Files) -> None:
    assert files.put("empty", b"").status == 204
    answer = files.get("empty")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")
    assert files.get("empty", "bytes=0-").status == 416


@pytest.mark.parametrize("announced", [True, False], ids=["content-length", "chunked"])
def test_a_large_file_comes_back_as_it_went(files: Files, announced: bool) -> None:
    data = random.Random(1).randbytes(10_000_000)
    pieces: Iterator[bytes] = (data[start : start + 77_777] for start in range(0, len(data), 77_777))
    assert files.put("big", data if announced else pieces).status == 204
    digest = files.caller.run(files.sandbox_id, "import hashlib; hashlib.sha256(open('big','rb').read()).hexdigest()")
    assert digest["value"] == repr(hashlib.sha256(data).hexdigest())
    assert files.get("big").body == data


def test_put_takes_the_place_of_what_was_there(files: Files) -> None:
    files.put("a", b"a long text")
    files.put("a", b"short")
    assert files.get("a").body == b"short"


@pytest.mark.parametrize(
    ("asked", "status", "expected", "content_range"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=4-4", 206, b"4", "bytes 4-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=7-100", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-100", 206, b"0123456789", "bytes 0-9/10"),
        ("BYTES=0-0", 206, b"0", "bytes 0-0/10"),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=999999999999999999-", 416, None, "bytes */10"),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("bytes=5-2", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
        ("bytes=a-b", 200, b"0123456789", None),
        ("bytes=99999999999999999999999999-", 200, b"0123456789", None),
        ("lines=0-3", 200, b"0123456789", None),
        ("", 200, b"0123456789", None),
    ],
)
def test_a_range_gives_those_bytes_and_no_others(
    files: Files, asked: str, status: int, expected: bytes | None, content_range: str | None
) -> None:
    files.put("ten", b"0123456789")
    answer = files.get("ten", asked)
    assert answer.status == status
    assert answer.headers.get("content-range") == content_range
    if expected is not None:
        assert answer.body == expected
        assert answer.headers["content-length"] == str(len(expected))


def test_a_range_of_a_large_file_is_read_where_it_lies(files: Files) -> None:
    data = random.Random(2).randbytes(3_000_000)
    files.put("big", data)
    assert files.get("big", "bytes=1234567-2345678").body == data[1234567:2345679]


def test_head_says_what_get_would_and_has_no_body(files: Files) -> None:
    files.put("a", b"hello")
    said, got = files.caller.ask("HEAD", files.target("a")), files.get("a")
    assert (said.status, said.body) == (200, b"")
    assert {name: value for name, value in said.headers.items() if name != "date"} == {
        name: value for name, value in got.headers.items() if name != "date"
    }
    assert files.caller.ask("HEAD", files.target("nothing")).status == 404
    assert files.caller.ask("HEAD", files.target("/root")).status == 409


def test_names_may_be_any_bytes(files: Files) -> None:
    for name in (b"a b+c&d=e%2F?#", "é\u2028\U0001f600".encode(), b"\xff\xfe raw", b"-rf", b"\\", b"\x01\n"):
        assert files.put(b"names/" + name, name).status == 204
        assert files.get(b"names/" + name).body == name
    assert sorted(map(os.fsencode, files.listed("names"))) == sorted(
        [b"a b+c&d=e%2F?#", "é\u2028\U0001f600".encode(), b"\xff\xfe raw", b"-rf", b"\\", b"\x01\n"]
    )


@pytest.mark.parametrize(
    ("path", "statuses"),
    [
        ("", {400}),
        ("\0", {400}),
        ("a\0b", {400}),
        ("x" * 5000, {400}),
        ("x" * 300, {404, 409}),
        ("a/" * 2000, {400, 404, 409}),
        ("/", {409}),
        (".", {409}),
        ("..", {409}),
        ("../../../../../../etc/shadow", {404}),
        ("/proc/1/environ", {403, 404, 409}),
        ("/proc/self/root/etc/passwd", {403, 404, 409}),
        ("/dev/zero", {403, 404, 409}),
        ("nothing/here", {404}),
    ],
)
def test_a_path_that_is_no_file_is_a_plain_refusal(files: Files, path: str, statuses: set[int]) -> None:
    answer = files.get(path)
    assert answer.status in statuses
    assert set(answer.json) == {"error", "code", "hint", "details"}


def test_links_and_dots_do_not_lead_out_of_the_sandbox(files: Files) -> None:
    made = "import os; os.symlink('/etc/hostname', 'link'); os.symlink('../../../../../..', 'up'); os.mkfifo('fifo')"
    files.caller.run(files.sandbox_id, made)
    own = files.caller.run(files.sandbox_id, "os.path.exists('/etc/hostname') and open('/etc/hostname').read()")
    through = files.get("link")
    assert through.status in (200, 404)
    if through.status == 200:
        assert repr(through.body.decode()) == own["value"]
    assert files.listed("up") == files.listed("/")
    assert files.get("fifo").code == "file_forbidden"
    assert files.put("fifo", b"x").status in (403, 409)


@pytest.mark.parametrize(
    ("query", "argument"),
    [
        ("", "path"),
        ("?path=a&path=b", "path"),
        ("?path=a&other=1", "other"),
        ("?Path=a", "path"),
        ("?path=a&recursive=maybe", "recursive"),
        ("?" + "&".join(f"a{number}=1" for number in range(2000)), "query"),
    ],
)
def test_a_query_that_is_not_understood_is_refused(files: Files, query: str, argument: str) -> None:
    method = "DELETE" if "recursive" in query else "GET"
    answer = files.caller.ask(method, files.base + query)
    assert answer.status == 400
    assert answer.json["details"]["argument"] == argument


def test_folders_are_made_listed_renamed_and_removed(files: Files) -> None:
    ask, base = files.caller.ask, files.base
    assert ask("POST", f"{base}/mkdir", {"path": "d/e"}).status == 204
    assert ask("POST", f"{base}/mkdir", {"path": "d/e", "parents": False}).code == "file_exists"
    assert ask("POST", f"{base}/mkdir", {"path": "x/y/z", "parents": False}).code == "file_not_found"
    files.put("d/b", b"1")
    files.put("d/a", b"2")
    assert files.listed("d") == ["a", "b", "e"]
    assert ask("POST", f"{base}/rename", {"path": "d/b", "new_path": "d/c"}).status == 204
    assert files.listed("d") == ["a", "c", "e"]
    assert ask("DELETE", files.target("d/c")).status == 204
    assert ask("DELETE", files.target("d/c")).status == 404
    assert ask("DELETE", files.target("d")).status == 409
    assert ask("DELETE", files.target("d") + "&recursive=true").status == 204
    assert files.get("d/a").status == 404
    assert files.get("/root").code == "file_is_folder"


def test_stat_tells_of_one_entry(files: Files) -> None:
    files.put("a", b"12345")
    answer = files.caller.ask("GET", f"{files.base}/stat?path=a")
    assert {"name": "a", "type": "file", "size_bytes": 5, "mode": 0o644}.items() <= answer.json.items()
    assert "/root" not in answer.json["name"]


@pytest.mark.parametrize("route", ["mkdir", "rename"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"path":7,"new_path":"b"}',
        b'{"path":"a","new_path":""}',
        b'{"path":"\\ud800","new_path":"a"}',
        b'{"path":"a\\u0000","new_path":"b"}',
        b'{"path":"a","path":"b","new_path":"c"}',
        b'{"path":"a","new_path":"b","more":1}',
        b'{"path":"' + b"x" * 5000 + b'","new_path":"a"}',
        b"[" * 100_000,
        b'{"path":NaN}',
    ],
)
def test_a_body_that_is_not_understood_is_refused(files: Files, route: str, body: bytes) -> None:
    answer = files.caller.ask("POST", f"{files.base}/{route}", body)
    if route == "mkdir" and body == b'{"path":"a","new_path":""}':
        assert answer.json["details"]["argument"] == "new_path"
    assert answer.status == 400


def test_files_of_a_sandbox_that_is_not_there_are_not_found(caller: Caller) -> None:
    files = Files(caller, "sbx_" + "0" * 32)
    assert files.get("a").json["error"] == "sandbox not found"
    assert files.put("a", b"x").status == 404
    assert files.put("a", iter([b"x" * 1000] * 1000)).status == 404


def test_an_upload_that_is_refused_early_is_answered_early(caller: Caller) -> None:
    """Nobody has to send a gigabyte to learn that there is no such sandbox."""
    target = f"/v1/sandboxes/sbx_{'0' * 32}/files?path=a"
    with caller.begin("PUT", target, "Content-Length: 1073741824", b"x" * 1_000_000) as connection:
        assert connection.recv(12) == b"HTTP/1.1 404"


def test_an_upload_whose_client_vanishes_is_given_up(files: Files, shared_server: Server) -> None:
    connection = files.caller.begin("PUT", files.target("half"), "Content-Length: 10000000", b"x" * 500_000)
    connection.close()
    given_up = f"PUT /v1/sandboxes/{{sandbox_id}}/files 499 .* sandbox={files.sandbox_id}"
    wait_until(lambda: re.search(given_up, shared_server.log.read_text()) is not None, "the upload is given up")
    assert len(files.get("half").body) <= 500_000
    assert files.put("half", b"whole").status == 204
    assert files.get("half").body == b"whole"


def test_a_download_whose_client_vanishes_is_given_up(files: Files) -> None:
    files.caller.run(files.sandbox_id, "open('sparse','wb').truncate(3_000_000_000)")
    for _ in range(3):
        with files.caller.begin("GET", files.target("sparse")) as connection:
            assert connection.recv(12) == b"HTTP/1.1 200"
    assert files.get("sparse", "bytes=2999999990-").body == bytes(10)


def test_a_disk_that_is_full_is_a_plain_refusal(caller: Caller) -> None:
    made = caller.sandbox(disk_mib=4)
    answer = Files(caller, made).put("big", iter([bytes(100_000)] * 100))
    assert answer.status == 409
    assert answer.json["details"]["errno"] == 28
    assert caller.run(made, "6 * 7")["value"] == "42"
    caller.ask("DELETE", f"/v1/sandboxes/{made}")


def test_paths_are_not_logged(files: Files, shared_server: Server) -> None:
    files.put("a-very-secret-name", b"a-very-secret-text")
    files.caller.ask("POST", f"{files.base}/mkdir", {"path": "a-very-secret-folder"})
    log = shared_server.log.read_text()
    assert "PUT /v1/sandboxes/{sandbox_id}/files 204" in log
    assert f"sandbox={files.sandbox_id}" in log
    assert not re.search(r"a-very-secret|path=", log)


def test_a_long_folder_is_listed_whole(files: Files) -> None:
    files.caller.run(
        files.sandbox_id, "import os\nos.mkdir('many')\nfor n in range(3000): open(f'many/{n:05}', 'w').close()"
    )
    assert files.listed("many") == [f"{number:05}" for number in range(3000)]


def test_what_is_written_to_one_connection_is_answered_in_order(files: Files) -> None:
    """Uploads and downloads on one kept connection: the body of each is taken in, and no byte more."""
    first = f"PUT {files.target('p')} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"
    second = f"GET {files.target('p')} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection((files.caller.host, files.caller.port), timeout=30) as connection:
        connection.sendall((first + second).encode())
        said = b""
        while piece := connection.recv(65536):
            said += piece
    assert said.startswith(b"HTTP/1.1 204")
    assert said.endswith(b"\r\n\r\nabc")


def test_every_error_is_json(files: Files) -> None:
    answer = files.get("nothing")
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body)["code"] == "file_not_found"
