"""Streams as the guest handles them; what a user sees of them is in tests/behaviour/test_output.py."""

from __future__ import annotations

from tests.guest.guest_driver import Guest


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


def test_text_buffered_in_a_stream_of_the_users_is_flushed(guest: Guest) -> None:
    outcome = guest.run("import sys, io\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nprint('kept')")
    assert outcome.stdout == "kept\n"


def test_undecodable_file_names_are_printed_as_their_bytes(guest: Guest) -> None:
    guest.start("print('\\udc80\\udcff')\nprint('\\ud800')")
    assert guest.read_stdout(3)[:3] == b"\x80\xff\n"
    assert guest.finish().exit_code == 0


def test_control_descriptors_are_not_inherited(guest: Guest) -> None:
    inherited = set(guest.run("!ls /proc/self/fd").stdout.split())
    assert {"0", "1", "2"} <= inherited
    assert not {"1000", "1001", "1002"} & inherited


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
