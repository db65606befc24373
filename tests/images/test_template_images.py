"""Images of templates: the second program pours what the first has booted; a bad image is never more than slow."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.images.stores import ImageFolder


def test_the_second_program_pours_the_template_that_the_first_has_booted(store: ImageFolder) -> None:
    first = store.run("1 + 1")
    assert first["images"]["poured"] == 0
    assert len(store.names()) == len(store.images()) == 1
    second = store.run("1 + 1")
    assert (second["images"]["poured"], second["images"]["last_error"]) == (1, "")
    assert second["results"] == first["results"] == ["2"]
    assert store.image.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in store.image.iterdir()} == {0o600}


def test_a_poured_sandbox_is_like_a_booted_one(warm_store: ImageFolder) -> None:
    cells = (
        "import sys, os, threading, subprocess, signal, time, ctypes; sys.executable, os.readlink('/proc/self/exe')",
        "done = []; t = threading.Thread(target=done.append, args=(1,)); t.start(); t.join(); done",
        "subprocess.run(['python3', '-c', 'print(6 * 7)'], capture_output=True, text=True).stdout",
        "libc = ctypes.CDLL(None); libc.sbrk.restype = ctypes.c_void_p; libc.sbrk(1 << 20) not in (None, 2**64 - 1)",
        "open('/proc/self/cmdline', 'rb').read().split(b'\\0')[0], os.environ['HOME'], os.getcwd()",
        "def deep(n): return n and deep(n - 1) + 1\nsys.setrecursionlimit(30_000); deep(20_000)",
        "callable(signal.getsignal(signal.SIGINT)), signal.getsignal(signal.SIGPIPE)",
        "len(bytearray(300 << 20)), sum(i * i for i in range(1000))",
        "[line for line in open('/proc/self/status') if line.startswith(('CapEff', 'Seccomp:', 'NoNewPrivs'))]",
        "abs(time.monotonic() - float(open('/proc/uptime').read().split()[0])) < 5, time.time() > 1.7e9",
        "%timeit -n1 -r1 sum(range(10))\n'stack' if '[stack]' in open('/proc/self/maps').read() else 'no stack'",
    )
    poured = warm_store.run(*cells)
    warm_store.variables["RAMET_IMAGES"] = "off"
    booted = warm_store.run(*cells)
    assert (poured["images"]["poured"], booted["images"]) == (1, None)
    assert poured["results"][:-1] == booted["results"][:-1]
    assert poured["results"][-1].endswith("'stack'")


def test_sandboxes_from_one_image_share_no_memory_and_no_random_numbers(warm_store: ImageFolder) -> None:
    program = (
        "from ramet import Sandbox\n"
        "made = [Sandbox() for _ in range(4)]\n"
        "print(len({each.run_code('import random, os, uuid; x = random.random(), os.urandom(4), uuid.uuid4(); x').text "
        "for each in made}))\n"
        "made[0].run_code('import sys; sys.mine = 1')\n"
        "print([each.run_code('import sys; hasattr(sys, \"mine\")').text for each in made[1:]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "XDG_CACHE_HOME": str(warm_store.cache)},
    )  # fmt: skip
    assert done.stdout.split("\n")[:2] == ["4", "['False', 'False', 'False']"]


def test_images_can_be_switched_off(store: ImageFolder) -> None:
    store.variables["RAMET_IMAGES"] = "off"
    assert store.run("1")["images"] is None
    assert not store.folder.exists()


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def _garbage(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def _remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("part", "break_it"),
    [
        ("pages", _truncate),
        pytest.param("threads", _garbage, marks=pytest.mark.deep("attacks")),
        pytest.param("manifest.json", _truncate, marks=pytest.mark.deep("attacks")),
        ("manifest.mac", _remove),
        pytest.param("pages", _remove, marks=pytest.mark.deep("attacks")),
        pytest.param("loaded", _garbage, marks=pytest.mark.deep("attacks")),
        pytest.param("manifest.json", _garbage, marks=pytest.mark.deep("attacks")),
        pytest.param("manifest.mac", _garbage, marks=pytest.mark.deep("attacks")),
    ],
)
def test_a_broken_image_is_refused_and_made_again(
    warm_store: ImageFolder, part: str, break_it: Callable[[Path], None]
) -> None:
    before = warm_store.image.name
    break_it(warm_store.image / part)
    found = warm_store.run("1 + 1")
    assert (found["results"], found["images"]["poured"]) == (["2"], 0)
    assert "the image of template 'default' was not used: " in found["images"]["last_error"]
    assert warm_store.image.name != before


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"img_" + b"0" * 32, id="of no image"),
        pytest.param(b"", id="empty", marks=pytest.mark.deep("attacks")),
        pytest.param(b"../../../etc", id="of a folder", marks=pytest.mark.deep("attacks")),
        pytest.param(b"x" * 8000, id="long", marks=pytest.mark.deep("attacks")),
    ],
)
def test_a_name_that_leads_nowhere_is_written_again(warm_store: ImageFolder, content: bytes) -> None:
    (name,) = warm_store.names()
    (warm_store.folder / "names" / name).write_bytes(content)
    assert warm_store.run("1")["images"]["poured"] == 0
    assert warm_store.run("1")["images"]["poured"] == 1


def test_an_image_with_another_key_is_not_believed(warm_store: ImageFolder) -> None:
    (warm_store.folder / "key").write_bytes(os.urandom(32))
    found = warm_store.run("1")
    assert "not written with the key of this store" in found["images"]["last_error"]
    assert warm_store.run("1")["images"]["poured"] == 1


@pytest.mark.deep("attacks")
def test_a_folder_of_another_format_is_left_alone(warm_store: ImageFolder) -> None:
    (warm_store.folder / "format").write_text("ramet images 7\n")
    before = warm_store.image.name
    found = warm_store.run("1")
    assert "another format" in found["images"]["last_error"]
    assert warm_store.image.name == before


def _venv(folder: Path) -> tuple[str, Path]:
    """An interpreter of its own, and its folder for modules."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    return str(folder / "bin" / "python"), packages


@pytest.mark.deep("restarts")
def test_a_changed_module_is_noticed(store: ImageFolder, tmp_path: Path) -> None:
    python, packages = _venv(tmp_path / "venv")
    (packages / "mine.py").write_text("value = 1")
    template = {"name": "mine", "python": python, "preload": ["mine"]}
    cells = ("import mine; mine.value",)
    assert store.run(*cells, template=template)["images"]["poured"] == 0
    found = store.run(*cells, template=template)
    assert (found["images"]["poured"], found["results"]) == (1, ["1"])
    (packages / "mine.py").write_text("value = 2")
    found = store.run(*cells, template=template)
    assert found["results"] == ["2"]
    assert f"{packages}/mine.py has changed since the image was written" in found["images"]["last_error"]
    # A module that the template would import if it were there: the folder itself has changed.
    (packages / "other.py").write_text("")
    assert str(packages) in store.run(*cells, template=template)["images"]["last_error"]
    assert store.run(*cells, template=template)["images"]["poured"] == 1


def test_after_a_reboot_the_clock_goes_on(warm_store: ImageFolder) -> None:
    def reboot(manifest: dict[str, Any]) -> None:
        manifest["boot"] = "another"
        manifest["monotonic"] += 100_000

    then = json.loads((warm_store.image / "manifest.json").read_bytes())["monotonic"]
    warm_store.change_manifest(reboot)
    found = warm_store.run("import time; time.monotonic()", "time.sleep(0.01); time.perf_counter()")
    assert found["images"]["poured"] == 1, found["images"]
    assert all(100_000 <= float(result) - then < 100_000 + 3600 for result in found["results"])


@pytest.mark.deep("restarts")
def test_programs_at_once_on_an_empty_store_leave_one_image(store: ImageFolder) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: store.run("1 + 1")["results"], range(4)))
    assert found == [["2"]] * 4
    assert len(store.names()) == 1
    assert store.run("1")["images"]["poured"] == 1


def test_a_disk_that_takes_no_more_leaves_no_image_and_does_no_harm(store: ImageFolder) -> None:
    most = 1 << 20
    found = store.run("1 + 1", before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
    assert found["results"] == ["2"]
    assert store.images() == []
    assert store.names() == []


@pytest.mark.deep("fuzz")
def test_manifests_with_any_field_changed_do_no_harm(warm_store: ImageFolder) -> None:
    """By somebody who has the key: the engine checks every number all the same."""
    import random

    original = (warm_store.image / "manifest.json").read_bytes()
    for seed in range(40):
        chosen = random.Random(seed)

        def change(manifest: dict[str, Any], chosen: random.Random = chosen) -> None:
            manifest.clear()
            manifest.update(json.loads(original))
            kind = chosen.randrange(4)
            if kind == 0:
                row = chosen.choice(manifest["segments"])
                row[chosen.choice([1, 2, 3, 4, 6, 7])] = chosen.choice([0, -1, 1 << 63, 1 << 46, 4096, 7])
            elif kind == 1:
                del manifest[chosen.choice(sorted(manifest))]
            elif kind == 2:
                manifest["memory_limits"][chosen.randrange(11)] = chosen.choice([0, 1 << 40, 1 << 47, -1])
            else:
                manifest["kernels_areas"][0][chosen.randrange(3)] = chosen.choice([0, 4096, "x", 1 << 45])

        warm_store.change_manifest(change)
        assert warm_store.run("1 + 1")["results"] == ["2"], seed
        (name,) = warm_store.names()
