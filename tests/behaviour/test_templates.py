"""Templates: an interpreter booted once with its imports done, and sandboxes thawed from it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from ramet import InvalidArgument, Sandbox, Template, TemplateFailed
from tests.behaviour.faces import AnySandbox, MakeSandbox

LOADED = "import sys; [name for name in {!r} if name in sys.modules]"


def test_the_default_template_has_no_libraries_loaded(any_sandbox: AnySandbox) -> None:
    assert any_sandbox.run_code(LOADED.format(["numpy", "pandas"])).value == "[]"
    assert any_sandbox.info().template == "default"


def test_python_datasci_has_its_libraries_loaded(make_any_sandbox: MakeSandbox) -> None:
    for module in ("numpy", "pandas", "matplotlib"):
        pytest.importorskip(module)
    sandbox = make_any_sandbox("python-datasci")
    names = ["numpy", "pandas", "matplotlib"]
    assert sandbox.run_code(LOADED.format(names)).value == str(names)
    assert sandbox.info().template == "python-datasci"
    code = "import numpy as np\nnp.linalg.inv(np.eye(300) * 2).trace().round()"
    assert sandbox.run_code(code).value == "np.float64(150.0)"


def test_two_datasci_sandboxes_draw_different_random_numbers(make_any_sandbox: MakeSandbox) -> None:
    pytest.importorskip("pandas")
    draw = "import numpy as np; float(np.random.random())"
    values = [make_any_sandbox("python-datasci").run_code(draw).value for _ in range(2)]
    assert values[0] != values[1]


@pytest.mark.every_face
def test_a_template_of_ones_own_has_its_preloads_and_is_known_by_name(make_any_sandbox: MakeSandbox) -> None:
    mine = Template("with-sqlite", preload=["sqlite3", "xml.dom.minidom"])
    sandbox = make_any_sandbox(mine)
    assert sandbox.run_code(LOADED.format(["sqlite3", "xml.dom.minidom"])).value == "['sqlite3', 'xml.dom.minidom']"
    assert sandbox.run_code("'sqlite3' in globals()").value == "False"
    again = make_any_sandbox("with-sqlite")
    assert again.info().template == "with-sqlite"
    assert (
        again.run_code("import sqlite3; sqlite3.connect(':memory:').execute('select 6*7').fetchone()").value == "(42,)"
    )


@pytest.mark.every_face
def test_a_preload_that_does_not_exist_is_template_failed_with_what_was_printed(make_any_sandbox: MakeSandbox) -> None:
    with pytest.raises(TemplateFailed) as failed:
        make_any_sandbox(Template("broken", preload=["no_such_module_anywhere"]))
    assert "no_such_module_anywhere" in str(failed.value)
    assert "ModuleNotFoundError" in str(failed.value)
    assert failed.value.hint is not None
    # The engine and other templates are well.
    assert make_any_sandbox().run_code("1").value == "1"


def test_concurrent_sandboxes_of_a_new_template_share_one_boot(in_background: Callable[..., Future[Any]]) -> None:
    template = Template("shared-boot", preload=["decimal"])

    def session(number: int) -> str | None:
        with Sandbox(template) as sandbox:
            return sandbox.run_code(f"import decimal; str(decimal.Decimal({number}))").value

    calls = [in_background(session, number) for number in range(6)]
    assert [call.result(80) for call in calls] == [f"'{number}'" for number in range(6)]


def test_one_name_cannot_mean_two_templates(make_any_sandbox: MakeSandbox) -> None:
    make_any_sandbox(Template("one-meaning", preload=["bisect"]))
    with pytest.raises(InvalidArgument) as refused:
        make_any_sandbox(Template("one-meaning", preload=["heapq"]))
    assert refused.value.argument == "template"


def test_changes_of_a_sandbox_never_reach_its_template(make_any_sandbox: MakeSandbox) -> None:
    template = Template("untouched", preload=["json"])
    make_any_sandbox(template).run_code("import json; json.mark = 1; import builtins; builtins.mark = 2")
    result = make_any_sandbox(template).run_code("import json; hasattr(json, 'mark'), 'mark' in dir(__builtins__)")
    assert result.value == "(False, False)"


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without pip and IPython, and with a module of its own."""
    folder = tmp_path_factory.mktemp("other") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "only_here.py").write_text("answer = 42\n")
    return folder / "bin" / "python"


@pytest.mark.deep("load")
def test_another_interpreter_without_ipython_works(make_local_sandbox: MakeSandbox, other_python: Path) -> None:
    sandbox = make_local_sandbox(python=str(other_python))
    assert sandbox.info().python == str(other_python)
    result = sandbox.run_code("import sys, only_here; (sys.executable, sys.prefix, only_here.answer)")
    assert result.value is not None
    assert ast.literal_eval(result.value) == (str(other_python), str(other_python.parent.parent), 42)
    assert sandbox.run_code("!echo magics too").stdout == "magics too\n"
    assert sandbox.run_code("await __import__('asyncio').sleep(0, 'await')").value == "'await'"
    # What Ramet's own environment has installed is not there.
    assert sandbox.run_code("import numpy").error is not None
    # A process started by it is the same interpreter.
    assert (
        sandbox.run_code(
            "import subprocess; subprocess.run([sys.executable, '-c', 'import only_here']).returncode"
        ).value
        == "0"
    )


def test_an_interpreter_without_the_packages_of_a_template_is_told_how_to_get_them(
    make_local_sandbox: MakeSandbox, other_python: Path
) -> None:
    with pytest.raises(TemplateFailed, match="No module named 'numpy'") as failed:
        make_local_sandbox("python-datasci", python=str(other_python))
    assert f"{other_python} -m pip install numpy pandas matplotlib" in str(failed.value.hint)


def test_a_template_may_name_its_interpreter(make_local_sandbox: MakeSandbox, other_python: Path) -> None:
    sandbox = make_local_sandbox(Template("of-its-own", python=other_python, preload=["only_here"]))
    assert sandbox.run_code("import sys; sys.modules['only_here'].answer").value == "42"


def test_a_template_and_a_sandbox_that_name_two_interpreters_are_refused(other_python: Path) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Sandbox(Template("torn", python=other_python), python=sys.executable)
    assert refused.value.argument == "python"
