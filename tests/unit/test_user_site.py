"""Where an interpreter looks for packages, and which IPython it may have."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ramet.isolation.files.skeleton import has_user_site
from ramet_guest import boot


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        (None, True),
        ("home = /usr/bin\ninclude-system-site-packages = false\n", False),
        ("home = /usr/bin\nInclude-System-Site-Packages = TRUE\n", True),
        ("home = /usr/bin\n", False),
    ],
)
def test_only_a_virtual_environment_that_was_made_so_looks_into_the_home_folder(
    tmp_path: Path, configuration: str | None, expected: bool
) -> None:
    if configuration is not None:
        (tmp_path / "pyvenv.cfg").write_text(configuration)
    assert has_user_site(str(tmp_path / "bin" / "python")) is expected


def test_an_ipython_that_is_too_old_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(version_info=(7, 34, 0, ""), __version__="7.34.0"))
    with pytest.raises(SystemExit, match=r"IPython 7\.34\.0 .* too old(.|\n)*pip install --upgrade ipython"):
        boot.check_ipython()


def test_the_file_that_early_versions_of_ipython_8_open_at_import_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sandboxes of a template would share it, so a template with it could not be frozen."""
    with open(os.devnull, "w") as file:
        monkeypatch.setattr("IPython.utils.io.devnull", file, raising=False)
        boot.close_file_of_ipython()
        assert file.closed
    monkeypatch.delattr("IPython.utils.io.devnull")
    boot.close_file_of_ipython()
