"""Notebooks in a Jupyter kernel and in a sandbox: below each cell a reader sees the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from ramet import Sandbox
from tests.notebooks.notebooks import NOTEBOOKS
from tests.notebooks.outputs import Seen, of_kernel, of_result, of_stream, texts_first

PATIENCE_SECONDS = 120
# A second or two each; the others load large libraries, or say the same in more words.
FAST = ("first steps", "displays", "updates")
BY_NAME = [
    pytest.param(cells, id=name, marks=() if name in FAST else pytest.mark.deep("libraries"))
    for name, cells in NOTEBOOKS.items()
]


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def in_a_kernel(cells: list[str]) -> list[Seen]:
    made: Any = nbformat.v4
    notebook = made.new_notebook(cells=[made.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, kernel_name="python3", allow_errors=True, timeout=PATIENCE_SECONDS).execute()
    return [of_kernel(cell["outputs"]) for cell in notebook.cells]


@pytest.mark.parametrize("cells", BY_NAME)
def test_a_notebook_shows_what_it_shows_in_jupyter(cells: list[str]) -> None:
    expected = in_a_kernel(cells)
    with Sandbox() as watched, Sandbox() as asked:
        for number, (cell, seen) in enumerate(zip(cells, expected, strict=True)):
            result = of_result(asked.run_code(cell, timeout=PATIENCE_SECONDS))
            assert result == texts_first(seen), f"cell {number}, its result"
            stream = of_stream(watched, cell)
            if "display_id" not in cell:  # one who watches sees the display before and after an update
                assert stream == seen, f"cell {number}, as it runs"
