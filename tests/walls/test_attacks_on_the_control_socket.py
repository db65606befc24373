"""Code in a sandbox holds the guest's end of the control socket. Whatever it writes there harms nobody but itself."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable

import pytest

from ramet import Sandbox
from tests.behaviour.memory import engine_pid
from tests.conftest import Neighbour
from tests.walls.attempts import armed, ending

Check = Callable[[], None]
BROKEN = ("lost", "broken protocol", 137)
KEPT = ("kept", None, 0)
DONE, RESULT, CONFIGURED, READY = 4, 3, 2, 1


def frame(kind: int, header: object, blob: bytes = b"", version: int = 1) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<IBBI", 6 + len(text) + len(blob), version, kind, len(text)) + text + blob


def done(cell: object, **changes: object) -> bytes:
    return frame(DONE, {"id": cell, "exit_code": 0, "error": None, "interrupted": False, **changes})


def rich(cell: int, mimes: object, blob: bytes, what: object = "display") -> bytes:
    return frame(RESULT, {"id": cell, "what": what, "mimes": mimes, "display_id": None}, blob)


_GARBAGE = {
    "nonsense": b"hello, engine\n" * 10,
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "another_version": frame(DONE, {}, version=2),
    "an_unknown_kind": frame(99, {}),
    "a_second_ready": frame(READY, {"pid": 1, "version": "3.12.1", "ipython": "9"}),
    "an_answer_nobody_asked_for": frame(CONFIGURED, {"error": None}),
    "a_huge_length": struct.pack("<IBBI", 0xFFFFFFFF, 1, DONE, 2) + b"{}",
    "a_huge_header": struct.pack("<IBBI", 0x7FFFFFFF, 1, DONE, 0x7FFFFFF0),
    "a_header_longer_than_the_frame": struct.pack("<IBBI", 8, 1, DONE, 100) + b"{}",
    "a_length_of_zero": struct.pack("<IBBI", 0, 1, DONE, 0),
    "a_blob_just_too_long": struct.pack("<IBBI", 6 + 2 + 32 * 1024 * 1024 + 1, 1, RESULT, 2) + b"{}",
    "a_header_that_is_not_json": frame(DONE, b"{id: 1}"),
    "a_header_that_is_no_object": frame(DONE, b"[1, 2]"),
    "a_header_that_is_not_ascii": frame(DONE, b'{"id": "\xff"}'),
    "a_deep_header": frame(DONE, b"[" * 200_000),
    "a_number_with_many_digits": frame(DONE, b'{"id": ' + b"9" * 10_000 + b"}"),
    "a_number_that_is_none": frame(DONE, b'{"id": NaN}'),
    "a_cell_of_the_future": done(999_999),
    "a_negative_cell": done(-1),
    "a_cell_that_is_a_word": done("one"),
    "a_cell_that_is_true": done(True),
    "a_cell_that_is_a_fraction": done(1.5),
    "an_exit_code_out_of_range": done(2, exit_code=256),
    "an_exit_code_that_is_a_word": done(2, exit_code="0"),
    "an_error_that_is_a_list": done(2, error=[1]),
    "an_end_with_a_blob": frame(DONE, {"id": 2, "exit_code": 0, "error": None, "interrupted": False}, b"x"),
    "a_missing_field": frame(DONE, {"id": 2}),
    "forms_that_do_not_add_up": rich(2, [["text/plain", "s", 100]], b"x"),
    "forms_of_negative_length": rich(2, [["text/plain", "s", -1], ["text/plain", "s", 2]], b"x"),
    "a_form_of_unknown_sort": rich(2, [["text/plain", "z", 1]], b"x"),
    "forms_that_are_no_list": rich(2, {"text/plain": 1}, b"x"),
    "too_many_forms": rich(2, [["text/plain", "s", 0]] * 65, b""),
    "a_long_name_of_a_form": rich(2, [["x" * 100_000, "s", 1]], b"x"),
    "a_header_of_more_than_64_kib": frame(DONE, b" " * 65_000 + b'{"id":2,"exit_code":0,"error":null}' + b" " * 1000),
    "a_long_display_id": frame(RESULT, {"id": 2, "what": "display", "mimes": [], "display_id": "x" * 201}),
    "an_unknown_what": rich(2, [["text/plain", "s", 1]], b"x", "nonsense"),
}


@pytest.mark.promise("wall-frames")
@pytest.mark.parametrize("name", _GARBAGE)
def test_garbage_on_the_control_socket_loses_the_repl_and_nothing_else(
    name: str, sandbox: Sandbox, neighbour_still_answers: Check
) -> None:
    sandbox.run_code("import os, time")  # cell 1
    sandbox.files.write("/tmp/garbage", _GARBAGE[name])
    result = sandbox.run_code("os.write(1000, open('/tmp/garbage', 'rb').read()); time.sleep(60)", timeout=30)
    assert ending(result) == BROKEN
    neighbour_still_answers()
    again = sandbox.run_code("6 * 7", timeout=20)
    assert (again.value, again.restarted) == ("42", True)


def test_half_a_frame_keeps_the_cell_waiting_until_its_deadline(
    sandbox: Sandbox, neighbour_still_answers: Check
) -> None:
    """The rest of what the guest says completes the frame, wrongly."""
    sandbox.run_code("import os")
    result = sandbox.run_code("os.write(1000, b'\\x40\\x00\\x00')", timeout=0.3)
    assert result.state == "lost"
    assert result.cause in ("timeout", "broken protocol")
    neighbour_still_answers()
    assert sandbox.run_code("6 * 7", timeout=20).value == "42"


def test_a_forged_end_ends_only_the_cell_that_forged_it(sandbox: Sandbox, neighbour_still_answers: Check) -> None:
    sandbox.run_code("import os")
    forged = done(2, exit_code=7)
    result = sandbox.run_code(f"os.write(1000, {forged!r}); x = 5", timeout=20)
    assert (result.exit_code, result.state) == (7, "kept")
    for number in range(3):  # the true end of cell 2 comes late and belongs to nobody
        assert sandbox.run_code(f"x + {number}", timeout=20).value == str(5 + number)
    neighbour_still_answers()


def test_an_end_of_an_earlier_cell_changes_nothing(sandbox: Sandbox) -> None:
    sandbox.run_code("import os")
    result = sandbox.run_code(f"os.write(1000, {done(1, exit_code=9)!r}); 42", timeout=20)
    assert (result.value, result.exit_code) == ("42", 0)


def test_frames_between_cells_change_nothing(sandbox: Sandbox, neighbour_still_answers: Check) -> None:
    forged = done(1, exit_code=9) * 100
    sandbox.run_code(
        f"import os, threading\ngo = threading.Event()\n"
        f"def late():\n    go.wait()\n    os.write(1000, {forged!r})\n    open('/tmp/written', 'w').close()\n"
        "thread = threading.Thread(target=late); thread.start()"
    )
    sandbox.run_code("go.set()")
    assert sandbox.run_code("thread.join(); 42", timeout=20).value == "42"
    neighbour_still_answers()


def test_closing_the_control_socket_loses_the_repl(sandbox: Sandbox, neighbour_still_answers: Check) -> None:
    result = sandbox.run_code("import os, time; os.close(1000); time.sleep(60)", timeout=30)
    assert ending(result) == BROKEN
    neighbour_still_answers()
    assert sandbox.run_code("6 * 7", timeout=20).value == "42"


@pytest.mark.parametrize("way", ["SHUT_RD", "SHUT_WR", "SHUT_RDWR"])
def test_shutting_the_control_socket_down_harms_nobody_else(
    way: str, sandbox: Sandbox, neighbour_still_answers: Check
) -> None:
    sandbox.run_code(f"import socket; socket.socket(fileno=1000).shutdown(socket.{way})", timeout=5)
    neighbour_still_answers()
    for _ in range(3):
        last = sandbox.run_code("6 * 7", timeout=5)
    assert last.value == "42"


@pytest.mark.deep("load")
def test_reading_from_the_control_socket_takes_only_the_own_cells(
    sandbox: Sandbox, neighbour_still_answers: Check
) -> None:
    code = """
import os, threading
threading.Thread(target=lambda: [os.read(1000, 1 << 20) for _ in range(2)], daemon=True).start()
"""
    sandbox.run_code(code, timeout=5)
    for _ in range(3):  # a cell that the thread took never ends by itself
        stolen = sandbox.run_code("6 * 7", timeout=0.3)
        assert ending(stolen) in (KEPT, ("lost", "timeout", 137))
        neighbour_still_answers()
    sandbox.run_code("import os; os._exit(0)", timeout=0.3)  # the thread ends with its process
    assert sandbox.run_code("6 * 7", timeout=20).value == "42"


def test_replacing_the_control_socket_with_another_loses_the_repl(
    sandbox: Sandbox, neighbour_still_answers: Check
) -> None:
    result = sandbox.run_code(
        "import os, socket, time; a, b = socket.socketpair(); os.dup2(a.fileno(), 1000); time.sleep(60)", timeout=30
    )
    # A sandbox of an ordinary user may not have descriptors with so high a number, so it cannot put one there.
    assert ending(result) == BROKEN or "Bad file descriptor" in result.stderr
    neighbour_still_answers()
    assert sandbox.run_code("6 * 7", timeout=20).value == "42"


def test_descriptors_sent_along_are_not_taken(sandbox: Sandbox, neighbour_still_answers: Check) -> None:
    """The engine leaves no room for them; the kernel closes what does not fit."""
    sandbox.run_code("import os, socket, array")
    code = f"""
control = socket.socket(fileno=os.dup(1000))
read, write = os.pipe()
for _ in range(10):
    control.sendmsg([{done(1)!r}], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [write] * 50))])
os.close(write)
os.read(read, 1)
"""
    assert sandbox.run_code(code, timeout=20).value == "b''"  # every copy is closed
    neighbour_still_answers()


@pytest.mark.deep("load")
def test_a_flood_of_frames_delays_nobody_for_long(sandbox: Sandbox, neighbour: Neighbour) -> None:
    sandbox.run_code("import os, threading")
    old = done(1)
    code = f"""
stop = threading.Event()
def flood():
    while not stop.is_set():
        os.write(1000, {old!r} * 500)
for _ in range(4):
    threading.Thread(target=flood).start()
"""
    sandbox.run_code(code, timeout=20)
    for _ in range(3):
        neighbour.assert_unharmed()
    sandbox.run_code("stop.set()", timeout=10)
    neighbour.assert_unharmed()


def test_rich_results_without_end_are_bounded(sandbox: Sandbox, neighbour_still_answers: Check) -> None:
    sandbox.run_code("import os")
    big = rich(2, [["text/plain", "s", 1 << 20]], b"x" * (1 << 20))
    sandbox.files.write("/tmp/frame", big)
    code = """
data = open('/tmp/frame', 'rb').read()
for _ in range(200):
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1000, rest):]
"""
    result = sandbox.run_code(code, timeout=30)
    assert ending(result) == KEPT
    assert len(result.results) <= 64
    assert result.truncated is not None
    neighbour_still_answers()


@pytest.mark.deep("load")
def test_a_cell_that_never_reads_is_ended_at_its_deadline(sandbox: Sandbox, neighbour_still_answers: Check) -> None:
    """A large cell waits in the socket; the engine waits for the guest without holding anybody up."""
    armed(sandbox)
    sandbox.run_code(
        "threading.Thread(target=lambda: (time.sleep(0), os.kill(os.getpid(), signal.SIGSTOP))).start()", timeout=1
    )
    result = sandbox.run_code("#" + "x" * (8 << 20), timeout=0.5)
    assert result.state in ("lost", "kept")
    neighbour_still_answers()
    assert sandbox.run_code("6 * 7", timeout=20).value == "42"


@pytest.mark.parametrize("stream", [1, 2, 1001, 1002])
def test_closing_an_output_harms_nobody(stream: int, sandbox: Sandbox, neighbour_still_answers: Check) -> None:
    sandbox.run_code(f"import os; os.close({stream})", timeout=10)
    neighbour_still_answers()
    assert sandbox.run_code("6 * 7", timeout=10).value == "42"


def test_stealing_the_own_output_harms_nobody(sandbox: Sandbox, neighbour_still_answers: Check) -> None:
    """A pipe can be opened again through /proc, for reading too."""
    code = """
import os, threading
source = os.open('/proc/self/fd/1', os.O_RDONLY)
stop = False
def steal():
    while not stop: os.read(source, 100)
threading.Thread(target=steal, daemon=True).start()
for _ in range(2000): print('x' * 50)
"""
    sandbox.run_code(code, timeout=10)
    neighbour_still_answers()
    assert sandbox.run_code("stop = True; print('last'); 42", timeout=10).value == "42"


def test_a_pipe_made_small_or_set_to_not_wait_harms_nobody(sandbox: Sandbox, neighbour_still_answers: Check) -> None:
    code = """
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 4096); os.set_blocking(1, False); os.set_blocking(1000, False)
print('x' * 3000)
"""
    sandbox.run_code(code, timeout=10)
    neighbour_still_answers()
    # Unless it ended by itself, because its control socket does not wait any more.
    sandbox.run_code("import os; os._exit(0)", timeout=10)
    assert sandbox.run_code("6 * 7", timeout=10).value == "42"


_HEAVY = json.dumps(
    {
        "id": 2,
        "what": "display",
        "display_id": None,
        # One letter beyond 16 bits makes Python keep each of the others in four bytes.
        "mimes": [["x" * 240 + "\N{GRINNING FACE}" + str(number), "s", 0] for number in range(64)],
    }
).encode()


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.deep("attacks")
def test_headers_of_frames_cost_the_engine_a_bounded_amount_of_memory(
    sandbox: Sandbox, neighbour_still_answers: Check
) -> None:
    sandbox.run_code("import os")
    sandbox.files.write("/tmp/frame", frame(RESULT, _HEAVY) * 50)
    before = resident_bytes(engine_pid())
    code = """
data = open('/tmp/frame', 'rb').read()
for _ in range(11):
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1000, rest):]
"""
    result = sandbox.run_code(code, timeout=60)
    assert ending(result) == KEPT
    assert result.truncated is not None
    assert result.truncated.results_dropped > 0
    assert resident_bytes(engine_pid()) - before < 200 << 20
    neighbour_still_answers()


@pytest.mark.deep("load")
@pytest.mark.parametrize(
    "header",
    [b'{"id":1,"exit_code":0,"error":null,"interrupted":false,"more":[' + b"[]," * 21_000 + b"0]}", done(1)[10:]],
    ids=["long to decode", "short and many"],
)
def test_a_flood_of_headers_leaves_the_engine_time_for_others(
    header: bytes, sandbox: Sandbox, neighbour_still_answers: Check
) -> None:
    """The engine reads a mebibyte of headers a second, and has nearly all of its time left."""
    sandbox.run_code("import os, threading")
    sandbox.files.write("/tmp/frame", frame(DONE, header))
    code = """
data = open('/tmp/frame', 'rb').read()
data *= 1 + 65536 // len(data)
stop = threading.Event()
def flood():
    while not stop.is_set():
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(1000, rest):]
threading.Thread(target=flood, daemon=True).start()
"""
    sandbox.run_code(code, timeout=20)
    engine = engine_pid()
    began, spent = time.monotonic(), processor_seconds(engine)
    while time.monotonic() < began + 2:
        neighbour_still_answers()
        time.sleep(0.02)
    # A share of the processor, not a time: it was all of it before.
    assert processor_seconds(engine) - spent < 0.6 * (time.monotonic() - began)
    # What becomes of cells of the sandbox itself, whose answers are lost among forged ones, is its own business.
    sandbox.close()
    neighbour_still_answers()


@pytest.mark.deep("load")
def test_long_errors_and_many_displays_of_honest_code_are_results(sandbox: Sandbox) -> None:
    smile = "\N{GRINNING FACE}"
    result = sandbox.run_code(f"raise type('E' * 5000, (Exception,), {{}})('{smile}' * 2_500_000)", timeout=60)
    assert (result.state, result.exit_code) == ("kept", 1)
    assert result.error is not None
    assert result.error.message.startswith(smile)
    result = sandbox.run_code(
        "from IPython.display import display\n"
        f"h = display('0', display_id={smile * 300!r})\n"
        "for n in range(3000): h.update(str(n))\n"
        f"display({{'{smile}/x' * 10: 'a', 'text/plain': 'b'}}, raw=True)",
        timeout=60,
    )
    assert result.ok, result
    assert [each.text for each in result.results] == ["'2999'", "b"]
