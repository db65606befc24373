"""Saved snapshots: programs that save one, load it and write it again, each with an engine of its own.

As a program (`python -m bench.images SAMPLE MIB`) it takes one sample in a store that it finds in its environment, and
prints it as JSON.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.forks import threads
from bench.measure import Unavailable
from ramet import Sandbox
from ramet.freezing.images.stored.store import ImageStore
from ramet.freezing.images.stored.verifying import verify
from ramet.transport.embedded import default_engine

_SECONDS = 600
_CELLS = 200
_PAGE = 4096


def heap(mib: int) -> str:
    """No two pages are equal, and none is zero."""
    return f"import numpy as np\ndata = np.arange(1, ({mib} << 17) + 1, dtype=np.float64)\n" + threads(5)


@dataclass(frozen=True)
class Store:
    """A folder of images that only the programs of one scenario use."""

    cache: str

    def sample(self, kind: str, mib: int) -> dict[str, float]:
        return self.run("bench.images", kind, str(mib))

    def run(self, program: str, *arguments: str) -> dict[str, float]:
        """Run a program that prints its samples as JSON."""
        variables = {**os.environ, "XDG_CACHE_HOME": self.cache, "RAMET_IMAGES": "on"}
        command = [sys.executable, "-m", program, *arguments]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=_SECONDS)
        if done.returncode:
            raise Unavailable((done.stderr.strip() or "a program ended without a word").splitlines()[-1])
        sample: dict[str, float] = json.loads(done.stdout)
        return sample


@contextmanager
def store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as cache:
        yield Store(cache)


def _holding(mib: int) -> Sandbox:
    sandbox = Sandbox(memory_mib=2 * mib + 1024, history=False)
    result = sandbox.run_code(heap(mib), timeout=_SECONDS)
    if not result.ok:
        raise SystemExit(result.stderr.strip() or str(result))
    return sandbox


def _to_first_cell(name: str) -> tuple[float, Sandbox]:
    began = time.perf_counter()
    sandbox = Sandbox(name)
    assert sandbox.run_code("6 * 7").value == "42"
    return time.perf_counter() - began, sandbox


def _save(mib: int) -> dict[str, float]:
    with _holding(mib) as sandbox, sandbox.snapshot() as snapshot:
        snapshot.save(f"heap-{mib}")
    return {}


def _load(mib: int) -> dict[str, float]:
    """From the first call that needs the image to its first cell; the same again; a fork; a plain read of its bytes.

    The engine runs and has its template before: what is measured is the image.
    """
    with Sandbox() as small:
        small.run_code("6 * 7")
    time.sleep(0.2)  # what the engine makes ahead after a first sandbox is made
    pages = _page_files()
    read = _read_once(pages)  # also fills the page cache
    first, loaded = _to_first_cell(f"heap-{mib}")
    second, again = _to_first_cell(f"heap-{mib}")
    again.close()
    time.sleep(0.1)
    began = time.perf_counter()
    (child,) = loaded.fork(1)
    assert child.run_code("6 * 7").value == "42"
    forked = time.perf_counter() - began
    child.close()
    assert loaded.run_code("data[-1] - len(data)").value in ("0.0", "np.float64(0.0)")
    loaded.close()
    return {"first": first, "second": second, "fork": forked, "read": min(read, _read_once(pages))}


def _images() -> Path:
    return Path(os.environ["XDG_CACHE_HOME"]) / "ramet" / "images" / "images"


def _page_files() -> list[Path]:
    """Of the largest image in the store: besides it there is the template's."""
    folders = [folder for folder in _images().iterdir() if folder.name.startswith("img_")]
    return list(max(folders, key=lambda folder: (folder / "pages").stat().st_size).glob("pages*"))


def _read_once(files: list[Path]) -> float:
    room = bytearray(1 << 20)
    began = time.perf_counter()
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(room):
                pass
    return time.perf_counter() - began


def _increment(mib: int) -> dict[str, float]:
    """Bytes and processor time of a whole image and of one after 1 % of the pages changed; of hashing all pages."""
    with _holding(mib) as sandbox:
        full = _write(sandbox)
        sandbox.run_code(f"data.reshape(-1, {_PAGE} // 8)[::100] += 1")
        increment = _write(sandbox)
        hashing = _hash_all()
    return {
        "full_bytes": full[0], "full_seconds": full[1],
        "increment_bytes": increment[0], "increment_seconds": increment[1],
        "hash_seconds": hashing,
    }  # fmt: skip


def _write(sandbox: Sandbox) -> tuple[float, float]:
    """Bytes of pages that are new on disk, and seconds of processor time of the programs that the engine ran for it."""
    known = {path.name for path in _images().iterdir()} if _images().exists() else set()
    before = _seconds_of_helpers()
    with sandbox.snapshot() as snapshot:
        snapshot.save("increments")
    made = [folder for folder in _images().iterdir() if folder.name not in known and folder.name.startswith("img_")]
    written = max((folder / "pages").stat().st_blocks * 512 for folder in made)
    return float(written), _seconds_of_helpers() - before


def _seconds_of_helpers() -> float:
    """Processor time of the engine's children that have ended, as proc_pid_stat(5) has it."""
    launcher = default_engine().pid
    engine = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()[0]
    words = Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()
    return (int(words[13]) + int(words[14])) / os.sysconf("SC_CLK_TCK")


def _hash_all() -> float:
    """Processor time of one pass of hashing over all pages of the newest image, mapped from the page cache."""
    folder = os.open(_images().parent, os.O_RDONLY | os.O_DIRECTORY)
    kept = ImageStore(folder)
    try:
        image_id = kept.find(next(name for name in kept.names("") if "increments" in name))
        assert image_id is not None
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        verify(kept, image_id)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    finally:
        kept.close()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _neighbour(mib: int) -> dict[str, float]:
    """Cells of a sandbox, while the image of another one is written, and while none is."""
    with _holding(mib) as large, Sandbox() as neighbour, large.snapshot() as snapshot:

        def cell() -> float:
            began = time.perf_counter()
            assert neighbour.run_code("6 * 7").value == "42"
            taken = time.perf_counter() - began
            time.sleep(0.002)
            return taken

        for _ in range(20):
            cell()
        quiet = statistics.median(cell() for _ in range(_CELLS))
        writing = threading.Thread(target=snapshot.save, args=("neighbours",))
        writing.start()
        busy: list[float] = []
        while writing.is_alive() and len(busy) < 100 * _CELLS:
            busy.append(cell())
        writing.join()
        again = statistics.median(cell() for _ in range(_CELLS))
    return {"writing": statistics.median(busy), "quiet": quiet, "again": again}


if __name__ == "__main__":
    taken = {"save": _save, "load": _load, "increment": _increment, "neighbour": _neighbour}[sys.argv[1]]
    print(json.dumps(taken(int(sys.argv[2]))))
