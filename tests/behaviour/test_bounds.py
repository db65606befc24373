"""Output is bounded: the first and the last half is kept, the whole is in a file of the sandbox."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from ramet import Sandbox
from tests.behaviour.faces import AnySandbox
from tests.behaviour.memory import Peaks
from tests.behaviour.waiting import AFTER_GO, go, wait_until

MIB = 1024 * 1024
KEPT = 10 * MIB


def numbered_lines(count: int) -> bytes:
    return b"".join(b"%09d\n" % number for number in range(count))


@pytest.mark.promise("repl-long-output")
def test_a_long_output_keeps_its_first_and_last_half_and_is_whole_in_a_file(any_sandbox: AnySandbox) -> None:
    count = 3 * 1024 * 1024  # lines of 10 bytes: 30 MiB
    whole = numbered_lines(count)
    result = any_sandbox.run_code(
        f"import sys\nfor n in range(0, {count}, 4096):\n"
        f"    sys.stdout.write(''.join('%09d\\n' % m for m in range(n, n + 4096)))",
        timeout=80,
    )
    assert result.ok
    assert result.truncated is not None
    assert (result.truncated.stdout_bytes, result.truncated.stderr_bytes) == (len(whole), 0)
    assert result.truncated.stderr_path is None
    assert result.stdout.startswith("000000000\n000000001\n")
    assert result.stdout.endswith("003145726\n003145727\n")
    head, _, tail = result.stdout.partition("[...")
    assert KEPT // 2 - 100 < len(head) < KEPT // 2 + 100
    assert KEPT // 2 - 100 < len(tail) < KEPT // 2 + 100
    path = result.truncated.stdout_path
    assert path is not None
    assert hashlib.sha256(any_sandbox.download(path)).digest() == hashlib.sha256(whole).digest()
    # The sandbox itself can go on with it.
    assert any_sandbox.run_code(f"open({path!r}, 'rb').read(20)").value == "b'000000000\\n000000001\\n'"


def test_each_stream_has_its_own_bound_and_file(sandbox: Sandbox) -> None:
    result = sandbox.run_code(
        "import sys\nfor _ in range(12):\n    sys.stdout.write('o' * 1048576)\n    sys.stderr.write('e' * 1048576)"
    )
    assert result.truncated is not None
    assert (result.truncated.stdout_bytes, result.truncated.stderr_bytes) == (12 * MIB, 12 * MIB)
    assert result.truncated.stdout_path is not None
    assert result.truncated.stderr_path is not None
    assert sandbox.download(result.truncated.stdout_path) == b"o" * (12 * MIB)
    assert sandbox.download(result.truncated.stderr_path) == b"e" * (12 * MIB)


def test_output_of_exactly_the_bound_is_whole_and_one_byte_more_is_not(sandbox: Sandbox) -> None:
    code = "import os\ndata = memoryview(b'x' * {})\nwhile data: data = data[os.write(1, data):]"
    exact = sandbox.run_code(code.format(KEPT))
    assert exact.truncated is None
    assert len(exact.stdout) == KEPT
    more = sandbox.run_code(code.format(KEPT + 1))
    assert more.truncated is not None
    assert more.truncated.stdout_bytes == KEPT + 1


def test_the_next_long_output_gets_a_file_of_its_own(sandbox: Sandbox) -> None:
    paths = set()
    for letter in "ab":
        truncated = sandbox.run_code(f"print('{letter}' * {KEPT + 1000})").truncated
        assert truncated is not None
        assert truncated.stdout_path is not None
        assert sandbox.files.read(truncated.stdout_path)[:1] == letter.encode()
        paths.add(truncated.stdout_path)
    assert len(paths) == 2


@pytest.mark.deep("load")
def test_printing_a_gigabyte_neither_blocks_nor_grows_client_and_engine(sandbox: Sandbox) -> None:
    sandbox.run_code("1")
    peaks = Peaks()
    result = sandbox.run_code(
        "import os\npiece = b'x' * 1048575 + b'\\n'\nfor _ in range(1024):\n"
        "    data = memoryview(piece)\n    while data: data = data[os.write(1, data):]\nprint('the end')"
    )
    assert result.ok
    assert result.truncated is not None
    assert result.truncated.stdout_bytes == 1024 * MIB + 8
    assert result.stdout.endswith("the end\n")
    # What is kept exists a few times on its way (kept, joined, sent, decoded); a gigabyte would show.
    growth = peaks.growth_bytes()
    assert max(growth.values()) < 150 * MIB, growth
    assert result.truncated.stdout_path is None  # a file of so much would take memory that no limit counts


def test_output_that_does_not_fit_on_the_sandboxs_disk_is_counted_and_has_no_file(
    make_sandbox: Callable[..., Sandbox],
) -> None:
    small = make_sandbox(disk_mib=16)
    result = small.run_code(f"import sys\nfor _ in range(40): sys.stdout.write('x' * {MIB})\nprint('the end')")
    assert result.ok
    assert result.truncated is not None
    assert (result.truncated.stdout_bytes, result.truncated.stdout_path) == (40 * MIB + 8, None)
    assert result.stdout.endswith("the end\n")
    # Nothing of the attempt is left to fill the disk.
    assert small.run_code("open('/root/f', 'wb').write(b'y' * 8_000_000)").ok


def test_a_long_output_of_a_cell_that_dies_is_kept_too(sandbox: Sandbox) -> None:
    result = sandbox.run_code(f"import os, sys\nsys.stdout.write('x' * {KEPT + 5})\nos._exit(3)")
    assert (result.state, result.exit_code) == ("lost", 3)
    assert result.truncated is not None
    assert result.truncated.stdout_path is not None
    assert len(sandbox.download(result.truncated.stdout_path)) == KEPT + 5


def test_output_between_cells_is_bounded_and_keeps_its_end(sandbox: Sandbox) -> None:
    sandbox.run_code(AFTER_GO + "after_go(lambda: print('x' * 5_000_000 + 'end', flush=True))")
    go(sandbox)
    wait_until(lambda: sandbox.files.exists("/root/acted"), "the thread has printed")
    result = sandbox.run_code("print('mine')")
    assert result.stdout == "mine\n"
    assert result.background.endswith("end\n")
    assert len(result.background) <= MIB
