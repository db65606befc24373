"""A sandbox as it should be, in memory, and a machine that drives real ones beside such models at random.

After every step the namespaces, files, threads and open descriptors of all sandboxes that are alive are compared with
their models. Hypothesis chooses the steps and, when something differs, looks for the shortest way to it.
"""

from __future__ import annotations

import copy
import zlib
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramet import Sandbox, Snapshot
from tests.fork.relatives import run, value

ALIVE_AT_MOST = 7
SNAPSHOTS_AT_MOST = 4

NAMES = st.sampled_from(["v_a", "v_b", "v_c", "v_d"])
FILES = st.sampled_from(["a", "b", "folder/c", "folder/deep/d"])
# The last is more than is copied into each child: it goes into a layer that children share.
SIZES = st.sampled_from([0, 1, 10, 3000, 3000, 100_000, 34_000_000])
NUMBERS = st.integers(-5, 5)
PICK = st.integers(0, 1000)

# A thread whose sum is on its stack only, a descriptor whose offset is in the kernel only, a pipe with bytes in it.
_SETUP = """
import os, queue, shutil, threading, zlib
asked, answered = queue.Queue(), queue.Queue()
def adds():
    total = 0
    while True:
        total += asked.get()
        answered.put(total)
threading.Thread(target=adds, daemon=True).start()
def add(number):
    asked.put(number)
    return answered.get(timeout=20)
os.makedirs('/root/of-the-model', exist_ok=True)
log = open('/root/log', 'wb', buffering=0)
reading, writing = os.pipe()
os.set_blocking(reading, False)
def write(path, size, number):
    os.makedirs(os.path.dirname(f'/root/of-the-model/{path}'), exist_ok=True)
    with open(f'/root/of-the-model/{path}', 'wb') as file: file.write(bytes([number % 256]) * size)
def files():
    found = {}
    for folder, _, names in os.walk('/root/of-the-model'):
        for name in names:
            with open(f'{folder}/{name}', 'rb') as file: held = file.read()
            found[os.path.relpath(f'{folder}/{name}', '/root/of-the-model')] = (len(held), zlib.crc32(held))
    return found
def look():
    names = {name: value for name, value in globals().items() if name.startswith('v_')}
    with open('/root/log', 'rb') as file: written = file.read()
    return names, files(), written, log.tell(), os.environ.get('STEP')
"""


@dataclass
class Model:
    """What one sandbox should hold."""

    names: dict[str, int] = field(default_factory=dict)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)  # size and the byte they are filled with
    total: int = 0
    log: bytes = b""
    in_pipe: bytes = b""
    step: str | None = None

    def copied(self) -> Model:
        return copy.deepcopy(self)

    def forget_the_process(self) -> None:
        """The REPL was lost and set up again: files stay."""
        self.names, self.total, self.log, self.in_pipe, self.step = {}, 0, b"", b"", None


@dataclass
class Pair:
    real: Sandbox
    model: Model


class Sandboxes(RuleBasedStateMachine):
    """Random cells, forks, merges, snapshots, restores, file writes and closes."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[Pair] = []
        self.snapshots: list[tuple[Snapshot, Model]] = []
        self.checksums: dict[tuple[int, int], int] = {}

    def pair(self, pick: int) -> Pair:
        return self.pairs[pick % len(self.pairs)]

    # --- what a single sandbox does

    @initialize()
    def create(self) -> None:
        real = Sandbox(recover="fresh")
        self.pairs.append(Pair(real, Model()))
        run(real, _SETUP)

    @precondition(lambda self: len(self.pairs) < ALIVE_AT_MOST)
    @rule()
    def create_another(self) -> None:
        self.create()

    @rule(pick=PICK, name=NAMES, number=NUMBERS)
    def set_name(self, pick: int, name: str, number: int) -> None:
        pair = self.pair(pick)
        run(pair.real, f"{name} = {number}; os.environ['STEP'] = '{name}{number}'")
        pair.model.names[name], pair.model.step = number, f"{name}{number}"

    @rule(pick=PICK, name=NAMES)
    def delete_name(self, pick: int, name: str) -> None:
        pair = self.pair(pick)
        run(pair.real, f"_ = globals().pop('{name}', None)")
        pair.model.names.pop(name, None)

    @rule(pick=PICK, path=FILES, size=SIZES, number=NUMBERS)
    def write_file(self, pick: int, path: str, size: int, number: int) -> None:
        pair = self.pair(pick)
        run(pair.real, f"write('{path}', {size}, {number})")
        pair.model.files[path] = (size, number % 256)

    @rule(pick=PICK, path=FILES, number=NUMBERS)
    def upload(self, pick: int, path: str, number: int) -> None:
        pair = self.pair(pick)
        pair.real.files.mkdir("/root/of-the-model/folder/deep")
        pair.real.upload(bytes([number % 256]) * 500, f"/root/of-the-model/{path}")
        pair.model.files[path] = (500, number % 256)

    @rule(pick=PICK, path=FILES)
    def delete_file(self, pick: int, path: str) -> None:
        pair = self.pair(pick)
        run(pair.real, f"_ = os.path.exists('/root/of-the-model/{path}') and os.unlink('/root/of-the-model/{path}')")
        pair.model.files.pop(path, None)

    @rule(pick=PICK)
    def delete_folder(self, pick: int) -> None:
        pair = self.pair(pick)
        run(pair.real, "shutil.rmtree('/root/of-the-model/folder', ignore_errors=True)")
        pair.model.files = {path: held for path, held in pair.model.files.items() if not path.startswith("folder/")}

    @rule(pick=PICK, number=NUMBERS)
    def add_in_the_thread(self, pick: int, number: int) -> None:
        pair = self.pair(pick)
        pair.model.total += number
        assert value(pair.real, f"add({number})") == pair.model.total

    @rule(pick=PICK, number=NUMBERS)
    def write_to_the_log(self, pick: int, number: int) -> None:
        pair = self.pair(pick)
        run(pair.real, f"_ = log.write(b'{number},')")
        pair.model.log += b"%d," % number

    @rule(pick=PICK, number=NUMBERS)
    def write_to_the_pipe(self, pick: int, number: int) -> None:
        pair = self.pair(pick)
        run(pair.real, f"_ = os.write(writing, b'{number},')")
        pair.model.in_pipe += b"%d," % number

    @precondition(lambda self: any(pair.model.in_pipe for pair in self.pairs))
    @rule()
    def read_the_pipes(self) -> None:
        for pair in self.pairs:
            if pair.model.in_pipe:
                assert value(pair.real, "os.read(reading, 65536)") == pair.model.in_pipe
                pair.model.in_pipe = b""

    @rule(pick=PICK)
    def lose_the_repl(self, pick: int) -> None:
        pair = self.pair(pick)
        assert pair.real.run_code("os._exit(1)", timeout=60).state == "lost"
        assert pair.real.run_code(_SETUP, timeout=60).restarted
        pair.model.forget_the_process()

    # --- what several do

    @precondition(lambda self: len(self.pairs) < ALIVE_AT_MOST)
    @rule(pick=PICK, n=st.integers(1, 3), reseed=st.booleans())
    def fork(self, pick: int, n: int, reseed: bool) -> None:
        pair = self.pair(pick)
        self.pairs += [Pair(child, pair.model.copied()) for child in pair.real.fork(n, reseed=reseed)]

    @precondition(lambda self: len(self.pairs) > 1)
    @rule(pick=PICK, other=PICK)
    def merge(self, pick: int, other: int) -> None:
        pair, winner = self.pair(pick), self.pair(other)
        if pair is winner:
            return
        pair.real.merge_into(winner.real)
        pair.model = winner.model
        winner.real.close()
        self.pairs.remove(winner)

    @precondition(lambda self: len(self.pairs) > 1)
    @rule(pick=PICK)
    def close(self, pick: int) -> None:
        pair = self.pair(pick)
        pair.real.close()
        self.pairs.remove(pair)

    @rule(pick=PICK, other=PICK)
    def compare(self, pick: int, other: int) -> None:
        one, two = self.pair(pick), self.pair(other)
        if one is two:
            return
        difference = one.real.diff(two.real, paths=["/root/of-the-model"])
        names = {change.name: change.change for change in difference.names if change.name.startswith("v_")}
        assert names == _changes(one.model.names, two.model.names, "changed")
        files = {change.path: change.change for change in difference.files if change.type == "file"}
        expected = _changes(one.model.files, two.model.files, "modified")
        assert files == {f"/root/of-the-model/{path}": change for path, change in expected.items()}

    # --- snapshots

    @precondition(lambda self: len(self.snapshots) < SNAPSHOTS_AT_MOST)
    @rule(pick=PICK)
    def take_snapshot(self, pick: int) -> None:
        pair = self.pair(pick)
        self.snapshots.append((pair.real.snapshot(), pair.model.copied()))

    @precondition(lambda self: self.snapshots)
    @rule(pick=PICK, which=PICK)
    def restore(self, pick: int, which: int) -> None:
        pair, (snapshot, model) = self.pair(pick), self.snapshots[which % len(self.snapshots)]
        pair.real.restore(snapshot)
        pair.model = model.copied()

    @precondition(lambda self: self.snapshots and len(self.pairs) < ALIVE_AT_MOST)
    @rule(which=PICK)
    def create_from_snapshot(self, which: int) -> None:
        snapshot, model = self.snapshots[which % len(self.snapshots)]
        self.pairs.append(Pair(Sandbox(template=snapshot), model.copied()))

    @precondition(lambda self: self.snapshots)
    @rule(which=PICK)
    def close_snapshot(self, which: int) -> None:
        snapshot, _ = self.snapshots.pop(which % len(self.snapshots))
        snapshot.close()

    # --- what must hold

    @invariant()
    def all_are_as_their_models(self) -> None:
        for pair in self.pairs:
            names, files, log, place, step = value(pair.real, "look()")
            assert names == pair.model.names
            assert files == {path: (size, self.checksum(size, byte)) for path, (size, byte) in pair.model.files.items()}
            assert (log, place, step) == (pair.model.log, len(pair.model.log), pair.model.step)

    def checksum(self, size: int, byte: int) -> int:
        if (size, byte) not in self.checksums:
            self.checksums[size, byte] = zlib.crc32(bytes([byte]) * size)
        return self.checksums[size, byte]

    def teardown(self) -> None:
        for pair in self.pairs:
            pair.real.close()
        for snapshot, _ in self.snapshots:
            snapshot.close()


def _changes(before: dict[str, Any], after: dict[str, Any], changed: str) -> dict[str, str]:
    told = dict.fromkeys(after.keys() - before.keys(), "added")
    told |= dict.fromkeys(before.keys() - after.keys(), "removed")
    return told | {name: changed for name in before.keys() & after.keys() if before[name] != after[name]}
