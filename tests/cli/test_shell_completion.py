"""The scripts of `ramet completion`, loaded by the shells that they are for: they offer ids and files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ramet import Sandbox
from tests.cli.commands import COMMAND, WAIT_SECONDS, environment, ramet
from tests.server.running import Server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where somebody types: with a script to run, and `ramet` in the path."""
    (tmp_path / "analysis.py").touch()
    (tmp_path / "results").mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "ramet"
    program.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        (programs / f"for-{shell}").write_text(ramet("completion", shell).stdout)
    return tmp_path


def run_shell(shell: str, code: str, folder: Path, url: str = "") -> str:
    """What the shell prints that has loaded nothing but the script. Complaints fail the test."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    plain = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *plain, "-c", code],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        cwd=folder,
        env=environment(url, PATH=f"{folder}/programs:/usr/bin:/bin", HOME=str(folder)),
    )
    assert done.stderr == ""
    return done.stdout


def in_bash(words: str, folder: Path, url: str = "") -> list[str]:
    ask = f'COMP_WORDS=(ramet {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_ramet; echo "${{COMPREPLY[@]}}"'
    return run_shell("bash", f"source programs/for-bash; {ask}", folder, url).split()


def in_fish(line: str, folder: Path, url: str = "") -> list[str]:
    said = run_shell("fish", f"source programs/for-fish; complete -C'ramet {line}'", folder, url)
    return [offered.partition("\t")[0] for offered in said.splitlines()]


@pytest.mark.deep("load")
@pytest.mark.parametrize("command", ["rm", "logs", "shell", "diff", "exec", "run --sandbox"])
def test_ids_of_sandboxes_are_offered(server: Server, kept: Sandbox, folder: Path, command: str) -> None:
    assert kept.id in in_bash(f"{command} {kept.id[:8]}", folder, server.url)
    assert kept.id in in_fish(f"{command} {kept.id[:8]}", folder, server.url)


@pytest.mark.deep("load")
def test_ids_of_snapshots_are_offered(server: Server, kept: Sandbox, folder: Path) -> None:
    snapshot = ramet("snapshot", kept.id, url=server.url).stdout.strip()
    for words in ("create --snapshot snp_", f"snapshot {kept.id} --restore snp_", "snapshot --remove snp_"):
        assert snapshot in in_bash(words, folder, server.url)
        assert snapshot in in_fish(words, folder, server.url)


@pytest.mark.deep("load")
def test_a_copy_goes_between_files_and_sandboxes(server: Server, kept: Sandbox, folder: Path) -> None:
    assert f"{kept.id}:" in in_bash(f"cp {kept.id[:8]}", folder, server.url)
    assert "analysis.py" in in_bash("cp analysis.py ana", folder, server.url)
    assert f"{kept.id}:" in in_fish(f"cp analysis.py {kept.id[:8]}", folder, server.url)
    assert "analysis.py" in in_fish("cp ana", folder, server.url)


def test_files_and_folders_are_offered_where_they_go(folder: Path) -> None:
    """Also in shells that offer nothing where a script says nothing."""
    for words in ("run ana", "run analysis.py ana", "run --upload ana"):
        assert in_fish(words, folder) == ["analysis.py"], words
    for words in ("run --output res", "run --mount res", "serve --state res"):
        assert in_fish(words, folder) == ["results/"], words
    script = (folder / "programs" / "for-zsh").read_text()
    for said in (":file to run, or - for standard input:_files", "in this new or empty folder]:DIR:_files -/"):
        assert said in script


@pytest.mark.parametrize(
    "load", ["source <(ramet completion zsh)", 'eval "$(ramet completion zsh)"', ". ./programs/for-zsh"]
)
def test_zsh_takes_the_script_however_it_is_loaded(folder: Path, load: str) -> None:
    said = run_shell("zsh", f"autoload -U compinit; compinit -u -D; {load}; print $_comps[ramet]", folder)
    assert said == "_shtab_ramet\n"


def test_zsh_takes_the_script_from_its_folders_of_functions(folder: Path) -> None:
    (folder / "functions").mkdir()
    (folder / "programs" / "for-zsh").rename(folder / "functions" / "_ramet")
    said = run_shell(
        "zsh", "fpath=(~/functions $fpath); autoload -U compinit; compinit -u -D; print $_comps[ramet]", folder
    )
    assert said == "_ramet\n"
