"""Variables, folder and mounts given to a sandbox: data, whatever characters they hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet import InvalidArgument, Mount, Sandbox
from ramet.transport import embedded
from tests.behaviour.faces import MakeSandbox
from tests.processes import descendants

NASTY = [
    "two words",
    "line\nbreak\ttab\r",
    "quote ' \" ` $(touch /root/ran) ${HOME} ; & | > < * ? \\",
    "%s {x} %(a)s",
    "čau 世界 🐈 \u2028",
    "\udcff\udc80 raw bytes",
    "",
    " leading and trailing ",
    "-n",
    "\x01\x1b[31m",
    "x" * 100_000,
]


@pytest.mark.every_face
def test_env_values_arrive_as_given_whatever_they_hold(make_any_sandbox: MakeSandbox) -> None:
    given = {f"NASTY_{number}": value for number, value in enumerate(NASTY)}
    sandbox = make_any_sandbox(env=given)
    for name, value in given.items():
        assert sandbox.run_code(f"import os; os.environb[{name!r}.encode()]").value == repr(os.fsencode(value))
    script = "for i in 0 1 2; do n=NASTY_$i; printf '%s\\0' \"${!n}\"; done"
    assert sandbox.run_code(script, language="bash").stdout.split("\0")[:3] == NASTY[:3]
    assert not sandbox.files.exists("/root/ran")


@pytest.mark.parametrize("name", ["with space", "a-b.c", "čau", "(x)", "new\nline", "-"])
def test_env_names_may_hold_any_characters_but_equals_and_nul(make_any_sandbox: MakeSandbox, name: str) -> None:
    sandbox = make_any_sandbox(env={name: "here"})
    assert sandbox.run_code(f"import os; os.environ[{name!r}]").value == "'here'"


def test_env_is_set_on_top_of_the_sandboxs_own(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(env={"HOME": "/tmp", "MINE": "1", "TZ": "Asia/Tokyo"})
    assert sandbox.run_code("import os; (os.environ['HOME'], os.environ['MINE'], 'PATH' in os.environ)").value == (
        "('/tmp', '1', True)"
    )
    assert sandbox.run_code("import time; time.tzname[0]").value == "'JST'"


@pytest.mark.promise("wall-environment")
def test_the_environment_of_the_caller_stays_outside(
    make_any_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET_TOKEN", "not for sandboxes")
    assert make_any_sandbox().run_code("import os; os.environ.get('MY_SECRET_TOKEN')").value is None


def test_values_of_env_are_in_no_message_no_process_title_and_no_log(make_sandbox: Callable[..., Sandbox]) -> None:
    secret = "hunter2-hunter2"
    sandbox = make_sandbox(env={"TOKEN": secret})
    assert secret not in repr(sandbox)
    assert secret not in repr(sandbox.info())
    for pid in descendants(os.getpid()):
        for file in ("cmdline", "comm"):
            try:
                assert secret.encode() not in Path(f"/proc/{pid}/{file}").read_bytes()
            except OSError:
                continue  # ended meanwhile
    engine = embedded.default_engine()
    assert secret not in engine._process.stderr_tail()
    for wrong in ({"TOKEN": secret + "\0"}, {"TOKEN": secret, "": ""}, {"TOKEN": secret, "a=b": ""}):
        with pytest.raises(InvalidArgument) as refused:
            Sandbox(env=wrong)
        assert secret not in str(refused.value)
    with pytest.raises(InvalidArgument) as refused:
        Sandbox(env={"TOKEN": secret}, cwd="/does/not/exist")
    assert secret not in str(refused.value)


def test_cwd_is_where_the_first_cell_starts(make_any_sandbox: MakeSandbox) -> None:
    sandbox = make_any_sandbox(cwd="/var/tmp")
    assert sandbox.run_code("import os; os.getcwd()").value == "'/var/tmp'"
    assert sandbox.run_code("pwd", language="bash").stdout == "/var/tmp\n"


@pytest.mark.parametrize("name", ["two words", "quote'\"$(x)`", "čau 世", "-n", "%s{x}"])
def test_cwd_and_mount_targets_may_hold_any_characters(
    make_local_sandbox: MakeSandbox, tmp_path: Path, name: str
) -> None:
    source = tmp_path / name
    source.mkdir()
    (source / "file").write_text("seen")
    sandbox = make_local_sandbox(mounts={f"/mnt/{name}": source}, cwd=f"/mnt/{name}")
    assert sandbox.run_code("import os; (os.getcwd(), open('file').read())").value == repr((f"/mnt/{name}", "seen"))


@pytest.mark.every_face
def test_a_cwd_that_is_not_there_is_an_invalid_argument_and_leaves_nothing(make_any_sandbox: MakeSandbox) -> None:
    with pytest.raises(InvalidArgument) as refused:
        make_any_sandbox(cwd="/does/not/exist")
    assert refused.value.argument == "cwd"
    assert "/does/not/exist" in str(refused.value)


def test_a_mount_shows_a_host_folder_read_only(make_local_sandbox: MakeSandbox, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("from the host")
    sandbox = make_local_sandbox(mounts={"/data": tmp_path})
    assert sandbox.run_code("open('/data/in').read()").value == "'from the host'"
    for code in (
        "open('/data/out', 'w')",
        "open('/data/in', 'a')",
        "import os; os.remove('/data/in')",
        "os.mkdir('/data/d')",
    ):
        result = sandbox.run_code(code)
        assert result.error is not None
        assert (result.error.name, "Read-only file system" in result.error.message) == ("OSError", True)
    (tmp_path / "later").write_text("seen at once")
    assert sandbox.run_code("open('/data/later').read()").value == "'seen at once'"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in", "later"]


def test_a_relative_source_is_below_the_folder_of_the_caller(
    make_local_sandbox: MakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/f").write_text("1")
    assert make_local_sandbox(mounts={"/data": "./data"}).run_code("open('/data/f').read()").value == "'1'"


def test_a_writable_mount_changes_the_host_folder_for_real(make_local_sandbox: MakeSandbox, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("old")
    sandbox = make_local_sandbox(mounts={"/data": Mount(tmp_path, writable=True)})
    result = sandbox.run_code("open('/data/in', 'a').write(' and new')\nopen('/data/out', 'w').write('made inside')")
    assert result.ok, result.stderr
    assert (tmp_path / "in").read_text() == "old and new"
    assert (tmp_path / "out").read_text() == "made inside"
    assert (tmp_path / "out").stat().st_uid == os.getuid()


def test_several_mounts_stand_beside_and_below_each_other(make_local_sandbox: MakeSandbox, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    (tmp_path / "a" / "inner").mkdir()
    sandbox = make_local_sandbox(
        mounts={"/data": tmp_path / "a", "/data/inner": tmp_path / "b", "/deep/er/still": Mount(tmp_path / "b")}
    )
    read = "[open(p).read() for p in ('/data/name', '/data/inner/name', '/deep/er/still/name')]"
    assert sandbox.run_code(read).value == "['a', 'b', 'b']"


def test_the_files_api_reads_mounts_and_obeys_read_only(make_local_sandbox: MakeSandbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1")
    sandbox = make_local_sandbox(mounts={"/data": tmp_path})
    assert sandbox.files.read("/data/f") == b"1"
    with pytest.raises(PermissionError):
        sandbox.files.write("/data/g", b"")
    with pytest.raises(PermissionError):
        sandbox.files.remove("/data/f")
    assert (tmp_path / "f").exists()
    assert not (tmp_path / "g").exists()


def test_links_in_a_mount_do_not_lead_to_the_host(make_local_sandbox: MakeSandbox, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("of the host")
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "absolute").symlink_to(tmp_path / "outside")
    (tmp_path / "shown" / "relative").symlink_to("../outside")
    sandbox = make_local_sandbox(mounts={"/data": tmp_path / "shown"})
    for name in ("absolute", "relative"):
        assert sandbox.run_code(f"open('/data/{name}')").error is not None
        with pytest.raises(FileNotFoundError):
            sandbox.files.read(f"/data/{name}")
