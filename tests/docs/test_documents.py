"""The documents say what is true: their examples run, their links lead somewhere, the files they name are there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = sorted(ROOT.glob("examples/*.py"))

_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:src|tests|bench|docs|examples|tools|\.ci)/[\w./-]*)`")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def with_examples() -> list[Path]:
    """The tutorial is run by test_tutorial.py, which also looks at what it prints."""
    found = [document for document in DOCUMENTS if _PYTHON_BLOCK.search(document.read_text())]
    return [document for document in found if document.name != "tutorial.md"]


@pytest.mark.parametrize("document", with_examples(), ids=name_of)
def test_examples_in_a_document_run(document: Path, tmp_path: Path) -> None:
    """All Python blocks of one document, in order, are one program; ``` blocks of other kinds are not run."""
    blocks = _PYTHON_BLOCK.findall(document.read_text())
    program = tmp_path / "blocks.py"
    program.write_text("\n".join(blocks))
    ended = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, f"{name_of(document)}:\n{ended.stdout}\n{ended.stderr}"


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_runs_and_prints(example: Path, tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_in_a_document_lead_to_files(document: Path) -> None:
    links = [link for link in _LINK.findall(document.read_text()) if "://" not in link and not link.startswith("#")]
    dead = [link for link in links if not (document.parent / link.split("#")[0]).exists()]
    assert not dead


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_to_a_heading_lead_to_one(document: Path) -> None:
    links = [link for link in _LINK.findall(document.read_text()) if "#" in link and "://" not in link]
    targets = [(link, (document.parent / link.split("#")[0]) if link[0] != "#" else document) for link in links]
    dead = [link for link, target in targets if link.split("#")[1] not in anchors(target)]
    assert not dead


def anchors(document: Path) -> set[str]:
    """What a heading can be linked to with: its words in lower case, joined by hyphens."""
    without_code = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_files_that_a_document_names_exist(document: Path) -> None:
    missing = [path for path in _PATH.findall(document.read_text()) if not (ROOT / path).exists()]
    assert not missing


def test_the_index_has_every_document() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.split("#")[0]).resolve() for link in _LINK.findall(index.read_text())}
    folders = (ROOT / "docs", ROOT / "docs" / "reference")
    documents = [document for folder in folders for document in sorted(folder.glob("*.md")) if document != index]
    assert [name_of(document) for document in documents if document not in linked] == []
