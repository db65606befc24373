"""`--output DIR`: plots and files come out, and code can write nothing else here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet import Sandbox
from tests.cli.commands import ramet
from tests.server.running import Server

_SVG = '<svg xmlns="http://www.w3.org/2000/svg"/>'
_PLOT = f"from IPython.display import SVG, display\ndisplay(SVG({_SVG!r}))\n"


@pytest.mark.parametrize("where", ["embedded", "server"])
def test_plots_and_written_files_come_out(request: pytest.FixtureRequest, where: str, tmp_path: Path) -> None:
    url = request.getfixturevalue("server").url if where == "server" else None
    (tmp_path / "data.txt").write_text("given")
    script = tmp_path / "script.py"
    script.write_text(f"{_PLOT}{_PLOT}import os\nos.makedirs('a/b')\nopen('a/b/c.txt', 'w').write('text')\n")
    out = tmp_path / "out"
    for _ in range(2):
        done = ramet("run", "--output", str(out), "--upload", str(tmp_path / "data.txt"), str(script), url=url)
        assert done.returncode == 0, done.stderr
        found = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
        assert found == [".ramet-output", "a/b/c.txt", "plot-1.svg", "plot-2.svg"]
        assert (out / "a/b/c.txt").read_text() == "text"
        assert (out / "plot-1.svg").read_text() == _SVG
    assert "a/b/c.txt" in done.stderr


def test_what_was_saved_is_told_as_json_also_after_a_failure(tmp_path: Path) -> None:
    code = f"{_PLOT}open('made.txt', 'w').write('x')\n1 / 0"
    done = ramet("run", "--json", "--output", str(tmp_path / "out"), "-c", code)
    assert done.returncode == 1
    assert json.loads(done.stdout)["saved"] == ["plot-1.svg", "made.txt"]


def test_links_odd_names_and_hidden_files_stay_in_the_sandbox(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "os.symlink('/etc/passwd', 'link')\n"
        "os.mkdir('folder'); os.symlink('/', 'folder/root')\n"
        "open('escape\\x1b[2J', 'w').write('odd')\n"
        "open('.bashrc', 'w').write('hidden')\n"
        "open('plot-1.svg', 'w').write('mine')\n"
        "os.mkfifo('fifo')\n" + _PLOT
    )
    out = tmp_path / "out"
    done = ramet("run", "--output", str(out), "-c", code)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.rglob("*")) == [".ramet-output", "plot-1.svg"]
    assert (out / "plot-1.svg").read_text() == _SVG
    assert "\x1b" not in done.stderr


def test_a_folder_with_other_files_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print('mine')")
    done = ramet("run", "--output", str(tmp_path), "-c", "print('ran'); open('mine.py', 'w').write('changed')")
    assert (done.returncode, done.stdout) == (125, "")
    assert "--output must be a new or an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_a_sparse_file_of_any_size_ends_with_an_error_and_leaves_no_part(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = ramet("run", "--output", str(out), "-c", "open('huge', 'wb').truncate(1 << 40)")
    assert done.returncode == 125
    assert "huge would make it more than" in done.stderr
    assert [path.name for path in out.iterdir()] == [".ramet-output"]


def test_files_of_before_stay_unless_they_change(server: Server, kept: Sandbox, tmp_path: Path) -> None:
    kept.files.write("old.txt", b"old")
    kept.files.write("changed.txt", b"old")
    out = tmp_path / "out"
    code = "open('changed.txt', 'w').write('new')"
    assert ramet("run", "--sandbox", kept.id, "--output", str(out), "-c", code, url=server.url).returncode == 0
    assert sorted(path.name for path in out.iterdir()) == [".ramet-output", "changed.txt"]


@pytest.mark.deep("load")
def test_a_plot_that_is_not_saved_says_how_it_can_be() -> None:
    done = ramet("run", "-c", _PLOT * 2)
    assert done.stderr.count("use --output DIR to save it") == 1
    shell = ramet("shell", given=_PLOT)
    assert "use --output DIR to save it" in shell.stderr


def test_a_shell_saves_plots_and_files_too(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert ramet("shell", "--output", str(out), given=f"{_PLOT}open('made.txt', 'w').write('x')").returncode == 0
    assert sorted(path.name for path in out.iterdir()) == [".ramet-output", "made.txt", "plot-1.svg"]
