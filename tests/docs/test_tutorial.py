"""The first pages that people read print what they show."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_tutorial_prints_what_it_shows_and_leaves_the_files_it_names(tmp_path: Path) -> None:
    blocks = _BLOCK.findall(PAGE.read_text())
    program = tmp_path / "tutorial.py"
    program.write_text("\n".join(block for kind, block in blocks if kind == "python"))
    ended = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    shown = "".join(block for kind, block in blocks if kind == "text")
    assert without_trailing_blanks(ended.stdout) == without_trailing_blanks(shown)
    assert (tmp_path / "visitors.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "filled.csv").read_text().startswith("day,visitors\n")


def test_the_example_of_the_readme_prints_what_its_comments_say(tmp_path: Path) -> None:
    (code,) = [block for kind, block in _BLOCK.findall((ROOT / "README.md").read_text()) if kind == "python"]
    said = re.findall(r"^ *print\(.*  # (.*?)(?:: .*)?$", code, re.MULTILINE)
    assert len(said) == 3
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.stdout.splitlines() == said, ended.stderr


def without_trailing_blanks(text: str) -> list[str]:
    """Editors strip blanks at the end of a line, which pandas prints."""
    return [line.rstrip() for line in text.splitlines()]
