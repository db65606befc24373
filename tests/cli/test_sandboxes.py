"""`ramet ps`, `fork`, `rm`, `logs`, `top`: the sandboxes of a server, for people and for scripts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ramet import Sandbox
from tests.cli.commands import COMMAND, WAIT_SECONDS, environment, ramet
from tests.server.running import Server


def test_ps_lists_what_there_is(server: Server, kept: Sandbox) -> None:
    lines = ramet("ps", url=server.url).stdout.splitlines()
    assert lines[0].startswith("SANDBOX")
    assert any(line.startswith(kept.id[:10]) and " idle " in line for line in lines[1:])
    assert max(map(len, lines)) <= 80
    (row,) = (row for row in json.loads(ramet("ps", "--json", url=server.url).stdout) if row["id"] == kept.id)
    assert (row["state"], row["template"], row["waiting"]) == ("idle", "default", 0)
    assert kept.id in ramet("ps", "-q", url=server.url).stdout.split()


def test_fork_prints_the_ids_of_copies_that_remember(server: Server, kept: Sandbox) -> None:
    ids = ramet("fork", kept.id, "-n", "3", url=server.url).stdout.split()
    assert len(set(ids)) == 3
    for number, child in enumerate(ids):
        assert ramet("run", "--sandbox", child, "-c", f"x + {number}", url=server.url).stdout == f"{41 + number}\n"
    assert ramet("rm", *ids, url=server.url).stdout.split() == ids
    one = json.loads(ramet("fork", kept.id, "--json", url=server.url).stdout)
    assert json.loads(ramet("rm", *one, "--json", url=server.url).stdout) == one


def test_take_brings_variables_and_files_of_a_copy(server: Server, kept: Sandbox) -> None:
    (child,) = ramet("fork", kept.id, url=server.url).stdout.split()
    Sandbox.connect(child, url=server.url).run_code("x = 7; y = 8; _ = open('/root/note', 'w').write('n')")
    done = ramet("take", kept.id, child, "--names", "x,y", "--files", "note", url=server.url)
    assert (done.returncode, done.stdout.split()) == (0, ["x", "y", "added", "/root/note"])
    assert ramet("run", "--sandbox", kept.id, "-c", "x, y", url=server.url).stdout == "(7, 8)\n"
    Sandbox.connect(child, url=server.url).run_code("x = 9")
    refused = ramet("take", kept.id, child, "--names", "x", url=server.url)
    assert (refused.returncode, "both sandboxes have changed names x" in refused.stderr) == (1, True)
    taken = json.loads(ramet("take", kept.id, child, "--names=x", "--prefer=theirs", "--json", url=server.url).stdout)
    assert taken["names"] == ["x"]
    ramet("rm", child, url=server.url)


def test_cells_are_shown_and_taken_back(server: Server) -> None:
    sandbox = ramet("create", "--history", "20", url=server.url).stdout.strip()
    for number in range(1, 4):
        Sandbox.connect(sandbox, url=server.url).run_code(f"x = {number}")
    points = json.loads(ramet("log", sandbox, "--json", url=server.url).stdout)["points"]
    assert [point["code"] for point in points] == ["", "x = 1", "x = 2", "x = 3"]
    assert "x = 3" in ramet("log", sandbox, url=server.url).stdout
    assert "undone: cell" in ramet("undo", sandbox, url=server.url).stdout
    assert ramet("run", "--sandbox", sandbox, "-c", "x", url=server.url).stdout == "2\n"
    first = next(point["id"] for point in points if point["code"] == "x = 1")
    (child,) = ramet("fork", sandbox, "--at", first, url=server.url).stdout.split()
    assert ramet("run", "--sandbox", child, "-c", "x", url=server.url).stdout == "1\n"
    assert json.loads(ramet("rewind", sandbox, first, "--json", url=server.url).stdout)["point"]["id"] == first
    assert ramet("run", "--sandbox", sandbox, "-c", "x", url=server.url).stdout == "1\n"
    refused = ramet("rewind", sandbox, "p1000", url=server.url)
    assert (refused.returncode, "there is no point 'p1000'" in refused.stderr) == (1, True)
    ramet("rm", sandbox, child, url=server.url)


def test_the_past_shows_what_was_typed_for_run_and_exec(server: Server, tmp_path: Path) -> None:
    sandbox = ramet("create", "--history", "20", url=server.url).stdout.strip()
    script = tmp_path / "job.py"
    script.write_text("y = 2\n")
    for arguments in (
        ("exec", "-c", "if True:\n    x = 1", sandbox),
        ("exec", sandbox, "ls", "/root/a b"),
        ("run", "--sandbox", sandbox, str(script), "--fast"),
        ("run", "--sandbox", sandbox, "-c", "z = '\x1b'"),
    ):
        ramet(*arguments, url=server.url)
    points = json.loads(ramet("log", sandbox, "--json", url=server.url).stdout)["points"]
    assert [point["code"].splitlines()[0] for point in points[1:]] == [
        "# if True: x = 1",
        "# $ ls '/root/a b'",
        f"# {script} --fast",
        "# z = '\\x1b'",
    ]
    ramet("rm", sandbox, url=server.url)


def test_rm_goes_on_after_an_id_that_is_unknown(server: Server) -> None:
    ids = [ramet("run", "--keep", "-c", "1", url=server.url).stderr.split()[-1] for _ in range(2)]
    done = ramet("rm", ids[0], "sbx_nothing", ids[1], url=server.url)
    assert (done.returncode, done.stdout.split()) == (1, ids)
    assert "no sandbox begins with 'sbx_nothing'" in done.stderr


def test_an_id_that_is_not_long_enough_is_refused(server: Server, kept: Sandbox) -> None:
    with Sandbox(url=server.url):
        done = ramet("fork", "sbx_", url=server.url)
    assert done.returncode == 1
    assert "sandboxes begin with 'sbx_'" in done.stderr


def test_logs_show_what_was_printed(server: Server, kept: Sandbox) -> None:
    kept.run_code("import sys; print('out'); print('err', file=sys.stderr); sys.exit(4)")
    done = ramet("logs", kept.id, url=server.url)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    stamped = ramet("logs", "--timestamps", kept.id, url=server.url).stdout
    assert "exit code 4" in stamped
    events = [json.loads(line) for line in ramet("logs", "--json", kept.id, url=server.url).stdout.splitlines()]
    assert {event["type"]: event["data"] for event in events if event["type"] != "exit"} == {
        "stdout": "out\n",
        "stderr": "err\n",
    }
    assert events[-1]["code"] == 4


@pytest.mark.deep("load")
def test_logs_can_be_followed(server: Server, kept: Sandbox) -> None:
    kept.run_code("print('before')")
    with subprocess.Popen(
        [*COMMAND, "logs", "--follow", kept.id], stdout=subprocess.PIPE, text=True, env=environment(server.url)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "before\n"
        for number in range(3):
            kept.run_code(f"print({number})")
            assert process.stdout.readline() == f"{number}\n"
        kept.close()
        assert process.wait(WAIT_SECONDS) == 0


def test_top_says_what_they_use(server: Server, kept: Sandbox) -> None:
    kept.run_code("ballast = bytearray(64 << 20)")
    lines = ramet("top", url=server.url).stdout.splitlines()
    assert lines[0].startswith("SANDBOX")
    assert any(line.startswith(kept.id[:10]) for line in lines)
    assert max(map(len, lines)) <= 80
    (use,) = (use for use in json.loads(ramet("top", "--json", url=server.url).stdout) if use["id"] == kept.id)
    assert use["state"] == "idle"
    assert use["memory_bytes"] > 64 << 20


@pytest.mark.parametrize(
    "command",
    [
        *[("ps",), ("top",), ("logs", "sbx_1"), ("fork", "sbx_1"), ("rm", "sbx_1"), ("create",), ("templates",)],
        *[
            ("cp", "/etc/hosts", "sbx_1:"),
            ("diff", "sbx_1", "sbx_2"),
            ("merge", "sbx_1", "sbx_2"),
            ("take", "sbx_1", "sbx_2", "--all-files"),
            ("snapshot", "sbx_1"),
        ],
    ],
)
def test_without_a_server_it_is_said_how_to_start_one(command: tuple[str, ...]) -> None:
    # The usual port may be in use on this machine: then another is asked for, and the error is of that one.
    done = ramet(*command, "--url", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "http://127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_that_is_wrong_is_told(server: Server) -> None:
    server.create_key("known")  # where no key was ever made, any is taken
    done = ramet("ps", url=server.url, RAMET_API_KEY="rmt_wrong")
    assert done.returncode == 1
    assert "key" in done.stderr


def test_each_key_sees_its_own(server: Server, kept: Sandbox) -> None:
    key = server.create_key("another")
    assert ramet("ps", "-q", url=server.url, RAMET_API_KEY=key).stdout == ""
    done = ramet("logs", kept.id, url=server.url, RAMET_API_KEY=key)
    assert done.returncode == 1
