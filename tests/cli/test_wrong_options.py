"""What is typed wrong is told in words of the command line, by the command it was typed for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ramet import Sandbox
from ramet.cli.sandbox_ids import short
from tests.cli.commands import ramet
from tests.server.running import Server


def test_an_unknown_option_is_told_by_its_command_with_what_was_meant() -> None:
    done = ramet("run", "--timeot", "3", "x")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ramet run ")
    assert "--timeot (did you mean --timeout?)" in done.stderr
    assert "did you mean run?" in ramet("rnu").stderr
    assert "usage: ramet keys create" in ramet("keys", "create", "--nmae", "x").stderr
    assert "did you mean" not in ramet("create", "--mount", "a:/b").stderr


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        (("--memory-mib", "3"), "ramet: --memory-mib"),
        (("--template", "no such"), "ramet: --template"),
        (("--timeout", "-1"), "ramet: --timeout"),
        (("--mount", "/no/such/folder:/data"), "ramet: --mount: a source must be a folder that exists"),
        (("--mount", "nonsense"), "ramet: --mount must be HOST:SANDBOX"),
        (("--env", "NOT_THERE"), "ramet: --env NOT_THERE"),
        (("--env", "=2"), "ramet: --env"),
        (("--sandbox", "sbx_1"), "ramet: --sandbox"),
    ],
)
def test_errors_speak_of_options(arguments: tuple[str, ...], begins: str) -> None:
    done = ramet("run", *arguments, "-c", "1")
    assert done.returncode == 125
    assert done.stderr.startswith(begins)
    assert "Template(" not in done.stderr
    assert "memory_mib" not in done.stderr


def test_a_server_shows_no_folders_of_this_machine(server: Server) -> None:
    done = ramet("run", "--mount", "/tmp:/data", "-c", "1", url=server.url)
    assert done.returncode == 125
    assert "ramet cp" in done.stderr


@pytest.mark.deep("load")
def test_folders_of_this_machine_are_read_only_unless_they_are_not(tmp_path: Path) -> None:
    (tmp_path / "given.txt").write_text("given")
    code = "print(open('/d/given.txt').read()); open('/d/made.txt', 'w').write('made')"
    done = ramet("run", "--mount", f"{tmp_path}:/d", "-c", code)
    assert (done.returncode, done.stdout) == (1, "given\n")
    assert "Read-only file system" in done.stderr
    assert ramet("run", "--mount", f"{tmp_path}:/d:rw", "-c", code).returncode == 0
    assert (tmp_path / "made.txt").read_text() == "made"


def test_options_for_a_new_sandbox_are_refused_for_one_that_exists(server: Server, kept: Sandbox) -> None:
    done = ramet("run", "--sandbox", kept.id, "--env", "A=1", "-c", "1", url=server.url)
    assert done.returncode == 125
    assert "--env is for a new sandbox" in done.stderr


def test_a_short_id_is_as_long_as_it_must_be() -> None:
    first, second = "sbx_" + "a" * 32, "sbx_" + "a" * 20 + "b" * 12
    assert short(first, [first, "sbx_" + "b" * 32]) == "sbx_aaaaaa"
    assert short(first, [first, second]) == "sbx_" + "a" * 21
    assert short(first, [first, first]) == "sbx_aaaaaa"


def test_helps_of_options_begin_alike() -> None:
    for command in ("run", "create", "exec", "diff", "snapshot", "serve", "keys create"):
        text = ramet(*command.split(), "--help").stdout
        helps = re.findall(r"^  -.*?(?:  |\n {10,})(\w+)", text.partition("\nexamples:")[0], re.MULTILINE)
        assert len(helps) > 3, text
        assert [word for word in helps if not (word[0].islower() or word.isupper() or word == "Python")] == []
