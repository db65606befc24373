"""Images that were changed at random, by somebody who can make every hash and MAC right: nobody else notices."""

from __future__ import annotations

import copy
import hashlib
import hmac
import io
import json
import os
import random
import secrets
import shutil
from pathlib import Path
from typing import Any

import pytest

from ramet.errors import RametError
from ramet.freezing.images.moving.unpacking import unpack
from ramet.isolation.files.cache_folders import saved_image_name
from ramet.protocol.import_terms import ImportTerms
from ramet.protocol.values.specs import Interpreter, Limits
from tests.images.forging import ExportedFile
from tests.images.stores import ImageFolder
from tests.images.tampering import tamper, tamper_bytes

STATE = """
import asyncio, mmap, os, signal, socket, threading, time
listening = socket.socket(); listening.bind(("127.0.0.1", 8080)); listening.listen()
client = socket.create_connection(("127.0.0.1", 8080)); served, _ = listening.accept(); client.send(b"waits")
one, other = socket.socketpair(); one.send(b"waits too")
reading, writing = os.pipe(); os.write(writing, b"held")
shared = mmap.mmap(-1, 1 << 16); shared[:5] = b"hello"
note = open("/root/note.txt", "w+"); note.write("note"); note.flush()
try: memory = os.memfd_create("memory"); os.write(memory, b"bytes")
except OSError: pass  # refused where no control group counts memory
counting = os.eventfd(3); signal.signal(signal.SIGUSR1, lambda *_: None)
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""

# Loads each of the names in one engine, and tells what became of it. What is refused must leave nothing behind.
_LOADING = """
import json, os, sys, time
from ramet import RametError, Sandbox
from ramet.transport import embedded
from tests.walls.family import engine_of

def held(pid):
    return len(os.listdir(f"/proc/{pid}/fd")), len(open(f"/proc/{pid}/task/{pid}/children").read().split())

def settled(pid, most):  # whether the engine soon holds no more descriptors and processes than this
    for _ in range(200):
        if all(now <= allowed for now, allowed in zip(held(pid), most)):
            return True
        time.sleep(0.05)
    return False

outcomes = []
with Sandbox(history=False) as neighbour:
    neighbour.run_code("x = 41")
    pid = engine_of(embedded.default_engine().pid)
    for name in json.loads(sys.argv[1]):
        before = [number + spare for number, spare in zip(held(pid), (40, 8))]  # pods that are made ahead
        try:
            with Sandbox(name, history=False) as sandbox:
                outcomes.append("ran" if sandbox.run_code("1 + 1", timeout=5).ok else "failed")
        except RametError as error:
            outcomes.append("refused" if "cannot be used" in str(error) else type(error).__name__)
            if outcomes[-1] == "refused" and not settled(pid, before):
                sys.exit(f"{name} was refused, and left something behind: {before}, {held(pid)}")
        if neighbour.run_code("x + 1").text != "42":
            sys.exit(f"the neighbour was harmed by {name}")
    assert engine_of(embedded.default_engine().pid) == pid
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    store = ImageFolder(tmp_path_factory.mktemp("tampered"))
    store.program(
        """
        import sys
        from ramet import Sandbox
        with Sandbox() as sandbox:
            assert sandbox.run_code(sys.argv[1]).ok
            with sandbox.snapshot() as snapshot:
                snapshot.save("victim")
                snapshot.export(sys.argv[2])
        """,
        STATE,
        str(store.cache / "victim.ramet"),
    )
    return store


@pytest.fixture(scope="module")
def small(saved: ImageFolder) -> ExportedFile:
    """The exported file without most of its pages: nobody needs them to refuse it."""
    found = ExportedFile(saved.cache / "victim.ramet")
    at = 0
    kept = []
    for row in found.manifest["segments"]:
        length = row[2] - row[1]
        if row[0] in ("pages", "filled"):
            if at + length > 1 << 16:
                continue
            row[7] = at
            at += length
        kept.append(row)
    found.manifest["segments"] = kept
    found.parts["pages"] = found.parts["pages"][:at]
    found.manifest["page_files"] = [["pages", at]]
    return found


def _unpack(data: bytes, small: ExportedFile, folder: Path) -> str:
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        interpreter = Interpreter.read(small.manifest["template"]["interpreter"])
        limits = Limits(256 << 20, 256, 2.0, 64 << 20)
        terms = ImportTerms("img_" + "0" * 32, "saved-x", "", limits, interpreter, 1 << 30)
        unpack(io.BytesIO(data), descriptor, terms)
        return "unpacked"
    except RametError:
        return "refused"
    finally:
        os.close(descriptor)
        written = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
        shutil.rmtree(folder)
        assert written < 64 << 20


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(1000, 2500), marks=pytest.mark.deep("fuzz"))], ids=["some", "many"]
)
def test_tampered_files_are_unpacked_or_refused(small: ExportedFile, tmp_path: Path, seeds: range) -> None:
    untouched = small.write(tmp_path / "untouched").read_bytes()
    assert _unpack(untouched, small, tmp_path / "first") == "unpacked"
    seen = set()
    for seed in seeds:
        chance = random.Random(seed)
        if seed % 5 == 0:
            data = tamper_bytes(untouched, chance)
        else:
            forged = copy.copy(small)
            forged.parts = dict(small.parts)
            name = chance.choice(
                ("manifest.json", "manifest.json", "state", "state", "state", "sources", "files", "threads")
            )
            if isinstance(forged.parts[name], bytes):
                forged.parts[name] = tamper_bytes(forged.parts[name], chance)
            else:
                forged.parts[name] = copy.deepcopy(forged.parts[name])
                tamper(forged.parts[name], chance)
            data = forged.write(tmp_path / "tampered").read_bytes()
        try:
            seen.add(_unpack(data, small, tmp_path / str(seed)))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert seen == {"unpacked", "refused"}


def _victim(saved: ImageFolder) -> Path:
    (image,) = (path for path in saved.images() if (path / "state").exists() and not (path / "tampered").exists())
    return image


def _make_tampered(saved: ImageFolder, seed: int) -> str:
    """An image as somebody would write it who has the key of the store."""
    chance, victim = random.Random(seed), _victim(saved)
    name, image_id = f"tampered-{seed}", f"img_{secrets.token_hex(16)}"
    image = victim.parent / image_id
    shutil.copytree(victim, image, copy_function=os.link)
    (image / "tampered").touch()
    manifest: dict[str, Any] = json.loads((victim / "manifest.json").read_bytes())
    state: dict[str, Any] = json.loads((victim / "state").read_bytes())
    manifest["id"], state["name"] = image_id, saved_image_name("", name)
    manifest["imported"] = chance.random() < 0.5
    part = chance.choice(("manifest", "manifest", "state", "state", "threads", "threads", "pages", "files", "vdso"))
    if part == "state":
        tamper(state, chance)
    _replace(image / "state", json.dumps(state).encode())
    if part not in ("manifest", "state"):
        _replace(image / part, tamper_bytes((victim / part).read_bytes(), chance))
    for each in ("state", "threads", "vdso", "loaded"):
        manifest["digests"][each] = hashlib.sha256((image / each).read_bytes()).hexdigest()
    if part == "manifest":
        tamper(manifest, chance)
    data = json.dumps(manifest).encode()
    _replace(image / "manifest.json", data)
    key = (saved.folder / "key").read_bytes()
    _replace(image / "manifest.mac", hmac.digest(key, data, hashlib.sha256))
    (saved.folder / "names" / saved_image_name("", name)).write_text(image_id)
    return name


def _replace(path: Path, data: bytes) -> None:
    """Not in place: the file is the victim's as well."""
    path.unlink()
    path.write_bytes(data)
    path.chmod(0o600)


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 20), *(pytest.param(at, 50, marks=pytest.mark.deep("fuzz")) for at in range(1000, 1600, 50))],
)
def test_tampered_images_harm_nobody_but_their_own_sandbox(saved: ImageFolder, first: int, count: int) -> None:
    names = [_make_tampered(saved, seed) for seed in range(first, first + count)]
    try:
        outcomes = json.loads(saved.program(_LOADING, json.dumps(names)))
    finally:
        for image in saved.images():
            if (image / "tampered").exists():
                shutil.rmtree(image)
    assert len(outcomes) == count
    assert "refused" in outcomes
    # The store is as it was.
    assert saved.run("note.seek(0), note.read()", template="victim")["results"] == ["(0, 'note')"]
