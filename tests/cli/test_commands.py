"""`ramet create`, `exec`, `cp`, `diff`, `merge`, `snapshot`, `templates`, as a person uses them one after the other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pexpect
import pytest

from ramet import Sandbox
from tests.cli.commands import COMMAND, environment, ramet
from tests.server.running import Server

_WAIT_SECONDS = 30


def test_a_sandbox_is_made_with_its_variables_and_stays(server: Server) -> None:
    made = ramet(
        "create", "--env", "MODE=fast", "--env", "FROM_HERE", "--memory-mib", "256", url=server.url, FROM_HERE="x"
    )
    sandbox_id = made.stdout.strip()
    assert made.returncode == 0, made.stderr
    told = ramet("exec", sandbox_id, "echo $MODE $FROM_HERE", url=server.url)
    assert (told.returncode, told.stdout) == (0, "fast x\n")
    (row,) = (row for row in json.loads(ramet("ps", "--json", url=server.url).stdout) if row["id"] == sandbox_id)
    assert row["memory_limit_bytes"] == 256 << 20
    assert ramet("rm", sandbox_id, url=server.url).returncode == 0


def test_exec_runs_commands_and_code_with_their_exit_codes(server: Server, kept: Sandbox) -> None:
    short = kept.id[:12]
    done = ramet("exec", short, "sh", "-c", "echo $0 'a b'; echo e >&2; exit 7", url=server.url)
    assert (done.returncode, done.stdout, done.stderr) == (7, "sh a b\n", "e\n")
    assert ramet("exec", "-c", "x + 1", short, url=server.url).stdout == "42\n"
    assert ramet("exec", "-i", short, "wc", "-c", url=server.url, given="12345").stdout.strip() == "5"
    assert ramet("exec", "--timeout", "0.5", short, "sleep", "60", url=server.url).returncode == 124
    assert not [entry.name for entry in kept.files.list("/var/tmp") if "input" in entry.name]
    for wrong in ([short], ["-c", "1", short, "ls"], ["-t", short, "ls"]):
        assert ramet("exec", *wrong, url=server.url).returncode == 125


def test_exec_says_where_its_options_go(server: Server, kept: Sandbox) -> None:
    for option in (["-c", "x + 1"], ["-it", "bash"], ["--timeout", "3", "ls"], ["-x"]):
        done = ramet("exec", kept.id, *option, url=server.url)
        assert (done.returncode, done.stdout) == (125, "")
        assert done.stderr.startswith(f"ramet: options go before SANDBOX, and {option[0]} comes after it")
    assert ramet("exec", kept.id, "--", "echo", "--", "-x", url=server.url).stdout == "-- -x\n"


def test_exec_on_a_terminal_passes_keys_size_and_exit_code(server: Server, kept: Sandbox) -> None:
    child = pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], "exec", "-it", kept.id, "bash"],
        env=environment(server.url, TERM="xterm"),  # type: ignore[arg-type, unused-ignore]
        encoding="utf-8",
        timeout=_WAIT_SECONDS,
        dimensions=(33, 99),
    )
    try:
        child.sendline("stty size; test -t 0 && echo is-a-term''inal")
        child.expect_exact("33 99")
        child.expect_exact("is-a-terminal")
        # The program itself says that it runs: bash would keep a ^C that came before the program had the terminal.
        child.sendline("sh -c 'echo run''ning; exec sleep 600'")
        child.expect_exact("running")
        child.sendintr()
        child.sendline("exit 5")
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 5
    finally:
        child.close(force=True)


def test_files_and_folders_are_copied_both_ways(server: Server, kept: Sandbox, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "tool.sh").write_text("#!/bin/sh\n")
    (folder / "data.bin").write_bytes(os.urandom(3_000_000))
    (folder / "link").symlink_to("/etc/passwd")
    up = ramet("cp", str(folder), f"{kept.id}:there", url=server.url)
    assert up.returncode == 0
    assert "link" in up.stderr
    assert sorted(entry.name for entry in kept.files.list("there")) == ["data.bin", "deep"]
    kept.run_code("import os; os.chmod('there/deep/tool.sh', 0o755)")

    down = ramet("cp", "--json", f"{kept.id}:there", str(tmp_path / "back"), url=server.url)
    assert json.loads(down.stdout)["bytes"] == 3_000_000 + len("#!/bin/sh\n")
    assert (tmp_path / "back" / "data.bin").read_bytes() == (folder / "data.bin").read_bytes()
    assert os.access(tmp_path / "back" / "deep" / "tool.sh", os.X_OK)

    # Into folders that exist, under the same name; several at once.
    assert ramet("cp", f"{kept.id}:there/data.bin", str(tmp_path), url=server.url).returncode == 0
    assert (tmp_path / "data.bin").stat().st_size == 3_000_000
    both = [str(tmp_path / "data.bin"), str(folder / "deep")]
    assert ramet("cp", *both, f"{kept.id}:/new/", url=server.url).returncode == 0
    assert sorted(entry.name for entry in kept.files.list("/new")) == ["data.bin", "deep"]


def test_what_comes_out_of_a_sandbox_stays_below_the_target(server: Server, kept: Sandbox, tmp_path: Path) -> None:
    kept.run_code(
        "import os\nos.makedirs('evil/out')\nos.symlink('/etc', 'evil/link')\nos.mkfifo('evil/fifo')\n"
        "open('evil/odd\\nname', 'w').write('x')\nopen('evil/out/file', 'w').write('x')"
    )
    outside = tmp_path / "outside"
    outside.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "evil").mkdir()
    (target / "evil" / "out").symlink_to(outside)
    done = ramet("cp", f"{kept.id}:evil", str(target), url=server.url)
    assert done.returncode == 1  # a link lies where a folder must be
    assert list(outside.iterdir()) == []
    (target / "evil" / "out").unlink()
    done = ramet("cp", f"{kept.id}:evil", str(target), url=server.url)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in target.rglob("*")) == ["evil", "file", "out"]
    assert "fifo" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("a", "b"), "must be in a sandbox"),
        (("{id}:a", "{id}:b"), "must be on this machine"),
        (("{id}:no-such-file", "."), "no-such-file"),
        (("no-such-file", "{id}:"), "cannot read no-such-file"),
        (("{id}:huge", "/dev/null/folder/"), "cannot make the folder /dev/null/folder/: Not a directory"),
        (("--max-mib", "1", "{id}:huge", "here"), "more than 1.0 MiB"),
    ],
)
def test_a_copy_that_cannot_be_made_says_why(
    server: Server,
    kept: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    kept.run_code("open('huge', 'wb').truncate(1 << 50)")
    done = ramet("cp", *(one.format(id=kept.id) for one in arguments), url=server.url)
    assert done.returncode == 1
    assert told in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_best_fork_is_found_and_kept(server: Server, kept: Sandbox) -> None:
    (child,) = ramet("fork", kept.id, url=server.url).stdout.split()
    ramet("exec", "-c", "x = 99", child, url=server.url)
    ramet("exec", child, "echo text > new.txt", url=server.url)
    shown = ramet("diff", kept.id, child, url=server.url).stdout
    assert "~ x: int 41 -> int 99" in shown
    assert "+ /root/new.txt" in shown
    told = json.loads(ramet("diff", kept.id, child, "--path", "/tmp", "--json", url=server.url).stdout)
    assert (told["files"], [name["name"] for name in told["names"]]) == ([], ["x"])
    assert ramet("merge", kept.id, child, url=server.url).stdout.strip() == kept.id
    assert kept.run_code("x, open('new.txt').read()").value == r"(99, 'text\n')"
    assert child not in ramet("ps", "-q", url=server.url).stdout.split()


def test_snapshots_are_taken_gone_back_to_made_into_sandboxes_and_removed(server: Server, kept: Sandbox) -> None:
    snapshot = ramet("snapshot", kept.id, url=server.url).stdout.strip()
    assert ramet("snapshot", "--list", url=server.url).stdout.split() == [snapshot]
    kept.run_code("x = 0")
    assert "~ x: int 41 -> int 0" in ramet("diff", kept.id, snapshot[:12], url=server.url).stdout
    assert ramet("snapshot", "--list", url=server.url).stdout.split() == [snapshot]
    assert ramet("snapshot", kept.id, "--restore", snapshot[:12], url=server.url).stdout.strip() == kept.id
    assert kept.run_code("x").value == "41"
    other = ramet("create", "--snapshot", snapshot, url=server.url).stdout.strip()
    assert ramet("exec", "-c", "x + 1", other, url=server.url).stdout == "42\n"
    assert ramet("snapshot", "--remove", snapshot, url=server.url).returncode == 0
    assert ramet("snapshot", "--list", url=server.url).stdout == ""
    assert ramet("snapshot", kept.id, "--restore", snapshot, url=server.url).returncode == 1
    assert ramet("rm", other, url=server.url).returncode == 0


def test_a_snapshot_with_a_name_is_a_template_of_its_key_alone(server: Server, kept: Sandbox) -> None:
    assert ramet("snapshot", kept.id, "--name", "with-x", url=server.url).stdout == "with-x\n"
    listed = json.loads(ramet("templates", "--json", url=server.url).stdout)
    assert {"name": "with-x", "kind": "snapshot"} in listed
    assert {"name": "default", "kind": "built in"} in listed
    assert ramet("run", "--template", "with-x", "-c", "x", url=server.url).stdout == "41\n"
    key = server.create_key("somebody")
    assert "with-x" not in ramet("templates", url=server.url, RAMET_API_KEY=key).stdout
    assert ramet("snapshot", "--list", url=server.url, RAMET_API_KEY=key).stdout == ""
    assert "built in" in ramet("templates").stdout
