"""Cells through the published client."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import podflare
import pytest

from tests.server.running import Server

# Each of these ends a line for str.splitlines, and none does for a terminal.
SEPARATORS = "before\u2028after\u2029and\x85then\x0bmore\x0cand\x1cend"


def put_file(server: Server, sandbox_id: str, path: str) -> None:
    """Through a route of our own, which works while a cell runs."""
    url = f"{server.url}/v1/sandboxes/{sandbox_id}/files?path={path}"
    urllib.request.urlopen(urllib.request.Request(url, data=b"", method="PUT")).close()


def test_a_cell_of_each_language(published: Any) -> None:
    python = published.run_code("print(6 * 7)")
    assert (python.stdout.strip(), python.stderr, python.exit_code, python.ok) == ("42", "", 0, True)
    bash = published.run_code("echo out; echo err >&2; exit 3", language="bash")
    assert (bash.stdout.strip(), bash.stderr.strip(), bash.exit_code, bash.ok) == ("out", "err", 3, False)


def test_state_stays_between_cells(published: Any) -> None:
    published.run_code("import os\nx = [1]\nos.chdir('/tmp')")
    assert published.run_code("x.append(2); print(x, os.getcwd())").stdout.strip() == "[1, 2] /tmp"


def test_exceptions_and_exits_leave_the_repl_alive(published: Any) -> None:
    failed = published.run_code("kept = 1\n1 / 0")
    assert failed.exit_code == 1
    assert "ZeroDivisionError" in failed.stderr
    assert published.run_code("raise SystemExit(7)").exit_code == 7
    assert published.run_code("print(kept)").stdout.strip() == "1"


def test_lines_arrive_while_the_cell_runs(published: Any, server: Server) -> None:
    """The cell waits for a file that is only written once its first line is here."""
    code = "import os, time\nprint('first')\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nprint('second')"
    seen = []
    for event in published.run_code_stream(code):
        seen.append((event.type, event.data))
        if event.data == "first":
            put_file(server, published.id, "/tmp/go")
    assert seen == [("stdout", "first"), ("stdout", "second"), ("exit", 0)]


def test_a_partial_last_line_is_not_lost(published: Any) -> None:
    assert published.run_code("print('a\\nb', end='')").stdout.rstrip("\n") == "a\nb"
    assert published.run_code("import os; _ = os.write(1, b'\\xc3'); _ = os.write(1, b'\\xa4')").stdout.strip() == "ä"


def test_separators_of_unicode_do_not_break_lines(published: Any) -> None:
    result = published.run_code(f"print({SEPARATORS!r}); print('next')")
    assert result.stdout.rstrip("\n").split("\n") == [SEPARATORS, "next"]
    assert result.exit_code == 0


def test_a_line_of_three_megabytes(published: Any) -> None:
    result = published.run_code("print('x' * 3_000_000); print('end')")
    assert result.stdout.rstrip("\n") == "x" * 3_000_000 + "\nend"


def test_many_lines(published: Any) -> None:
    result = published.run_code("for i in range(100_000): print(i)")
    assert result.stdout.split() == [str(number) for number in range(100_000)]


@pytest.mark.deep("load")
def test_a_cell_that_says_nothing_for_forty_seconds(published: Any) -> None:
    """The client gives up after 30 s without a byte; its user must not notice."""
    result = published.run_code("import time; time.sleep(40); print('awake')")
    assert (result.stdout.strip(), result.exit_code) == ("awake", 0)


def test_two_clients_on_one_sandbox(published: Any, server: Server) -> None:
    with ThreadPoolExecutor(2) as threads:
        clients = [podflare.Client(host=server.url) for _ in range(2)]
        published.run_code("order = []")

        def run(client: Any, name: str) -> list[Any]:
            return [list(client.exec_stream(published.id, f"order.append('{name}')")) for _ in range(10)]

        for done in [threads.submit(run, client, name) for client, name in zip(clients, "ab", strict=True)]:
            done.result(60)
        for client in clients:
            client.close()
    assert sorted(published.run_code("print(*order)").stdout.split()) == ["a"] * 10 + ["b"] * 10


def test_thirty_two_threads_on_one_client(make: Callable[..., Any], server: Server) -> None:
    client = podflare.Client(host=server.url)
    ids = [client.create_sandbox() for _ in range(4)]
    try:

        def work(number: int) -> tuple[int, list[Any]]:
            events = client.exec_stream(ids[number % 4], f"import threading\nprint({number} * 1000)")
            return number, [(event.type, event.data) for event in events]

        with ThreadPoolExecutor(32) as threads:
            answers = list(threads.map(work, range(128)))
    finally:
        for sandbox_id in ids:
            client.destroy_sandbox(sandbox_id)
        client.close()
    assert answers == [(number, [("stdout", str(number * 1000)), ("exit", 0)]) for number in range(128)]


def test_cells_of_two_threads_wait_for_each_other(published: Any) -> None:
    published.run_code("running = 0; most = 0")
    code = "running += 1; most = max(most, running)\nimport time; time.sleep(0.05)\nrunning -= 1"
    threads = [threading.Thread(target=published.run_code, args=(code,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert published.run_code("print(running, most)").stdout.strip() == "0 1"
