"""What every sandbox is right after its thaw, seen from inside and, as root, from the host."""

from __future__ import annotations

import os
import time
import venv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ramet import Sandbox, Template
from ramet.transport import embedded
from tests.walls.attempts import armed, value
from tests.walls.family import below, engine_of, stat_fields

WAIT_SECONDS = 30

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root sees into the engine's processes")


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Sandbox, Sandbox]]:
    """Two sandboxes of one template that has threads."""
    with Sandbox("python-datasci") as first, Sandbox("python-datasci") as second:
        yield armed(first), armed(second)


def test_two_sandboxes_have_different_process_ids(pair: tuple[Sandbox, Sandbox]) -> None:
    """OpenSSL makes its generator anew when it sees another process id."""
    assert value(pair[0], "os.getpid()") != value(pair[1], "os.getpid()")


def test_threads_keep_their_ids_and_names(pair: tuple[Sandbox, Sandbox]) -> None:
    code = """
others = [int(name) for name in os.listdir('/proc/self/task') if int(name) != os.getpid()]
sorted((number, reading(f'/proc/self/task/{number}/comm')) for number in others)
"""
    first, second = (value(sandbox, code) for sandbox in pair)
    assert first == second
    assert first


def test_the_process_id_is_none_of_the_kept_thread_ids(pair: tuple[Sandbox, Sandbox]) -> None:
    threads = value(pair[0], "sorted(map(int, os.listdir('/proc/self/task')))")
    assert len(set(threads)) == len(threads)
    assert value(pair[0], "os.getpid()") in threads


def test_threads_of_libraries_work(pair: tuple[Sandbox, Sandbox]) -> None:
    code = "import numpy; a = numpy.ones((400, 400)); float((a @ a)[0, 0])"
    assert value(pair[0], code, timeout=20) == 400.0


@pytest.mark.parametrize(
    "code",
    [
        "import random; [random.random() for _ in range(4)]",
        "import random; random.getrandbits(128)",
        "import ssl; ssl.RAND_bytes(16)",
        "import secrets; secrets.token_hex()",
        "import uuid; str(uuid.uuid4())",
        "os.urandom(16)",
        "import numpy; numpy.random.rand(4).tolist()",
        "import numpy; numpy.random.default_rng().random(4).tolist()",
        "import tempfile; tempfile.mkdtemp()",
    ],
)
def test_two_sandboxes_of_one_template_draw_different_random_numbers(pair: tuple[Sandbox, Sandbox], code: str) -> None:
    assert value(pair[0], code) != value(pair[1], code)


def test_a_revived_repl_draws_other_random_numbers_than_the_one_before(attacker: Sandbox) -> None:
    draw = "import random, ssl; (random.random(), ssl.RAND_bytes(8))"
    before = value(attacker, draw)
    attacker.run_code("os._exit(0)")
    assert value(attacker, draw) != before


def test_folder_mask_and_niceness_are_as_promised(walled: Sandbox) -> None:
    assert value(walled, "os.getcwd()") == "/root"
    assert value(walled, "os.umask(0o22)") == 0o22
    assert value(walled, "os.getpriority(os.PRIO_PROCESS, 0)") >= 5


def test_no_signal_is_blocked(walled: Sandbox) -> None:
    assert value(walled, "sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))") == []


def test_libraries_are_told_how_many_processors_there_are(walled: Sandbox) -> None:
    for name in (
        "OPENBLAS_NUM_THREADS",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "POLARS_MAX_THREADS",
        "RAYON_NUM_THREADS",
    ):
        assert value(walled, f"int(os.environ[{name!r}])") >= 1


# From the host


@pytest.fixture
def family(walled: Sandbox) -> list[int]:
    """Every process of the engine but the launcher, which has the owner's rights."""
    launcher = embedded.default_engine().pid
    return [pid for pid, _ in below(launcher) if pid != launcher]


def status(pid: int) -> dict[str, str]:
    try:
        return dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
    except OSError:
        return {}


def stopped_with_descriptors(pids: list[int]) -> dict[int, list[str]]:
    found = {}
    for pid in pids:
        if stat_fields(pid)[:1] == ["t"]:
            with suppress(FileNotFoundError):
                found[pid] = os.listdir(f"/proc/{pid}/fd")
    return found


@needs_root
def test_no_process_of_the_engine_is_root_of_the_host(family: list[int]) -> None:
    uids = {tuple(seen["Uid"].split()) for pid in family if (seen := status(pid))}
    assert "0" not in {number for uid in uids for number in uid}


@needs_root
def test_the_engine_holds_no_power_over_the_host(family: list[int]) -> None:
    """Its capabilities are of its own user namespace."""
    engine = engine_of(embedded.default_engine().pid)
    for name in ("user", "pid", "mnt"):
        assert os.readlink(f"/proc/{engine}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")


@needs_root
def test_the_engine_sees_no_home_folder_of_the_host(family: list[int], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    engine = engine_of(embedded.default_engine().pid)
    assert not Path(f"/proc/{engine}/root{tmp_path}/secret").exists()
    assert not Path(f"/proc/{engine}/root/home").exists()


@needs_root
def test_shadows_and_templates_hold_no_descriptor(family: list[int]) -> None:
    assert len(stopped_with_descriptors(family)) >= 2
    # A REPL that is frozen or thawed just now, for a point of its history or for the pool, is stopped for a moment with
    # its descriptors open. Shadows and templates are stopped for good.
    end = time.monotonic() + WAIT_SECONDS
    while held := {pid: names for pid, names in stopped_with_descriptors(family).items() if names}:
        assert time.monotonic() < end, f"stopped processes with open descriptors: {held}"
        time.sleep(0.02)


@needs_root
def test_nothing_of_the_engine_shares_a_session_or_group_with_the_owner(family: list[int]) -> None:
    for pid in family:
        fields = stat_fields(pid)
        if fields:
            assert int(fields[2]) != os.getpgid(0)
            assert int(fields[3]) != os.getsid(0)


@needs_root
def test_holder_and_inits_carry_no_environment(family: list[int]) -> None:
    helpers = [
        pid
        for pid in family
        if stat_fields(pid) and Path(f"/proc/{pid}/comm").read_text().strip() in ("ramet-pod", "exe")
    ]
    assert helpers
    assert [Path(f"/proc/{pid}/environ").read_bytes() for pid in helpers] == [b""] * len(helpers)


def test_a_pipe_in_the_place_of_a_file_of_the_template_does_not_hold_the_thaw(tmp_path: Path) -> None:
    """The pod of a REPL that died is as user code left it; one thread thaws for all sandboxes of the engine."""
    venv.create(tmp_path / "environment", symlinks=True)
    folder = next((tmp_path / "environment/lib").glob("python*/site-packages"))
    (folder / "opening.py").write_text("kept = open(__file__)\n")
    template = Template("opening", python=tmp_path / "environment/bin/python", preload=["opening"])
    with Sandbox(template, recover="fresh") as sandbox:
        code = "import os, opening; os.unlink(opening.kept.name); os.mkfifo(opening.kept.name); os._exit(3)"
        assert sandbox.run_code(code).exit_code == 3
        result = sandbox.run_code(
            "import os, opening; opening.kept.fileno() > 2 and os.get_blocking(opening.kept.fileno())"
        )
        assert (result.value, result.restarted) == ("True", True)
