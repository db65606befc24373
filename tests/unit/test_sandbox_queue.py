"""The engine's sandbox with a scripted guest: order, interrupts, loss and revival, output."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from ramet.engine.cells.cell import Cell
from ramet.engine.cells.sandbox import Sandbox
from ramet.engine.output.collecting import Collecting
from ramet.errors import ExecutionCancelled, InvalidArgument, LimitReached, SandboxClosed
from ramet.protocol import guest
from ramet.protocol.calls import Outcome
from ramet.protocol.frames import encode
from ramet.protocol.values.specs import SandboxSpec
from tests.unit.scripted import ScriptedBody, ScriptedDeath
from tests.unit.scripted_engine import QUICK, SPEC, Call
from tests.waiting import until


async def test_cells_run_one_at_a_time_in_order_of_arrival(sandbox: Sandbox, body: ScriptedBody) -> None:
    calls = [Call(sandbox, code) for code in (b"first", b"second", b"third")]
    for number, (call, code) in enumerate(zip(calls, (b"first", b"second", b"third"), strict=True), start=1):
        frame = await body.next_frame()
        assert (frame.header, frame.blob) == ({"id": number, "language": "python"}, code)
        assert not call.done
        body.done(number, exit_code=number)
        assert (await call.outcome()).exit_code == number


async def test_a_waiting_cell_that_is_given_up_never_runs(sandbox: Sandbox, body: ScriptedBody) -> None:
    first, second, third = Call(sandbox, b"1"), Call(sandbox, b"2"), Call(sandbox, b"3")
    sandbox.queue.abandon(second.cell)
    await body.next_frame()
    body.done(1)
    await first.outcome()
    assert (await body.next_frame()).blob == b"3"
    body.done(2)
    await third.outcome()
    assert not second.done


async def test_the_queue_is_bounded(sandbox: Sandbox) -> None:
    for _ in range(1 + QUICK.waiting_cells):
        Call(sandbox)
    with pytest.raises(LimitReached, match="3 cells are already waiting"):
        Call(sandbox)


async def test_output_before_a_cell_is_background_and_output_of_it_is_its_own(
    sandbox: Sandbox, body: ScriptedBody
) -> None:
    os.write(body.guest_stdout, b"before")
    call = Call(sandbox)
    await body.next_frame()
    os.write(body.guest_stdout, b"out")
    os.write(body.guest_stderr, b"err")
    body.done(1)
    outcome = await call.outcome()
    assert (outcome.background, outcome.stdout, outcome.stderr) == (b"before", b"out", b"err")


async def test_output_after_the_end_of_a_cell_belongs_to_the_time_after_it(
    sandbox: Sandbox, body: ScriptedBody
) -> None:
    first = Call(sandbox)
    await body.next_frame()
    body.done(1)
    assert (await first.outcome()).stdout == b""
    os.write(body.guest_stderr, b"late")
    second = Call(sandbox)
    await body.next_frame()
    body.done(2)
    outcome = await second.outcome()
    assert (outcome.background, outcome.stderr) == (b"late", b"")


async def test_a_cell_that_ignores_everything_is_asked_twice_told_and_killed(
    sandbox: Sandbox, body: ScriptedBody
) -> None:
    call = Call(sandbox, timeout_seconds=0.0)
    outcome = await call.outcome()
    assert body.signals == [signal.SIGINT, signal.SIGINT, guest.HARD_INTERRUPT_SIGNAL, signal.SIGKILL]
    assert (outcome.state, outcome.cause, outcome.interrupted, outcome.exit_code) == ("lost", "timeout", True, 137)


async def test_a_cell_that_ends_when_asked_keeps_its_state(sandbox: Sandbox, body: ScriptedBody) -> None:
    call = Call(sandbox)
    await body.next_frame()
    assert sandbox.queue.interrupt()
    os.write(body.guest_stderr, b"KeyboardInterrupt\n")
    body.done(1, exit_code=130, interrupted=True)
    outcome = await call.outcome()
    assert (outcome.state, outcome.cause, outcome.interrupted, outcome.exit_code) == ("kept", "interrupt", True, 130)
    assert outcome.stderr == b"KeyboardInterrupt\n"
    assert body.signals[:1] == [signal.SIGINT]
    assert not sandbox.queue.interrupt()


async def test_a_caller_that_goes_away_interrupts_its_cell(sandbox: Sandbox, body: ScriptedBody) -> None:
    call = Call(sandbox)
    await body.next_frame()
    sandbox.queue.abandon(call.cell)
    assert body.signals[:1] == [signal.SIGINT]


@pytest.mark.parametrize(
    ("death", "exit_code", "cause"),
    [
        (ScriptedDeath(3, None), 3, "exit"),
        (ScriptedDeath(None, 11), 139, "signal 11"),
        (ScriptedDeath(None, 9), 137, "signal 9"),
        (ScriptedDeath(None, 9, out_of_memory=True), 137, "out of memory"),
    ],
)
async def test_a_death_is_a_result_and_the_next_cell_says_that_it_starts_anew(
    sandbox: Sandbox, body: ScriptedBody, death: ScriptedDeath, exit_code: int, cause: str
) -> None:
    call = Call(sandbox)
    await body.next_frame()
    os.write(body.guest_stdout, b"last words")
    body.die(death)
    outcome = await call.outcome()
    assert (outcome.state, outcome.exit_code, outcome.cause) == ("lost", exit_code, cause)
    assert outcome.stdout == b"last words"
    assert not outcome.restarted

    following = Call(sandbox)
    await until(lambda: body.revivals == 1)
    await body.next_frame()
    body.done(2)
    assert (await following.outcome()).restarted
    last = Call(sandbox)
    await body.next_frame()
    body.done(3)
    assert not (await last.outcome()).restarted


async def test_a_restart_is_told_to_the_first_caller_who_listens(sandbox: Sandbox, body: ScriptedBody) -> None:
    body.die(ScriptedDeath(0, None))
    await until(lambda: sandbox.state == "lost")
    given_up, following = Call(sandbox), Call(sandbox)
    sandbox.queue.abandon(given_up.cell)
    await until(lambda: body.revivals == 1)
    frame = await body.next_frame()
    body.done(int(str(frame.header["id"])))
    assert (await following.outcome()).restarted


@pytest.mark.parametrize("told", [True, False])
async def test_a_restart_is_not_told_twice_to_whoever_has_heard_of_the_loss(
    sandbox: Sandbox, body: ScriptedBody, told: bool
) -> None:
    """A caller that leaves takes the news with it only if the loss was told before, by the result it happened in."""
    if told:
        losing = Call(sandbox)
        await body.next_frame()
        body.die(ScriptedDeath(0, None))
        assert (await losing.outcome()).state == "lost"
    else:
        body.die(ScriptedDeath(0, None))
        await until(lambda: sandbox.state == "lost")
    given_up = Call(sandbox)
    await until(lambda: body.revivals == 1)
    frame = await body.next_frame()
    sandbox.queue.abandon(given_up.cell)
    following = Call(sandbox)
    assert (await body.next_frame()).kind == guest.INTERRUPT  # nobody waits for this cell any more
    body.done(int(str(frame.header["id"])))
    frame = await body.next_frame()
    body.done(int(str(frame.header["id"])))
    assert (await following.outcome()).restarted is not told


async def test_a_cell_that_ended_before_its_process_did_has_its_own_result(
    sandbox: Sandbox, body: ScriptedBody
) -> None:
    call = Call(sandbox)
    await body.next_frame()
    body.done(1, exit_code=5)
    body.die(ScriptedDeath(0, None))
    outcome = await call.outcome()
    assert (outcome.state, outcome.exit_code) == ("kept", 5)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"rubbish" * 10, id="no frame"),
        pytest.param(encode(99, {}), id="unknown kind"),
        pytest.param(encode(guest.DONE, {"id": 1}), id="missing fields"),
        pytest.param(encode(guest.CONFIGURED, {"error": None}), id="answer to nothing"),
        pytest.param(
            encode(guest.DONE, {"id": 2, "exit_code": 0, "error": None, "interrupted": False}), id="a cell to come"
        ),
        pytest.param(encode(guest.READY, {"pid": 1, "version": "3", "ipython": "9"}), id="boot again"),
    ],
)
async def test_a_guest_that_breaks_the_protocol_is_killed(sandbox: Sandbox, body: ScriptedBody, said: bytes) -> None:
    call = Call(sandbox)
    await body.next_frame()
    body.send(said)
    outcome = await call.outcome()
    assert body.signals == [signal.SIGKILL]
    assert (outcome.state, outcome.cause) == ("lost", "broken protocol")


async def test_a_guest_that_closes_its_control_socket_is_killed(sandbox: Sandbox, body: ScriptedBody) -> None:
    call = Call(sandbox)
    await body.next_frame()
    body._guest.close()
    assert (await call.outcome()).cause == "broken protocol"


async def test_a_guest_that_closes_its_control_socket_while_it_is_interrupted_is_ended_by_that(
    sandbox: Sandbox, body: ScriptedBody
) -> None:
    call = Call(sandbox)
    await body.next_frame()
    assert sandbox.queue.interrupt()
    body._guest.close()
    outcome = await call.outcome()
    assert (outcome.state, outcome.cause, body.signals[-1]) == ("lost", "interrupt", signal.SIGKILL)


async def test_words_of_a_cell_that_is_over_are_ignored(sandbox: Sandbox, body: ScriptedBody) -> None:
    first = Call(sandbox)
    await body.next_frame()
    body.done(1)
    await first.outcome()
    second = Call(sandbox)
    await body.next_frame()
    body.done(1, exit_code=9)
    body.done(2, exit_code=4)
    assert (await second.outcome()).exit_code == 4
    assert body.signals == []


async def test_rich_results_are_bounded_and_the_rest_is_counted(sandbox: Sandbox, body: ScriptedBody) -> None:
    call = Call(sandbox)
    await body.next_frame()
    for text in (b"1" * 6000, b"too long" * 1000, b"2" * 2000):
        mimes = [["text/plain", "s", len(text)]]
        body.send(encode(guest.RESULT, {"id": 1, "what": "display", "mimes": mimes, "display_id": None}, text))
    body.done(1)
    outcome = await call.outcome()
    assert [rich.blob for rich in outcome.rich] == [b"1" * 6000, b"2" * 2000]
    assert outcome.truncated is not None
    assert outcome.truncated.results_dropped == 1


async def test_an_update_takes_the_place_of_what_it_updates(sandbox: Sandbox, body: ScriptedBody) -> None:
    call = Call(sandbox)
    await body.next_frame()
    for what, name, text in (("display", "a", b"1"), ("display", "b", b"2"), ("update", "a", b"3")):
        mimes = [["text/plain", "s", 1]]
        body.send(encode(guest.RESULT, {"id": 1, "what": what, "mimes": mimes, "display_id": name}, text))
    body.done(1)
    assert [(rich.what, rich.blob) for rich in (await call.outcome()).rich] == [("display", b"3"), ("display", b"2")]


async def test_closing_cancels_what_runs_and_what_waits(sandbox: Sandbox, body: ScriptedBody) -> None:
    running, waiting = Call(sandbox), Call(sandbox)
    await sandbox.close()
    for call in (running, waiting):
        with pytest.raises(ExecutionCancelled):
            await call.outcome()
    with pytest.raises(SandboxClosed):
        Call(sandbox)
    assert body.closed


async def test_a_folder_that_does_not_exist_is_a_bad_argument(body: ScriptedBody) -> None:
    spec = SandboxSpec(SPEC.template, SPEC.limits, (), (("A", "x\udc80"),), cwd="/nowhere")
    sandbox = Sandbox("sbx_test", spec, body, QUICK)
    configuring = asyncio.create_task(sandbox.configure())
    frame = await body.next_frame()
    assert frame.header == {"env": {"A": "x\udc80"}, "cwd": "/nowhere"}
    body.send(encode(guest.CONFIGURED, {"error": "no such folder"}))
    with pytest.raises(InvalidArgument, match="cwd must be a folder that exists in the sandbox: no such folder"):
        await configuring
    await sandbox.close()


class Watching(Collecting):
    """A sink that notes in which order things come."""

    live = True

    def __init__(self) -> None:
        super().__init__(QUICK, lambda stream: None)
        self.seen: list[bytes] = []

    def output(self, stream: int, data: bytes) -> None:
        self.seen.append(data)

    def rich(self, rich: guest.Rich) -> None:
        self.seen.append(rich.blob)


async def test_what_was_printed_before_a_result_is_seen_before_it(sandbox: Sandbox, body: ScriptedBody) -> None:
    for last_id in range(1, 21):  # which of two readable descriptors comes first is the kernel's choice
        sink = Watching()
        over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        sandbox.queue.submit(Cell("python", b"", None, sink, over.set_result, over.set_exception))
        await body.next_frame()
        header = {"id": last_id, "what": "value", "display_id": None, "mimes": [["text/plain", "s", 2]]}
        body.send(encode(guest.RESULT, header, b"42"))
        os.write(body.guest_stdout, b"printed\n")
        body.done(last_id)
        await over
        assert sink.seen == [b"printed\n", b"42"]
