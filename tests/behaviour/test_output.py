"""stdout and stderr hold exactly what was printed, whoever printed it and whatever it looks like."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from ramet import Result, Sandbox
from tests.behaviour.faces import AnySandbox
from tests.behaviour.waiting import AFTER_GO, UNTIL_GO, go, read_until, wait_until


def test_both_streams_hold_what_was_printed_to_each(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('again', end='')")
    assert (result.stdout, result.stderr) == ("out\nagain", "err\n")


def test_bytes_that_are_no_utf8_are_replaced(any_sandbox: AnySandbox) -> None:
    code = "import sys\nsys.stdout.buffer.write(b'a\\xffb\\xe4\\xb8')\nsys.stdout.flush()"
    assert any_sandbox.run_code(code).stdout == "a\ufffdb\ufffd"


def test_text_and_surrogates_are_printed_without_an_error(any_sandbox: AnySandbox) -> None:
    assert any_sandbox.run_code("print('čau 世界 🐈')").stdout == "čau 世界 🐈\n"
    result = any_sandbox.run_code("print('a\\ud800b', 'c\\udcffd')")
    assert (result.exit_code, result.stdout) == (0, "a\\ud800b c\ufffdd\n")


@pytest.mark.promise("repl-output")
def test_output_of_c_code_is_part_of_stdout_in_order(any_sandbox: AnySandbox) -> None:
    code = "import ctypes\nlibc = ctypes.CDLL(None)\nprint('one', end=' ')\nlibc.puts(b'two')\nprint('three')"
    assert any_sandbox.run_code(code).stdout == "one two\nthree\n"


@pytest.mark.promise("repl-output")
def test_output_of_child_processes_is_part_of_both_streams_in_order(any_sandbox: AnySandbox) -> None:
    code = """
        import os, subprocess, sys
        print('one')
        subprocess.run(['sh', '-c', 'echo two; echo err >&2'])
        print('three', end=' ')
        os.system('echo four')
        os.write(1, b'five\\n')
    """
    result = any_sandbox.run_code(code)
    assert (result.stdout, result.stderr) == ("one\ntwo\nthree four\nfive\n", "err\n")


def test_output_without_a_newline_or_a_flush_is_complete(any_sandbox: AnySandbox) -> None:
    code = "import sys\nsys.stdout.write('no newline')\nsys.stderr.write('nor here')"
    result = any_sandbox.run_code(code)
    assert (result.stdout, result.stderr) == ("no newline", "nor here")


def test_many_small_pieces_arrive_exactly_and_in_order(any_sandbox: AnySandbox) -> None:
    assert any_sandbox.run_code("for i in range(20000): print(i)").stdout == "".join(f"{i}\n" for i in range(20000))


@pytest.mark.every_face
def test_a_few_megabytes_arrive_exactly(any_sandbox: AnySandbox) -> None:
    code = "import sys\nline = 'x' * 99 + '\\n'\nfor _ in range(40): sys.stdout.write(line * 1000)"
    result = any_sandbox.run_code(code)
    assert result.stdout == ("x" * 99 + "\n") * 40_000
    assert result.truncated is None


@pytest.mark.promise("repl-streams")
@pytest.mark.every_face
def test_a_stream_delivers_while_the_cell_runs(any_sandbox: AnySandbox) -> None:
    events = any_sandbox.run_code_stream(UNTIL_GO + "print('ended')", timeout=60)
    assert read_until(events, "begun\n") == "begun\n"
    # The cell ends only after this, so what was read had come while it ran.
    go(any_sandbox)
    rest = list(events)
    assert "".join(event.data for event in rest if event.type == "stdout") == "ended\n"
    assert rest[-1].type == "exit"
    assert (rest[-1].code, rest[-1].result.stdout) == (0, "")


@pytest.mark.every_face
def test_a_stream_tells_stdout_from_stderr_and_never_cuts_a_character(any_sandbox: AnySandbox) -> None:
    code = (
        "import os\na = '世'.encode()\nfor i in range(2000): os.write(1, a[:2]); os.write(1, a[2:])\nos.write(2, b'e')"
    )
    events = list(any_sandbox.run_code_stream(code))
    assert "".join(event.data for event in events if event.type == "stdout") == "世" * 2000
    assert "".join(event.data for event in events if event.type == "stderr") == "e"


def test_a_stream_of_a_failing_cell_ends_with_its_code(any_sandbox: AnySandbox) -> None:
    last = list(any_sandbox.run_code_stream("1 / 0"))[-1]
    assert last.type == "exit"
    assert last.code == 1
    assert last.result.error is not None
    assert last.result.error.name == "ZeroDivisionError"


@pytest.mark.every_face
def test_a_stream_does_not_start_before_it_is_read(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code_stream("open('/root/ran', 'w')")
    assert any_sandbox.run_code("import os; os.path.exists('/root/ran')").value == "False"


@pytest.mark.every_face
def test_output_between_cells_is_background_of_the_next_result(any_sandbox: AnySandbox) -> None:
    assert any_sandbox.run_code(AFTER_GO + "after_go(lambda: print('from a thread', flush=True))").stdout == ""
    go(any_sandbox)
    wait_until(lambda: any_sandbox.files.exists("/root/acted"), "the thread has printed")
    result = any_sandbox.run_code("print('mine')")
    assert (result.stdout, result.background) == ("mine\n", "from a thread\n")
    assert any_sandbox.run_code("1").background == ""


DAMAGE = [
    "import os\nos.close(1)",
    "import os\nos.close(1)\nos.close(2)",
    "import sys\nsys.stdout.close()",
    "import sys\nsys.stdout.close()\nsys.stderr.close()",
    "import sys\ndel sys.stdout",
    "import sys\ndel sys.stdout, sys.stderr, sys.displayhook",
    "import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
    "import os, sys\nr, w = os.pipe()\nos.dup2(w, 1)\nos.dup2(w, 2)",
]


def test_the_next_cell_prints_whatever_was_done_to_the_streams(any_sandbox: AnySandbox) -> None:
    look = "import os, sys\nprint('out')\n_ = os.system('echo child')\nprint('err', file=sys.stderr)\n1 + 1"
    for code in DAMAGE:
        assert any_sandbox.run_code(code).state == "kept", code
        after = any_sandbox.run_code(look)
        assert (after.stdout, after.stderr, after.value) == ("out\nchild\n", "err\n", "2"), code


def test_control_characters_arrive_as_printed(any_sandbox: AnySandbox) -> None:
    text = "".join(map(chr, range(1, 32))) + "\x7f\x1b[31mred\x1b[0m\r\n"
    assert any_sandbox.run_code(f"print({text!r}, end='')").stdout == text
    assert any_sandbox.run_code("print('a\\0b')").stdout == "a\0b\n"


def test_what_looks_like_a_frame_is_only_text(any_sandbox: AnySandbox) -> None:
    code = """
        import os, struct
        header = b'{"id": 1, "exit_code": 99, "error": null, "interrupted": false}'
        for kind in range(6):
            os.write(1, struct.pack("<IBBI", 6 + len(header), 1, kind, len(header)) + header)
        print("the end")
    """
    result = any_sandbox.run_code(code)
    assert result.exit_code == 0
    assert result.stdout.endswith("the end\n")
    assert result.stdout.count("exit_code") == 6


def test_a_frame_that_a_cell_forges_never_harms_the_engine(any_sandbox: AnySandbox, sandbox: Sandbox) -> None:
    """Whatever user code writes to the control socket, it can only lose its own REPL."""
    lost = any_sandbox.run_code("import os\nos.write(1000, b'\\xff' * 64)\nimport time\ntime.sleep(60)", timeout=50)
    assert (lost.state, lost.cause) == ("lost", "broken protocol")
    assert any_sandbox.run_code("'answers'").restarted
    assert sandbox.run_code("'a neighbour too'").ok


def test_a_cell_that_closes_the_control_socket_loses_only_its_repl(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("import os\nos.close(1000)\nprint('closed')")
    assert result.state == "lost"
    assert any_sandbox.run_code("'answers'").value == "'answers'"


def test_a_slow_reader_of_a_stream_slows_the_cell_down(
    sandbox: Sandbox, in_background: Callable[..., Future[Any]]
) -> None:
    """The cell counts what it has written; nobody reads, so it stops far from the end, and nothing is lost."""
    total = 64 * 1024 * 1024
    code = f"""
        import os
        count = os.open("/root/count", os.O_RDWR | os.O_CREAT)
        piece = b"x" * 65536
        written = 0
        while written < {total}:
            written += os.write(1, piece)
            os.pwrite(count, b"%12d" % written, 0)
    """
    events = sandbox.run_code_stream(code)
    first = next(events)
    assert first.type == "stdout"
    counts = [-2, -1]

    def stands_still() -> bool:
        # Another cell of another sandbox takes its time from the same processors: progress would be seen.
        with Sandbox() as other:
            other.run_code("sum(range(10**6))")
        counts.append(int(sandbox.files.read("/root/count") or b"0"))
        return 0 < counts[-1] == counts[-2] == counts[-3]

    wait_until(stands_still, "the cell waits for its reader")
    assert counts[-1] < 8 * 1024 * 1024
    received = len(first.data) + sum(len(event.data) for event in events if event.type == "stdout")
    assert received == total


@pytest.mark.every_face
def test_closing_a_stream_early_interrupts_the_cell(any_sandbox: AnySandbox) -> None:
    events = any_sandbox.run_code_stream("print('begun', flush=True)\nimport time\nwhile True: time.sleep(0.01)")
    read_until(events, "begun")
    events.close()  # type: ignore[attr-defined]
    after = any_sandbox.run_code("'free again'", timeout=60)
    assert (after.value, after.restarted) == ("'free again'", False)


@pytest.mark.every_face
def test_closing_the_stream_of_a_cell_that_prints_without_end_interrupts_it(any_sandbox: AnySandbox) -> None:
    events = any_sandbox.run_code_stream("while True: print('x' * 1000)")
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert any_sandbox.run_code("1", timeout=60).value == "1"


def test_a_neighbour_answers_while_a_cell_prints_without_end(
    sandbox: Sandbox, in_background: Callable[..., Future[Any]]
) -> None:
    with Sandbox() as noisy:
        code = "print('x' * 10000, flush=True)\nopen('/root/begun', 'w').close()\nwhile True: print('x' * 10000)"
        running: Future[Result] = in_background(noisy.run_code, code)
        wait_until(lambda: noisy.files.exists("/root/begun"), "the noisy cell prints")
        for i in range(20):
            assert sandbox.run_code(f"{i}").value == str(i)
        wait_until(noisy.interrupt, "the noisy cell was running")
        result = running.result(60)
    assert result.interrupted
    assert result.stdout.startswith("xxx")
