"""Checks that a newcomer can navigate the source: unique class names, small folders, public paths, names in prose that
exist, and the map in ARCHITECTURE.md.
"""

from __future__ import annotations

import ast
import builtins
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
NOT_CLASSES = {"CPython", "GiB", "Python", "Ramet"}  # capitalised words in sentences about exceptions
FILES_AT_MOST = 16  # in a folder, besides __init__.py

PUBLIC_PATHS = re.compile(r"ramet(\.errors|\.integrations(\.\w+)?)?")
_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TREE_LINE = re.compile(r"^\| `((?:ramet|ramet_guest)[\w/]*)/` \| (.+) \|$", re.MULTILINE)
_WALK_STEP = re.compile(r"^\d+\. `([\w/]+\.(?:py|c))`: `([\w.]+)`", re.MULTILINE)

# "Start at ``x``", and the further steps in the same sentence: "then ``y`` and ``z``".
_START = re.compile(r"\bStart(?: reading)? (?:at|with|in) [^.;]*?(?:``?[\w./]+``?[^.;`]*)+")
# Names of classes in a sentence about exceptions. "Raises X for a value, Y (why) or Z.": all three are found.
_RAISES = re.compile(r"\bRaises? ([`A-Z](?:[^.;:]|[.;:](?! |$))*)")
_CLASS_NAME = re.compile(r"(?<![\w.\"'])[A-Z]\w*[a-z]\w*")


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if ".egg-info" not in str(path))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Those that tests look for, of which there are few: several tests walk over all of the source."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Import, ast.ImportFrom)
    return tuple(node for node in ast.walk(tree_of(path)) if isinstance(node, kinds))


def folders() -> list[Path]:
    return sorted({path.parent for path in modules()})


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in nodes_of(path):
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


@cache
def classes_in(path: Path) -> list[ast.ClassDef]:
    return [node for node in nodes_of(path) if isinstance(node, ast.ClassDef)]


@cache
def class_names() -> frozenset[str]:
    return frozenset(node.name for path in modules() for node in classes_in(path))


@cache
def subclasses() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path in modules():
        for node in classes_in(path):
            for base in node.bases:
                if isinstance(base, ast.Name):
                    found[base.id].add(node.name)
    return found


def imported_names(path: Path) -> set[str]:
    return {
        alias.asname or alias.name
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def comments_and_docstrings(path: Path) -> list[str]:
    """Return the docstrings, and the comments; lines of one block are joined, so that a sentence can be searched."""
    texts = [
        " ".join(docstring.split())
        for node in nodes_of(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (docstring := ast.get_docstring(node))
    ]
    blocks = re.findall(r"(?:^ *#.*\n)+|(?<=  )#.*\n", path.read_text("utf-8"), re.MULTILINE)
    return texts + [" ".join(re.sub(r"^ *# ?", "", block, flags=re.MULTILINE).split()) for block in blocks]


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: str(folder.relative_to(SOURCE)))
def test_a_folder_says_where_to_start_and_the_module_is_there(folder: Path) -> None:
    said = " ".join((ast.get_docstring(tree_of(folder / "__init__.py")) or "").split())
    for sentence in _START.findall(said):
        for pointer in re.findall(r"``?([\w./]+)``?", sentence):
            target = folder / pointer.removesuffix(".py").replace(".", "/")
            assert target.is_dir() or target.with_suffix(".py").is_file(), f"no {pointer} in {folder}"


def test_exceptions_that_prose_names_exist() -> None:
    missing = {}
    for path in modules():
        sentences = [sentence for text in comments_and_docstrings(path) for sentence in _RAISES.findall(text)]
        named = {name for sentence in sentences for name in _CLASS_NAME.findall(sentence)}
        known = class_names() | set(dir(builtins)) | imported_names(path) | NOT_CLASSES
        if named - known:
            missing[str(path.relative_to(SOURCE))] = named - known
    assert missing == {}


def test_a_repr_begins_with_the_name_of_its_class() -> None:
    wrong = []
    for path in modules():
        for node in classes_in(path):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__repr__":
                    shown = set(re.findall(r"<([A-Z]\w*)", ast.unparse(method)))
                    if not shown <= {node.name.lstrip("_"), *subclasses().get(node.name, ())}:
                        wrong.append(f"{path.relative_to(SOURCE)}: {node.name} calls itself {shown}")
    assert wrong == []


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


def test_the_callers_of_bring_up_are_on_the_map() -> None:
    engine = SOURCE / "ramet" / "engine"
    calling = {
        str(path.relative_to(engine))
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bring_up"
    }
    section = ARCHITECTURE.read_text("utf-8").partition("## One way to make a sandbox")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE)) == calling


def walks() -> list[tuple[str, str]]:
    return _WALK_STEP.findall(ARCHITECTURE.read_text("utf-8"))


def test_there_are_six_walks() -> None:
    section = ARCHITECTURE.read_text("utf-8").partition("## Six walks")[2]
    headings = re.findall(r"^### (.+)$", section, re.MULTILINE)
    assert len(headings) == 6
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
