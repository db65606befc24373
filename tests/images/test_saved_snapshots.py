"""Snapshots on disk: what one program saves, another has, with threads, files and everything that was open."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramet import InvalidArgument, Sandbox, SandboxClosed
from tests.fork.relatives import run, value
from tests.images.states import LOOK, SEEN, STATE
from tests.images.stores import ImageFolder

SAVE = """
from ramet import Sandbox
with Sandbox() as sandbox:
    assert sandbox.run_code({state!r}).ok
    with sandbox.snapshot() as snapshot:
        snapshot.save("loaded")
    print(sandbox.run_code("len(numbers)").text)
"""


@pytest.fixture
def saved(store: ImageFolder) -> ImageFolder:
    """A store in which another program has saved a sandbox as "loaded"."""
    assert store.program(SAVE.format(state=STATE)).strip() == "1000"
    return store


@pytest.mark.promise("image-keeps-everything")
def test_another_program_has_all_that_was_saved(saved: ImageFolder) -> None:
    found = saved.run(*LOOK, template="loaded")
    assert found["results"] == SEEN
    # And once more: the first did not change what is saved.
    assert saved.run(*LOOK, template="loaded")["results"] == SEEN


@pytest.mark.deep("restarts")
def test_a_sandbox_from_disk_is_forked_frozen_and_saved_again(saved: ImageFolder) -> None:
    program = """
    from ramet import Sandbox
    with Sandbox("loaded") as sandbox:
        with sandbox.fork(2) as children:
            print([child.run_code("work.qsize(), ticking.is_alive()").text for child in children])
        sandbox.run_code("numbers.append(5)")
        with sandbox.snapshot() as snapshot:
            snapshot.save("again")
            sandbox.run_code("del numbers")
            sandbox.restore(snapshot)
        print(sandbox.run_code("len(numbers)").text)
    """
    assert saved.program(program).splitlines() == ["['(1, True)', '(1, True)']", "1001"]
    assert saved.run("len(numbers), ticking.is_alive()", template="again")["results"] == ["(1001, True)"]


def test_a_name_that_is_saved_again_means_the_new_one(sandbox: Sandbox) -> None:
    for number in range(3):
        run(sandbox, f"x = {number}")
        with sandbox.snapshot() as snapshot:
            assert snapshot.save("again-and-again") > 1 << 20
        with Sandbox("again-and-again") as copy:
            assert value(copy, "x") == number


@pytest.mark.deep("restarts")
def test_a_name_that_another_program_has_saved_or_removed_since_is_seen(saved: ImageFolder) -> None:
    program = """
    import os, subprocess, sys
    from ramet import InvalidArgument, Sandbox
    with Sandbox("loaded") as first:
        print(first.run_code("len(numbers)").text)
    other = '''
    from ramet import Sandbox
    with Sandbox() as sandbox:
        sandbox.run_code("numbers = [1, 2]")
        with sandbox.snapshot() as snapshot:
            snapshot.save("loaded")
    '''
    import textwrap
    subprocess.run([sys.executable, "-c", textwrap.dedent(other)], check=True)
    with Sandbox("loaded") as second:
        print(second.run_code("len(numbers)").text)
    command = os.path.join(os.path.dirname(sys.executable), "ramet")
    subprocess.run([command, "images", "rm", "loaded"], check=True, stdout=subprocess.DEVNULL)
    try:
        Sandbox("loaded")
    except InvalidArgument as error:
        print("gone" if "no template" in str(error) else error)
    """
    assert saved.program(program).split() == ["1000", "2", "gone"]


def test_a_name_that_cannot_be_saved_is_told(sandbox: Sandbox) -> None:
    with sandbox.snapshot() as snapshot:
        for name in ("default", "python-datasci", "a/b", "..", "", "x" * 65):
            with pytest.raises(InvalidArgument):
                snapshot.save(name)
    with pytest.raises(SandboxClosed):
        snapshot.save("closed")
    with pytest.raises(InvalidArgument, match="no template 'never-saved'"):
        Sandbox("never-saved")


def test_a_template_cannot_take_the_name_of_what_is_saved(sandbox: Sandbox) -> None:
    from ramet import Template

    with sandbox.snapshot() as snapshot:
        snapshot.save("taken")
    with pytest.raises(InvalidArgument):
        Sandbox(Template("taken", preload=["json"]))


def test_limits_and_variables_can_be_given_on_top(sandbox: Sandbox) -> None:
    with sandbox.snapshot() as snapshot:
        snapshot.save("with-limits")
    with Sandbox("with-limits", memory_mib=300, env={"MORE": "1"}, cwd="/tmp") as copy:
        assert value(copy, "import os; os.environ['MORE'], os.getcwd()") == ("1", "/tmp")
        assert copy.info().limits.memory_bytes == 300 << 20


_MORE = pytest.mark.deep("attacks")


@pytest.mark.deep("restarts")
@pytest.mark.parametrize(
    "part", ["state", *(pytest.param(part, marks=_MORE) for part in ("manifest.json", "files", "pages", "threads"))]
)
def test_a_broken_image_is_refused_with_its_reason_and_kept(saved: ImageFolder, part: str) -> None:
    (image,) = (path for path in saved.images() if (path / "state").exists())
    data = (image / part).read_bytes()
    (image / part).write_bytes(data[: len(data) // 2])
    program = """
    from ramet import Sandbox, RametError
    try:
        Sandbox("loaded")
    except RametError as error:
        print("refused:", error)
    print(Sandbox().run_code("1").text)
    """
    said = saved.program(program).splitlines()
    assert said[0].startswith("refused: ")
    assert said[-1] == "1"
    assert image.exists()


@pytest.mark.deep("restarts")
def test_without_a_folder_for_images_nothing_can_be_saved(store: ImageFolder) -> None:
    store.variables["RAMET_IMAGES"] = "off"
    program = """
    from ramet import Sandbox, RametError
    with Sandbox() as sandbox, sandbox.snapshot() as snapshot:
        try:
            snapshot.save("x")
        except RametError as error:
            print(error)
    """
    assert "this engine keeps no images on disk" in store.program(program)


@pytest.mark.deep("load")
def test_an_engine_that_is_killed_while_it_writes_leaves_what_was_saved_before(saved: ImageFolder) -> None:
    """At moments all over the write: the name means the old image or the new one, and never half of one."""
    program = """
    import os, signal, sys, threading, time
    from ramet import RametError, Sandbox
    from ramet.transport import embedded
    from tests.walls.family import engine_of
    with Sandbox("loaded") as sandbox:
        sandbox.run_code("numbers = [7]; more = os.urandom(30 << 20)")
        with sandbox.snapshot() as snapshot:
            engine = engine_of(embedded.default_engine().pid)
            threading.Timer(float(sys.argv[1]), os.kill, (engine, signal.SIGKILL)).start()
            try:
                snapshot.save("loaded")
                print("saved", flush=True)
            except RametError:
                print("killed", flush=True)
            os._exit(0)
    """
    seen = set()
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2):
        said = saved.program(program, str(delay)).strip()
        (length,) = saved.run("len(numbers)", template="loaded")["results"]
        assert length in ("1000", "1") if said == "killed" else length == "1", (delay, said, length)
        seen.add(said)
    assert "killed" in seen


MEMORY_LIKE_MEMORY = (
    "import ctypes, mmap; libc = ctypes.CDLL(None)",
    "room.extend(b'y' * (40 << 20)); len(room), room[0], room[-1], bytes(room[60 << 20 : (60 << 20) + 2])",
    "at = ctypes.addressof(ctypes.c_char.from_buffer(own)); libc.madvise(ctypes.c_void_p(at), 1 << 20, 4), own[:4]",
    "own2 = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE); own2[:4]",
)


@pytest.mark.deep("restarts")
def test_memory_from_disk_grows_and_is_given_back_like_any_other(store: ImageFolder) -> None:
    """Large blocks grow by mremap, and allocators rely on zeros in what they have given back."""
    store.program(
        """
        from ramet import Sandbox
        with Sandbox() as sandbox:
            assert sandbox.run_code("import mmap; room = bytearray(b'x' * (60 << 20))").ok
            assert sandbox.run_code("own = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE); own[:4] = b'full'").ok
            with sandbox.snapshot() as snapshot:
                snapshot.save("grows")
        """
    )
    found = store.run(*MEMORY_LIKE_MEMORY, template="grows")
    assert found["results"][1:] == [
        "(104857600, 120, 121, b'yy')",
        r"(0, b'\x00\x00\x00\x00')",
        r"b'\x00\x00\x00\x00'",
    ]


@pytest.mark.deep("restarts")
def test_a_clock_that_went_through_a_reboot_goes_on_through_the_next_image(warm_store: ImageFolder) -> None:
    def reboot(manifest: dict[str, Any]) -> None:
        manifest["boot"] = "another"
        manifest["monotonic"] += 100_000

    warm_store.change_manifest(reboot)
    program = """
    from ramet import Sandbox
    with Sandbox() as sandbox:
        print(sandbox.run_code("import time; begun = time.monotonic(); begun").text)
        with sandbox.snapshot() as snapshot:
            snapshot.save("later")
    with Sandbox("later") as sandbox:
        print(sandbox.run_code("0 <= time.monotonic() - begun < 600").text)
    """
    begun, goes_on = warm_store.program(program).split()
    assert float(begun) > 100_000
    assert goes_on == "True"


@pytest.mark.deep("restarts")
def test_a_mapping_larger_than_any_disk_is_no_burden(store: ImageFolder) -> None:
    program = """
    from ramet import RametError, Sandbox
    with Sandbox() as sandbox:
        assert sandbox.run_code(
            "import ctypes, os; libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p\\n"
            "zero = os.open('/dev/zero', os.O_RDONLY)\\n"
            "libc.mmap(None, ctypes.c_size_t(1 << 44), 1, 0x4002, zero, ctypes.c_long(0)) not in (None, 2**64 - 1)"
        ).text == "True"
        with sandbox.snapshot() as snapshot:
            print(snapshot.save("sparse") < 200 << 20)
    with Sandbox("sparse") as sandbox:
        print(sandbox.run_code("1").text)
    """
    assert store.program(program).split() == ["True", "1"]


@pytest.mark.deep("restarts")
def test_a_library_that_is_replaced_while_the_engine_runs_is_not_taken_for_the_one_in_memory(
    store: ImageFolder, tmp_path: Path
) -> None:
    """Of the mapping the image has the bytes: what lies at the path is another library."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    for number in (1, 2):
        source = tmp_path / f"version{number}.c"
        # Large enough that its code is not in the page that the loader has written to.
        source.write_text(f"int version(void) {{ return {number}; }} char room[65536] = {{1}};")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / f"version{number}.so", source], check=True)
    library = folder / "lib" / "libversion.so"
    shutil.copy(tmp_path / "version1.so", library)
    program = """
    import os, shutil, sys
    from ramet import Sandbox
    python, library, new = sys.argv[1:]
    with Sandbox(python=python) as sandbox:
        print(sandbox.run_code(f"import ctypes; own = ctypes.CDLL({library!r}); own.version()").text)
        shutil.copy(new, library + ".new")
        os.replace(library + ".new", library)
        with sandbox.snapshot() as snapshot:
            snapshot.save("loaded")
    """
    arguments = str(folder / "bin" / "python"), str(library), str(tmp_path / "version2.so")
    assert store.program(program, *arguments).split() == ["1"]
    assert store.run("own.version(), own._handle > 0", template="loaded")["results"] == ["(1, True)"]


@pytest.mark.deep("restarts")
def test_a_library_that_was_replaced_since_is_named_with_the_cure(store: ImageFolder, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    library = folder / "lib" / "libown.so"
    (tmp_path / "own.c").write_text("int version(void) { return 1; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "own.c"], check=True)
    program = """
    import sys
    from ramet import RametError, Sandbox
    python, library, step = sys.argv[1:]
    if step == "save":
        with Sandbox(python=python) as sandbox:
            sandbox.run_code(f"import ctypes; own = ctypes.CDLL({library!r})")
            with sandbox.snapshot() as snapshot:
                snapshot.save("loaded")
    else:
        try:
            Sandbox("loaded")
        except RametError as error:
            print(error)
    """
    arguments = str(folder / "bin" / "python"), str(library)
    store.program(program, *arguments, "save")
    library.touch()
    said = store.program(program, *arguments, "load")
    assert f"{library} has changed since the image was written" in said
    assert "hint: put that version of it back, or make the image again" in said


INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
from ramet import Sandbox
images = Path(sys.argv[1])

def interrupt_when_it_writes():
    while not any(path.stat().st_size > 8 << 20 for path in images.glob(".new-*/pages")):
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGINT)

with Sandbox(memory_mib=2048) as sandbox:
    sandbox.run_code("import os; data = os.urandom(16 << 20)")
    with sandbox.snapshot() as snapshot:
        snapshot.save("big")
    assert sandbox.run_code("import os; data = [os.urandom(64 << 20) for _ in range(8)]", timeout=60).ok
    with sandbox.snapshot() as snapshot:
        threading.Thread(target=interrupt_when_it_writes, daemon=True).start()
        try:
            snapshot.save("big")
        except KeyboardInterrupt:
            print("interrupted")
        while list(images.glob(".new-*")):
            time.sleep(0.01)
"""


@pytest.mark.deep("load")
def test_a_save_that_is_given_up_leaves_what_the_name_meant_before(store: ImageFolder) -> None:
    printed = store.program(INTERRUPTED, str(store.folder / "images"))
    assert printed.split()[0] == "interrupted"
    assert store.run("len(data)", template="big")["results"] == [str(16 << 20)]
    assert not list((store.folder / "images").glob(".new-*"))
