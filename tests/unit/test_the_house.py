"""The source can be found one's way in: names, folders, public paths, and the map in ARCHITECTURE.md."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"

# Class names that stand for one thing on two sides of a border: outside and inside the sandbox, the SDK's handle and
# the engine's object, the protocol that the engine needs and the class that has it. Every other name is used once.
SHARED_NAMES = {
    "Body": "engine/seams.py and freezing",
    "Death": "engine/seams.py and freezing",
    "Forked": "engine/seams.py and freezing",
    "Frozen": "engine/seams.py and freezing",
    "Machine": "engine/seams.py and freezing",
    "Repl": "engine and guest",
    "Sandbox": "engine and SDK",
    "Snapshot": "engine and SDK",
    "Terminal": "engine and SDK",
    "ToolError": "guest and SDK",
}
# Activities and moods, which do not say what a file holds.
BANNED_FILE_NAMES = {
    "attending", "carrying_out", "departures", "gate", "growing", "introductions", "keeping", "news", "relations",
    "retelling", "rooms", "spaces", "succession", "telling", "utils", "wanting", "wording",
}  # fmt: skip
FILES_AT_MOST = 16  # in a folder, besides __init__.py

PUBLIC_PATHS = re.compile(r"ramet(\.errors|\.integrations(\.\w+)?)?")
_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TREE_LINE = re.compile(r"^\| `((?:ramet|ramet_guest)[\w/]*)/` \| (.+) \|$", re.MULTILINE)
_WALK_STEP = re.compile(r"^\d+\. `([\w/]+\.(?:py|c))`: `([\w.]+)`", re.MULTILINE)


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if ".egg-info" not in str(path))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def folders() -> list[Path]:
    return sorted({path.parent for path in modules()})


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(SOURCE)))
    repeated = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in repeated.items() if name not in SHARED_NAMES or len(found) > 2} == {}
    assert set(SHARED_NAMES) == set(repeated), "a name that is not shared any more leaves the list"
    assert len(SHARED_NAMES) <= 10


def test_files_are_named_after_what_they_hold() -> None:
    assert [str(path) for path in modules() if path.stem in BANNED_FILE_NAMES] == []


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: str(folder.relative_to(SOURCE)))
def test_a_folder_can_be_taken_in_at_a_glance(folder: Path) -> None:
    files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= FILES_AT_MOST, files
    assert ast.get_docstring(tree_of(folder / "__init__.py")), "__init__.py says what the folder is for"


def imported(text: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
    return {name for name in found if name.split(".")[0] in ("ramet", "ramet_guest")}


@pytest.mark.parametrize(
    "path",
    sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py")]),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_documents_and_examples_import_public_paths_only(path: Path) -> None:
    text = path.read_text("utf-8")
    programs = [text] if path.suffix == ".py" else _PYTHON_BLOCK.findall(text)
    private = {name for program in programs for name in imported(program) if not PUBLIC_PATHS.fullmatch(name)}
    assert private == set()


def test_the_package_says_which_paths_are_public() -> None:
    said = ast.get_docstring(tree_of(SOURCE / "ramet" / "__init__.py")) or ""
    for public in ("``ramet``", "``ramet.errors``", "``ramet.integrations``"):
        assert public in said


def test_the_map_has_every_folder() -> None:
    listed = [name for name, _ in _TREE_LINE.findall(ARCHITECTURE.read_text("utf-8"))]
    there = [str(folder.relative_to(SOURCE)) for folder in folders()]
    assert sorted(listed) == there
    assert len(listed) == len(set(listed))


def walks() -> list[tuple[str, str]]:
    return _WALK_STEP.findall(ARCHITECTURE.read_text("utf-8"))


def test_there_are_six_walks() -> None:
    section = ARCHITECTURE.read_text("utf-8").partition("## Six walks")[2]
    headings = re.findall(r"^### (.+)$", section, re.MULTILINE)
    assert len(headings) >= 6
    assert len(walks()) >= 40


@pytest.mark.parametrize(("file", "name"), walks(), ids=lambda text: str(text))
def test_a_step_of_a_walk_is_where_the_map_says(file: str, name: str) -> None:
    path = SOURCE / file
    assert path.exists()
    if path.suffix == ".c":
        assert re.search(rf"^[\w *]*\b{re.escape(name)}\(", path.read_text("utf-8"), re.MULTILINE)
        return
    scope: ast.AST = tree_of(path)
    for part in name.split("."):
        found = [
            node
            for node in ast.iter_child_nodes(scope)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == part
        ]
        assert found, f"{file} has no {name}"
        scope = found[0]
