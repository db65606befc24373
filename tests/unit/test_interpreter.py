"""Which folders of the host an interpreter brings into a sandbox."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from ramet.errors import InvalidArgument
from ramet.isolation.files import interpreter


def _asked(monkeypatch: pytest.MonkeyPatch, prefix: Path, *mapped: str) -> None:
    answer = interpreter._Answer((3, 12, 1), "cpython", (str(prefix),), None, mapped)
    monkeypatch.setattr(interpreter, "_ask", lambda _: answer)
    interpreter._find.cache_clear()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "homes" / "me"
    (folder / "environment").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    return folder


def test_an_environment_below_the_home_folder_is_shown_alone(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    _asked(monkeypatch, home / "environment")
    assert interpreter._find("/usr/bin/env", 0, 0).trees == (str(home / "environment"),)


@pytest.mark.parametrize("above", [0, 1])
def test_an_environment_that_is_the_home_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, home: Path, above: int
) -> None:
    _asked(monkeypatch, home if above == 0 else home.parent)
    with pytest.raises(InvalidArgument, match="sandboxes would see whole"):
        interpreter._find("/usr/bin/env", 0, 0)


def test_the_root_of_the_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _asked(monkeypatch, Path("/"))
    with pytest.raises(InvalidArgument):
        interpreter._find("/usr/bin/env", 0, 0)


@pytest.mark.parametrize("name", ["libpython3.13.so.1.0", "libc.so.6", "ld-linux-x86-64.so.2"])
def test_an_interpreter_whose_own_libraries_are_elsewhere_is_refused_and_the_library_named(
    monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path, name: str
) -> None:
    elsewhere = tmp_path / "elsewhere" / name
    elsewhere.parent.mkdir()
    elsewhere.touch()
    _asked(monkeypatch, home / "environment", str(elsewhere))
    with pytest.raises(InvalidArgument, match="is outside its prefix") as refused:
        interpreter._find("/usr/bin/env", 0, 0)
    assert str(elsewhere) in refused.value.message


def test_libraries_in_the_prefix_or_of_modules_are_no_reason_to_refuse(
    monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path
) -> None:
    own, of_module = home / "environment" / "libpython3.13.so.1.0", tmp_path / "libcuda.so.1"
    own.touch()
    of_module.touch()
    _asked(monkeypatch, home / "environment", str(own), str(of_module), "/usr/lib/x86_64-linux-gnu/libc.so.6")
    assert interpreter._find("/usr/bin/env", 0, 0).trees == (str(home / "environment"),)


def test_an_interpreter_says_which_files_are_in_its_memory() -> None:
    executable = os.path.realpath(sys.executable)
    assert any(os.path.basename(path).startswith("libc.so") for path in interpreter._ask(executable).mapped)
    assert any(os.path.basename(path).startswith("libc.so") for path in interpreter._own_maps())


def test_an_interpreter_that_was_copied_without_its_library_is_refused(tmp_path: Path) -> None:
    if not any(os.path.basename(path).startswith("libpython") for path in interpreter._own_maps()):
        pytest.skip("this interpreter has its library built in")
    copied = tmp_path / "copied" / "bin" / "python3"
    copied.parent.mkdir(parents=True)
    shutil.copy(os.path.realpath(sys.executable), copied)
    library = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / "copied" / "lib").mkdir()
    (tmp_path / "copied" / library).symlink_to(Path(sys.base_prefix) / library)
    with pytest.raises(InvalidArgument, match=r"needs \S+/libpython\S+, which is outside its prefix"):
        interpreter.find(str(copied))
