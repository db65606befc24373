"""The command pip of a sandbox: what it asks the engine for, what it leaves to pip, and what it does with a tree."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ramet.engine.packages import requester, service
from ramet_guest.packaging import distributions, pip_arguments, pip_program, store

LIBRARY = distributions.LIBRARY


@pytest.mark.parametrize(
    ("words", "requirements"),
    [
        ("install thing", ["thing"]),
        ("install -q -U thing other>=2", ["thing", "other>=2"]),
        ("install --pre --no-deps --progress-bar=off thing", ["thing"]),
        ("install -r names.txt more", ["one==1.0", "two[x] ; python_version > '3'", "more"]),
        ("install -rnames.txt", ["one==1.0", "two[x] ; python_version > '3'"]),
        ("install --requirement=names.txt", ["one==1.0", "two[x] ; python_version > '3'"]),
    ],
)
def test_plain_installations_are_asked_for(
    words: str, requirements: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("# names\none==1.0 # why\n\ntwo[x] ; python_version > '3'\n")
    wanted = pip_arguments.plain(words.split())
    assert wanted is not None
    assert wanted.requirements == requirements
    assert (wanted.upgrade, wanted.pre, wanted.no_deps, wanted.quiet) == (
        "-U" in words, "--pre" in words, "--no-deps" in words, int("-q" in words)
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        "",
        "list",
        "download thing",
        "install",
        "install .",
        "install ./thing",
        "install -e thing",
        "install thing.whl",
        "install thing@http://a.example/x",
        "install http://a.example/thing",
        "install --target x thing",
        "install --index-url http://a.example thing",
        "install --user thing",
        "install -r missing.txt",
        "install -r options.txt",
        "install -r",
        "install --force-reinstall thing",
        "install " + "x" * 301,
        "install " + " ".join(f"thing{n}" for n in range(201)),
        "-v install thing",
    ],
)
def test_everything_else_is_left_to_pip(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("options.txt").write_text("thing\n--index-url http://a.example\n")
    assert pip_arguments.plain(words.split()) is None


def test_only_settings_with_an_effect_are_told() -> None:
    environment = {
        "PIP_INDEX_URL": "x",
        "PIP_RETRIES": "0",
        "PIP_CONSTRAINT": "c",
        "HOME": "/root",
    }
    assert pip_arguments.settings(environment) == {"PIP_INDEX_URL": "x", "PIP_CONSTRAINT": "c"}
    assert pip_arguments.settings({"PIP_CERT": "/mine"}) == {"PIP_CERT": "/mine"}


def test_the_engine_has_the_same_list_and_listens_where_it_is_asked() -> None:
    """The guest and the package know nothing of each other: only a test can hold the two in step."""
    assert requester._WITHOUT_EFFECT == pip_arguments._SETTINGS_WITHOUT_EFFECT
    assert b"\0" + service.NAME.encode() == store.ADDRESS


def test_a_configuration_file_is_pips_business(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    assert not pip_arguments.has_configuration(str(tmp_path / "prefix"), environment, "/nonexistent")
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").touch()
    assert pip_arguments.has_configuration(str(tmp_path / "prefix"), environment, "/nonexistent")


def test_packages_are_known_by_the_names_of_their_folders() -> None:
    assert distributions.of_entry("Some_Thing.x-1.0.post1.dist-info") == ("some-thing-x", "1.0.post1")
    assert distributions.of_entry("old-2.0-py3.11.egg-info") == ("old", "2.0")
    assert distributions.of_entry("thing.py") is None
    assert distributions.of_entry("~hing-1.0.dist-info") is None
    found = distributions.installed()
    assert found["pytest"][0] == pytest.__version__
    assert distributions.prefix() == sys.prefix


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What an engine would give: two packages, one of them with a command."""
    library = tmp_path / "tree" / LIBRARY
    for name in ("one", "two"):
        (library / name / "__pycache__").mkdir(parents=True)
        (library / name / "__init__.py").write_text(f"name = {name!r}\n")
        (library / name / "__pycache__/x.pyc").write_bytes(b"c" * 100_000)
        os.utime(library / name / "__init__.py", (1000, 1000))
        (library / f"{name}-1.0.dist-info").mkdir()
        record = f"{name}/__init__.py,,\n{name}/__pycache__/x.pyc,,\n{name}-1.0.dist-info/RECORD,,\n"
        (library / f"{name}-1.0.dist-info/RECORD").write_text(record + f"../../../bin/{name},,\n")
        (tmp_path / "tree/bin").mkdir(exist_ok=True)
        (tmp_path / "tree/bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "tree/bin" / name).chmod(0o755)
    return tmp_path / "tree"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "prefix" / LIBRARY).mkdir(parents=True)
    return tmp_path / "prefix"


def test_a_tree_is_copied_over_what_is_there(tree: Path, target: Path) -> None:
    (target / LIBRARY / "one").mkdir()
    (target / LIBRARY / "one/__init__.py").write_text("old")
    mapped = os.open(target / LIBRARY / "one/__init__.py", os.O_RDONLY)
    store.Copying(set()).copy(os.open(tree, os.O_PATH), str(target))
    for name in ("one", "two"):
        copied = target / LIBRARY / name / "__init__.py"
        assert (copied.read_text(), copied.stat().st_mtime) == (f"name = {name!r}\n", 1000)
        assert (target / LIBRARY / name / "__pycache__/x.pyc").stat().st_size == 100_000
        assert (target / LIBRARY / f"{name}-1.0.dist-info/RECORD").exists()
        assert os.access(target / "bin" / name, os.X_OK)
    # Whoever has the old file open still reads the old one.
    assert os.read(mapped, 10) == b"old"


def test_what_is_there_in_that_version_is_left_alone(tree: Path, target: Path) -> None:
    folder = os.open(tree, os.O_PATH)
    store.Copying(store.files_of(folder, {"one"})).copy(folder, str(target))
    assert not (target / LIBRARY / "one/__init__.py").exists()
    assert not (target / LIBRARY / "one-1.0.dist-info").exists()
    assert not (target / "bin/one").exists()
    assert (target / LIBRARY / "two/__init__.py").exists()
    assert (target / LIBRARY / "two-1.0.dist-info").exists()


@pytest.mark.parametrize(
    ("installed", "fits"),
    [
        ({"pip": "1"}, True),
        ({"pip": "1", "thing": "2"}, True),
        ({"pip": "1", "unrelated": "9"}, True),
        ({"pip": "1", "thing": "1"}, False),
        ({"pip": "2"}, False),
        ({}, False),
    ],
)
def test_a_tree_is_taken_only_where_pip_would_have_done_the_same(installed: dict[str, str], fits: bool) -> None:
    given = store.Given({"base": {"pip": "1"}, "added": {"thing": "2"}}, -1)
    assert store.fits(given, installed) is fits


@pytest.fixture
def engine() -> Iterator[Callable[[bytes, list[int]], bytes]]:
    """Answers one request, at an address that is returned."""
    threads: list[threading.Thread] = []

    def start(answer: bytes, descriptors: list[int]) -> bytes:
        listener = socket.socket(socket.AF_UNIX)
        listener.settimeout(10)
        listener.bind("")  # the kernel chooses a name
        listener.listen()

        def serve() -> None:
            with listener, listener.accept()[0] as connection:
                connection.recv(65536)
                if answer:
                    socket.send_fds(connection, [answer], descriptors)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        name: bytes = listener.getsockname()
        return name

    yield start
    for thread in threads:
        thread.join(10)


def test_lines_are_told_and_the_folder_is_given(engine: Callable[[bytes, list[int]], bytes], tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_PATH)
    answer = b'{"line": "Collecting thing"}\n{"given": {"base": {}, "added": {"thing": "1"}}}\n'
    told: list[str] = []
    given = store.ask({"requirements": ["thing"]}, told.append, engine(answer, [folder]))
    assert (told, given.added) == (["Collecting thing"], {"thing": "1"})
    assert os.path.samefile(f"/proc/self/fd/{given.folder}", tmp_path)
    os.close(given.folder)


@pytest.mark.parametrize(
    "answer",
    [b"", b"\n", b"{", b"[]\n", b'{"why": "busy"}\n', b'{"given": {}}\n', b'{"given": {"base": {}, "added": {}}}\n'],
)
def test_an_engine_that_has_no_folder_leaves_it_to_pip(
    engine: Callable[[bytes, list[int]], bytes], answer: bytes
) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(store.Unavailable):
        store.ask({"requirements": ["thing"]}, print, engine(answer, []))
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 2


def test_nobody_at_the_socket_leaves_it_to_pip() -> None:
    assert not store.is_there(b"\0ramet-nobody-is-here")
    with pytest.raises(store.Unavailable):
        store.ask({}, print, b"\0ramet-nobody-is-here")


def test_what_is_installed_needs_no_engine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_arguments, "has_configuration", lambda *_: False)
    monkeypatch.setattr(store, "ask", lambda *_: pytest.fail("the engine was asked"))
    assert pip_program.install(["install", f"pytest=={pytest.__version__}"])
    assert "Requirement already satisfied: pytest==" in capsys.readouterr().out
    assert pip_program.install(["install", "-q", "PyTest"])
    assert capsys.readouterr().out == ""
