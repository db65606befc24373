"""What is on disk, how old it is and what failed: for `info()`, `ramet doctor`, `ramet images` and monitors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ramet import Sandbox
from ramet.freezing.images.stored.figures import figures, keep_error, kind_of, last_error
from tests.images.stores import ImageFolder, open_store


@pytest.mark.deep("restarts")
def test_images_are_counted_by_kind(warm_store: ImageFolder) -> None:
    warm_store.program(
        """
        from ramet import Sandbox
        with Sandbox(persistent=True) as s:
            s.run_code("x = 1"); s.hibernate()
            s.snapshot().save("mine")
        """
    )
    store = open_store(warm_store.folder)
    try:
        found = figures(store)
    finally:
        store.close()
    assert {kind: one.images for kind, one in found.items() if one.images} == {
        "template": 1, "snapshot": 1, "sandbox": 1,
    }  # fmt: skip
    assert all((one.oldest_used is not None) == (one.images > 0) for one in found.values())
    assert found["template"].size_bytes > 2**20
    assert kind_of("past-1234") == "point"
    assert kind_of(None) == kind_of("somebody-elses") == "unnamed"


def test_info_tells_of_the_image_of_a_sandbox() -> None:
    with Sandbox() as sandbox:
        assert sandbox.info().image is None
        size = sandbox.hibernate()
        image = sandbox.info().image
        assert image is not None
        assert image.written_ms is not None
        assert (image.size_bytes, image.last_error) == (size, "")


def test_a_failure_is_told_to_who_looks_later(warm_store: ImageFolder) -> None:
    said = warm_store.program(
        """
        import os, resource, shutil, sys
        from ramet import RametError, Sandbox
        with Sandbox() as s:
            s.run_code("x = 5")
            images = os.environ["XDG_CACHE_HOME"] + "/ramet/images/images"
            shutil.rmtree(images); open(images, "w").close()  # no image can be written any more
            try:
                s.hibernate()
            except RametError as error:
                print("failed")
            print(s.info().image.last_error != "", s.info().image.written_ms, s.run_code("x").value)
        """
    )
    assert said.splitlines() == ["failed", "True None 5"]
    os.unlink(warm_store.folder / "images")
    assert "last failure" in warm_store.command("images")
    assert "the image" in warm_store.command("doctor", "--no-trial")


def test_only_what_an_engine_has_written_is_read_as_a_failure(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    store = open_store(tmp_path)
    try:
        assert last_error(store) is None
        keep_error(store, "x" * 100_000)
        found = last_error(store)
        assert found is not None
        assert set(found[1]) == {"x"}
        for data in (b"", b"[", b"[]", b'{"at": "x", "what": 1}', b"x" * 5000):
            (tmp_path / "last-error").write_bytes(data)
            assert last_error(store) is None
    finally:
        store.close()
