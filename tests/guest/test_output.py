from __future__ import annotations

import os

import pytest

from tests.guest.guest_driver import Guest


def test_output_of_python_c_and_children_arrives_in_order(guest: Guest) -> None:
    outcome = guest.run(
        "import ctypes, os, subprocess, sys\n"
        "print('python', end=' ')\n"
        "ctypes.CDLL(None).puts(b'c')\n"
        "os.system('echo child')\n"
        "sys.stdout.write('again\\n')\n"
        "os.write(1, b'raw\\n');"
    )
    assert outcome.stdout == "python c\nchild\nagain\nraw\n"


def test_a_large_print_arrives_whole_under_a_storm_of_signals(guest: Guest) -> None:
    outcome = guest.run(
        "import signal\n"
        "signal.signal(signal.SIGALRM, lambda *a: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)\n"
        "print('x' * 20_000_000)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)"
    )
    assert len(outcome.stdout) == 20_000_001
    assert outcome.stderr == ""


def test_output_is_not_lost_when_the_pipe_does_not_block(guest: Guest) -> None:
    outcome = guest.run("import os\nos.set_blocking(1, False)\nprint('x' * 3_000_000)\nos.set_blocking(1, True)")
    assert len(outcome.stdout) == 3_000_001


def test_output_streams_while_the_cell_runs(guest: Guest) -> None:
    read_end, write_end = os.pipe()
    fifo = f"/proc/{os.getpid()}/fd/{read_end}"
    try:
        guest.start(f"import os\nprint('first', end='')\nos.read(os.open({fifo!r}, os.O_RDONLY), 1)\nprint('second')")
        guest.wait_for_stdout("first")
        os.write(write_end, b"x")
        assert guest.finish().stdout == "firstsecond\n"
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize(
    "damage",
    [
        "import os; os.close(1)",
        "import os; os.close(1); os.close(2)",
        "import os; os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "import sys, io; sys.stdout = io.StringIO()",
        "import sys; sys.stdout = None; sys.stderr = None",
        "import sys; sys.stdout.close()",
        "import sys, io; sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8'); print('wrapped')",
        "import sys, io; sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='ascii')",
        "import sys; del sys.stdout",
        "import sys\nclass Bad:\n    def write(self, t): raise RuntimeError\n    flush = write\n"
        "sys.stdout = sys.stderr = Bad()",
    ],
)
def test_damage_to_the_streams_does_not_outlast_its_cell(guest: Guest, damage: str) -> None:
    guest.run(damage)
    outcome = guest.run("import os, sys\nprint('out')\nos.system('echo child')\nprint('err', file=sys.stderr)")
    assert (outcome.stdout, outcome.stderr) == ("out\nchild\n", "err\n")


def test_text_buffered_in_a_stream_of_the_users_is_flushed(guest: Guest) -> None:
    outcome = guest.run("import sys, io\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nprint('kept')")
    assert outcome.stdout == "kept\n"


def test_undecodable_file_names_are_printed_as_their_bytes(guest: Guest) -> None:
    guest.start("print('\\udc80\\udcff')\nprint('\\ud800')")
    assert guest.read_stdout(3)[:3] == b"\x80\xff\n"
    assert guest.finish().exit_code == 0


def test_something_that_looks_like_a_frame_is_only_output(guest: Guest) -> None:
    outcome = guest.run("import sys\nsys.stdout.buffer.write(b'\\x10\\0\\0\\0\\1\\4\\2\\0\\0\\0{}\\x1b[0m');")
    assert outcome.exit_code == 0
    assert outcome.stdout.endswith("{}\x1b[0m")


def test_control_descriptors_are_not_inherited(guest: Guest) -> None:
    inherited = set(guest.run("!ls /proc/self/fd").stdout.split())
    assert {"0", "1", "2"} <= inherited
    assert not {"1000", "1001", "1002"} & inherited


def test_exceptions_in_threads_are_shown(guest: Guest) -> None:
    outcome = guest.run(
        "import threading\ndef f(): 1/0\nt = threading.Thread(target=f, name='worker')\nt.start(); t.join()"
    )
    assert outcome.stderr.startswith("Exception in thread worker:\nTraceback")
    assert outcome.exit_code == 0


def test_threads_may_display(guest: Guest) -> None:
    outcome = guest.run("import threading\nt = threading.Thread(target=display, args=({1},))\nt.start(); t.join()")
    assert [shown.text for shown in outcome.results] == ["{1}"]


def test_output_between_cells_does_not_disturb_the_next(guest: Guest) -> None:
    guest.run(
        "import threading\ngo = threading.Event()\n"
        "def f():\n    go.wait()\n    print('late')\n    display(1)\n"
        "t = threading.Thread(target=f)\nt.start()\nthreading.Timer(0.01, go.set).start()"
    )
    guest.wait_for_stdout("late")
    outcome = guest.run("t.join()\nprint('next')")
    assert outcome.stdout.endswith("next\n")
    assert outcome.exit_code == 0


def test_print_is_one_write_so_that_a_reader_gets_whole_lines(guest: Guest) -> None:
    """An `strace` in a sentence: the pipe is put into packet mode, where each read gives exactly one write."""
    printed = guest.run(
        "import os, fcntl\n"
        "read_end, write_end = os.pipe2(os.O_DIRECT)\n"
        "kept = os.dup(1)\n"
        "os.dup2(write_end, 1)\n"
        "print('a', 1, None, sep='-')\n"
        "print('b', end='')\n"
        "os.dup2(kept, 1)\n"
        "print([os.read(read_end, 100) for _ in range(2)])\n"
    )
    assert printed.stdout == "[b'a-1-None\\n', b'b']\n"


def test_print_refuses_what_the_built_in_refuses(guest: Guest) -> None:
    refused = guest.run("print('a', sep=1)")
    assert refused.exit_code == 1
    assert "TypeError: sep must be None or a string, not int" in refused.stderr
