"""Images that are used on another kernel, after another boot, or on another processor.

A reboot is played by changing what an image says of the machine that it was made on: to the engine that reads it, this
machine is then another one. The vdso of the image gets another byte in its notes, which no code reads.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.images.stores import ImageFolder, named

STATE = """
import asyncio, threading, time
began = time.monotonic(), time.perf_counter(), time.time()
lock = threading.Lock(); lock.acquire()
waits, slept, timers = [], [], []
def wait(): waits.append((lock.acquire(timeout=LATER), time.monotonic()))
def sleep(): time.sleep(LATER); slept.append(time.monotonic())
def begin(*functions):
    for function in functions: threading.Thread(target=function, daemon=True).start()
    while any(not thread.is_alive() for thread in threading.enumerate()): pass
begin(wait, sleep)
loop = asyncio.get_event_loop(); due = loop.time() + LATER
loop.call_at(due, lambda: timers.append(loop.time()))
"""
SAVE = """
from ramet import Sandbox
with Sandbox() as sandbox:
    assert sandbox.run_code({state!r}.replace("LATER", "{later}")).ok
    with sandbox.snapshot() as snapshot:
        snapshot.save("loaded")
"""
CLOCKS = (
    "abs(time.time() - {now}) < 600, time.monotonic() >= began[0], time.perf_counter() >= began[1]",
    "time.clock_gettime(time.CLOCK_BOOTTIME) > 0, time.monotonic() - began[0] < {most}",
    "found = []; t = threading.Thread(target=lambda: found.append(time.monotonic())); t.start(); t.join(); "
    "0 <= found[0] - began[0] < {most}, found[0] <= time.monotonic() <= time.monotonic()",
)


def _save(store: ImageFolder, later: float) -> None:
    store.program(SAVE.format(state=STATE, later=later))


def _other_vdso(store: ImageFolder) -> None:
    image = store.saved("loaded")
    data = bytearray((image / "vdso").read_bytes())
    # The name of a note, "Linux" or "GNU".
    place = max(data.find(b"Linux\0"), data.find(b"GNU\0"))
    assert place > 0
    data[place] ^= 0x20
    store.change_part("vdso", bytes(data), image)


def _boot(store: ImageFolder, monotonic: float) -> None:
    """As if the machine had been up for so many seconds more, or less, when the image was made."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["boot"] = "another"
        manifest["monotonic"] += monotonic
        manifest["boottime"] += monotonic

    store.change_manifest(change, store.saved("loaded"))


@pytest.mark.deep("restarts")
def test_on_another_kernel_threads_go_on_and_clocks_are_right(store: ImageFolder) -> None:
    _save(store, later=1000)
    _other_vdso(store)
    cells = [each.format(now=time.time(), most=600) for each in CLOCKS]
    found = store.run(
        *cells,
        "threading.active_count() >= 3, waits, slept, timers",
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None); libc.getauxval.restype = ctypes.c_ulong\n"
        "start = libc.getauxval(33)\n"
        "(own,) = [line for line in open('/proc/self/maps') if line.strip().endswith('[vdso]')]\n"
        "ctypes.string_at(start, 4), len(os.urandom(8)), int(own.partition('-')[0], 16) != start",
        "import struct; auxv = open('/proc/self/auxv', 'rb').read(); "
        "dict(struct.iter_unpack('<QQ', auxv))[33] == start",
        template="loaded",
    )
    assert found["results"] == [
        "(True, True, True)", "(True, True)", "(True, True)", "(True, [], [], [])", "(b'\\x7fELF', 8, True)", "True",
    ]  # fmt: skip
    # Forks of it, and what is saved of it again, on this kernel and on a third one.
    program = """
    from ramet import Sandbox
    with Sandbox("loaded") as sandbox:
        with sandbox.fork(1)[0] as child:
            print(child.run_code("import time; abs(time.time() - {now}) < 600, time.monotonic() > began[0]").text)
            with child.snapshot() as snapshot:
                snapshot.save("loaded")
    """
    assert store.program(program.format(now=time.time())).split() == ["(True,", "True)"]
    assert store.run(*cells, template="loaded")["results"] == ["(True, True, True)", "(True, True)", "(True, True)"]
    _other_vdso(store)
    assert store.run(*cells, template="loaded")["results"] == ["(True, True, True)", "(True, True)", "(True, True)"]


@pytest.mark.deep("load")
def test_a_kernel_that_had_one_area_less(store: ImageFolder) -> None:
    _save(store, later=1000)

    def change(manifest: dict[str, Any]) -> None:
        areas = {name: [start, end] for name, start, end in manifest["kernels_areas"]}
        manifest["kernels_areas"] = [["[vdso]", *areas["[vdso]"]], ["[vvar]", areas["[vvar]"][0], areas["[vvar]"][1]]]

    store.change_manifest(change, store.saved("loaded"))
    found = store.run("time.monotonic() >= began[0], time.time() > began[2]", template="loaded")
    assert found["results"] == ["(True, True)"]


@pytest.mark.deep("restarts")
def test_a_clock_of_another_boot_goes_on_and_so_does_the_shift_of_a_shift(store: ImageFolder) -> None:
    _save(store, later=1000)
    _boot(store, 100_000)
    # A deadline that lies 1000 seconds ahead is over after 100000 of them, and the clock does not go back.
    found = store.run(
        "100_000 <= time.monotonic() - began[0] < 100_600, 100_000 <= time.perf_counter() - began[1]",
        "await asyncio.sleep(0.05); len(waits), len(slept), len(timers)",
        template="loaded",
    )
    assert found["results"] == ["(True, True)", "(1, 1, 1)"]
    # Saved again, and after another boot again.
    program = """
    from ramet import Sandbox
    with Sandbox("loaded") as sandbox:
        sandbox.run_code("again = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)")
        with sandbox.snapshot() as snapshot:
            snapshot.save("loaded")
    """
    store.program(program)
    assert 100_000 <= json.loads((store.saved("loaded") / "manifest.json").read_bytes())["clock_shift"] < 100_600
    _boot(store, 0)
    cell = "0 <= time.monotonic() - again[0] < 600, 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - again[1] < 600"
    assert store.run(cell, template="loaded")["results"] == ["(True, True)"]


@pytest.mark.deep("load")
def test_a_clock_that_is_ahead_here_goes_on_from_where_it_was(store: ImageFolder) -> None:
    """The machine has been up for longer than the one of the image: nothing that waits may end for that."""
    program = SAVE.format(state=STATE, later=1000)
    store.program(program)

    # The image is of a process whose clock was 500 seconds behind: all its times are.
    def change(manifest: dict[str, Any]) -> None:
        manifest["boot"] = "another"
        manifest["monotonic"] -= 500
        manifest["boottime"] -= 500

    store.change_manifest(change, store.saved("loaded"))
    found = store.run("-502 < time.monotonic() - began[0] < 100, waits, slept, timers", template="loaded")
    assert found["results"] == ["(True, [], [], [])"]


@pytest.mark.deep("restarts")
def test_a_processor_that_lacks_something_is_told_by_its_name(store: ImageFolder) -> None:
    _save(store, later=1000)

    def change(manifest: dict[str, Any]) -> None:
        manifest["processor"] = "avx1024 " + manifest["processor"]

    store.change_manifest(change, store.saved("loaded"))
    program = """
    from ramet import RametError, Sandbox
    try:
        Sandbox("loaded")
    except RametError as error:
        print(error)
    """
    said = store.program(program)
    assert "the processor of this machine lacks what the image was made with: avx1024" in said
    assert "make it again" in said

    def less(manifest: dict[str, Any]) -> None:
        manifest["processor"] = "sse2 /"

    store.change_manifest(less, store.saved("loaded"))
    assert store.run("1 + 1", template="loaded")["results"] == ["2"]


@pytest.mark.deep("load")
def test_a_template_goes_on_after_a_reboot_on_another_kernel(warm_store: ImageFolder) -> None:
    image = named(warm_store, "template-")
    data = bytearray((image / "vdso").read_bytes())
    data[data.find(b"GNU\0")] ^= 0x20
    warm_store.change_part("vdso", bytes(data), image)
    found = warm_store.run("import time; time.time() > 1.7e9, time.sleep(0.001)")
    assert (found["images"]["poured"], found["results"]) == (1, ["(True, None)"])
