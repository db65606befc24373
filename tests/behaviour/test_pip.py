"""%pip install: from a mounted folder of wheels into the private layer; without a network a fast failure and a hint."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from tests.behaviour.faces import AnySandbox, MakeSandbox


def build_wheel(folder: Path, name: str, version: str) -> Path:
    """A wheel of one module, as the specification of the format asks for."""
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(text)}\n"
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return wheel


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    build_wheel(folder, "tiny_thing", "1.2")
    return folder


@pytest.mark.deep("load")
def test_pip_installs_from_a_mounted_folder_into_the_private_layer(
    make_local_sandbox: MakeSandbox, wheels: Path
) -> None:
    pytest.importorskip("pip")
    sandbox = make_local_sandbox(mounts={"/wheels": wheels})
    assert sandbox.run_code("import tiny_thing").exit_code == 1
    result = sandbox.run_code("%pip install --no-index --find-links /wheels tiny_thing", timeout=80)
    assert result.exit_code == 0, result.stdout + result.stderr
    assert sandbox.run_code("import tiny_thing; tiny_thing.version").value == "'1.2'"
    # A process started later sees it too; another sandbox and the host do not.
    assert (
        sandbox.run_code(
            "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import tiny_thing']).returncode"
        ).value
        == "0"
    )
    assert make_local_sandbox().run_code("import tiny_thing").exit_code == 1
    assert not list(Path(sys.prefix).glob("lib/python3*/site-packages/tiny_thing*"))


def test_pip_without_a_network_fails_fast_with_a_hint(any_sandbox: AnySandbox) -> None:
    # A minute of retries would meet this deadline.
    result = any_sandbox.run_code("%pip install no-such-package-anywhere", timeout=20)
    assert (result.exit_code, result.interrupted, result.state) == (1, False, "kept")
    assert "no network" in result.stderr
    assert "--find-links" in result.stderr


def test_a_failed_install_fails_the_cell_and_nothing_more(make_local_sandbox: MakeSandbox, wheels: Path) -> None:
    pytest.importorskip("pip")
    sandbox = make_local_sandbox(mounts={"/wheels": wheels})
    sandbox.run_code("x = 1")
    result = sandbox.run_code("%pip install --no-index --find-links /wheels not_there", timeout=80)
    assert result.exit_code == 1
    assert "not_there" in result.stderr + result.stdout
    assert sandbox.run_code("x").value == "1"


def test_pip_in_bash_fails_fast_too(any_sandbox: AnySandbox) -> None:
    pytest.importorskip("pip")
    result = any_sandbox.run_code(
        "python -m pip install --retries 0 no-such-package-anywhere", language="bash", timeout=60
    )
    assert result.exit_code != 0
    assert not result.interrupted
