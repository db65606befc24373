"""A terminal in a sandbox is a terminal: what one types, sees, resizes and interrupts there works as anywhere else."""

from __future__ import annotations

import asyncio
import base64
import hashlib

import pytest

from ramet import AsyncSandbox, ExecutionUnknown, InvalidArgument, LimitReached, Sandbox, SandboxClosed
from tests.behaviour.waiting import UNTIL_GO, go, read_until, wait_until
from tests.terminals.conftest import OpenScreen
from tests.terminals.screens import Screen


def code_of(sandbox: Sandbox, *arguments: object, **options: object) -> int:
    return sandbox.terminal(*arguments, **options).wait()  # type: ignore[arg-type]


def test_what_is_typed_is_echoed_and_run(shell: Screen) -> None:
    shell.type("echo $((6 * 7))\n")
    shell.wait_for("echo $((6 * 7))\r\n42\r\n")
    assert shell.text.count("42") == 1


def test_the_terminal_is_one_of_the_sandboxs_own(shell: Screen) -> None:
    assert shell.run("tty") == "/dev/pts/0\n"
    assert shell.run("echo hello > /dev/tty") == "hello\n"
    assert shell.run("ls /dev/pts") == "0  ptmx\n"


def test_the_environment_is_that_of_bash_cells_with_a_terminal(shell: Screen, sandbox: Sandbox) -> None:
    assert shell.run('echo "$TERM $HOME $PWD"') == "xterm-256color /root /root\n"
    path = sandbox.run_code("echo -n $PATH", language="bash").stdout
    assert shell.run("echo -n $PATH") == path


def test_variables_and_folder_can_be_given() -> None:
    with Sandbox(env={"FIRST": "of the sandbox", "SECOND": "of the sandbox"}, recover="fresh") as sandbox:
        terminal = sandbox.terminal('echo "$FIRST, $SECOND, $PWD"', env={"SECOND": "of the terminal"}, cwd="/tmp")
        assert b"".join(terminal.read()) == b"of the sandbox, of the terminal, /tmp\r\n"


def test_the_size_can_be_asked_for_and_changed(shell: Screen) -> None:
    assert shell.run("stty size") == "24 80\n"
    shell.run("trap 'echo resized' WINCH")
    shell.terminal.resize(132, 50)
    assert "50 132\n" in shell.run("stty size")
    shell.wait_for("resized")


def wait_until_runs(sandbox: Sandbox, program: str) -> None:
    def runs() -> bool:
        return program in sandbox.run_code("ps -eo comm", language="bash").stdout.split()

    wait_until(runs, f"{program} runs")


def test_control_c_interrupts_the_program_and_not_the_shell(shell: Screen, sandbox: Sandbox) -> None:
    shell.type("sleep 1000\n")
    shell.wait_for("sleep 1000\r\n")
    wait_until_runs(sandbox, "sleep")
    shell.type(b"\x03")
    shell.wait_for("^C")
    shell.type("code=$?\n")
    assert shell.run("echo $code") == "130\n"


def test_job_control_works(shell: Screen, sandbox: Sandbox) -> None:
    shell.run("set -m")
    shell.type("cat\n")
    shell.wait_for("cat\r\n")
    wait_until_runs(sandbox, "cat")
    shell.type(b"\x1a")
    shell.wait_for("Stopped")
    assert "cat" in shell.run("jobs")
    shell.type("fg\n")
    shell.type("back again\n")
    shell.wait_for("back again\r\n", times=2)  # echoed by the terminal, and by cat
    shell.type(b"\x04")
    assert shell.run("jobs") == ""


def test_full_screen_bytes_come_through_unchanged(screen_of: OpenScreen) -> None:
    """What an editor sends and is sent: raw mode, escape sequences, every byte there is."""
    program = """
import sys, tty, os
tty.setraw(0)
os.write(1, b"\\x1b[?1049h\\x1b[2J\\x1b[1;1Hready")
got = b""
while len(got) < 256:
    got += os.read(0, 4096)
os.write(1, got + b"\\x1b[?1049l")
"""
    screen = screen_of(["python3", "-c", program])
    screen.wait_for("ready")
    everything = bytes(range(256))
    screen.type(everything)
    assert screen.wait_until_over() == b"\x1b[?1049h\x1b[2J\x1b[1;1Hready" + everything + b"\x1b[?1049l"


def test_text_beyond_ascii_comes_through(shell: Screen) -> None:
    assert shell.run("echo 'Größe → 寿司 🍣'") == "Größe → 寿司 🍣\n"


def test_a_python_in_a_terminal_is_interactive(screen_of: OpenScreen) -> None:
    screen = screen_of("python3", env={"PYTHON_BASIC_REPL": "1"})
    screen.wait_for(">>> ")
    screen.type("6 * 7\n")
    screen.wait_for("\r\n42\r\n")
    screen.type("exit(5)\n")
    assert screen.terminal.wait() == 5


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), (["true"], 0), (["false"], 1)],
)
def test_exit_codes_are_told_as_a_shell_tells_them(sandbox: Sandbox, command: str | list[str], code: int) -> None:
    assert code_of(sandbox, command) == code


def test_all_output_comes_before_the_end(sandbox: Sandbox) -> None:
    terminal = sandbox.terminal("seq 1 20000")
    assert b"".join(terminal.read()).split() == [str(number).encode() for number in range(1, 20001)]
    assert terminal.wait() == 0


def test_the_end_is_the_end_of_the_program_whoever_holds_the_terminal(sandbox: Sandbox) -> None:
    terminal = sandbox.terminal("(trap '' HUP; exec sleep 1000) & echo done")
    assert b"".join(terminal.read()) == b"done\r\n"
    assert terminal.wait() == 0


def test_a_terminal_runs_beside_a_running_cell(sandbox: Sandbox, screen_of: OpenScreen) -> None:
    events = sandbox.run_code_stream(UNTIL_GO)
    read_until(events, "begun")
    screen = screen_of(["bash", "--norc", "--noediting"], env={"PS1": "$ "})
    assert screen.run("echo beside") == "beside\n"
    go(sandbox)
    assert [event.result.exit_code for event in events if event.type == "exit"] == [0]
    assert screen.run("echo still") == "still\n"


def test_files_are_the_sandboxs(shell: Screen, sandbox: Sandbox) -> None:
    shell.run("echo typed > /root/note")
    assert sandbox.files.read("note") == b"typed\n"


def test_terminals_are_listed(sandbox: Sandbox) -> None:
    first, second = sandbox.terminal(["sleep", "1000"]), sandbox.terminal("exit 3")
    second.wait()
    assert [(found.id, found.label, found.exit_code) for found in sandbox.terminals()] == [
        (first.id, "sleep 1000", None),
        (second.id, "bash -c 'exit 3'", 3),
    ]


def test_at_most_sixteen_run(sandbox: Sandbox) -> None:
    opened = [sandbox.terminal(["sleep", "1000"]) for _ in range(16)]
    with pytest.raises(LimitReached, match="16 terminals"):
        sandbox.terminal()
    opened[3].kill()
    assert sandbox.terminal("exit 4").wait() == 4
    assert len(sandbox.terminals()) == 16


def test_ended_ones_make_room_for_others(sandbox: Sandbox) -> None:
    for number in range(40):
        assert code_of(sandbox, f"exit {number}") == number
    assert [found.exit_code for found in sandbox.terminals()] == list(range(24, 40))


@pytest.mark.parametrize("wrong", ["pty_0000000000000000", "", "../x", "x" * 500])
def test_an_unknown_terminal_is_told(sandbox: Sandbox, wrong: str) -> None:
    with pytest.raises(ExecutionUnknown, match="there is no terminal"):
        sandbox.attach(wrong)


def test_a_terminal_of_another_sandbox_is_unknown(sandbox: Sandbox, neighbour: object) -> None:
    with Sandbox() as other:
        terminal = other.terminal()
        with pytest.raises(ExecutionUnknown):
            sandbox.attach(terminal.id)
        assert other.attach(terminal.id).id == terminal.id


@pytest.mark.parametrize(
    ("arguments", "options", "name"),
    [
        (("no-such-program-here",), {}, "command"),
        ((["/etc/passwd"],), {}, "command"),
        (([],), {}, "command"),
        (("",), {}, "command"),
        ((["a\0b"],), {}, "command"),
        ((7,), {}, "command"),
        ((["x" * 200_000],), {}, "command"),
        (("bash", 0), {}, "cols"),
        (("bash", 80, 70_000), {}, "rows"),
        (("bash",), {"cwd": "/no/such/folder"}, "cwd"),
        (("bash",), {"cwd": "/etc/passwd"}, "cwd"),
        (("bash",), {"env": {"A=B": "c"}}, "env"),
    ],
)
def test_bad_arguments_are_named(sandbox: Sandbox, arguments: tuple[object, ...], options: object, name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        sandbox.terminal(*arguments, **options)  # type: ignore[arg-type]
    assert caught.value.details["argument"] == name
    assert [found.exit_code for found in sandbox.terminals() if found.exit_code is None] == []


def test_input_after_the_end_is_refused(sandbox: Sandbox) -> None:
    terminal = sandbox.terminal("exit 2")
    assert terminal.wait() == 2
    with pytest.raises(ExecutionUnknown, match="ended with 2"):
        terminal.write("late\n")
    terminal.resize(10, 10)
    terminal.kill()


def test_a_closed_sandbox_has_no_terminals(sandbox: Sandbox) -> None:
    terminal = sandbox.terminal()
    sandbox.close()
    with pytest.raises(SandboxClosed):
        terminal.write("x")
    terminal.close()


def test_the_other_face_has_terminals_too() -> None:
    async def use() -> tuple[bytes, int, list[int | None]]:
        async with AsyncSandbox() as sandbox:
            async with await sandbox.terminal("read line; echo got $line; exit 9") as terminal:
                again = await sandbox.attach(terminal.id)
                await again.write("it\n")
                await again.resize(100, 30)
                output = b"".join([piece async for piece in terminal.read()])
                code = await terminal.wait()
            return output, code, [found.exit_code for found in await sandbox.terminals()]

    assert asyncio.run(asyncio.wait_for(use(), 60)) == (b"it\r\ngot it\r\n", 9, [9])


def test_a_revived_repl_has_ended_the_terminals() -> None:
    with Sandbox(recover="fresh") as sandbox:
        terminal = sandbox.terminal(["sleep", "1000"])
        assert sandbox.run_code("import os; os._exit(1)").state == "lost"
        assert sandbox.run_code("6 * 7").value == "42"
        assert terminal.wait() == 137
        assert code_of(sandbox, "exit 6") == 6


def test_large_input_reaches_a_program_that_reads(sandbox: Sandbox) -> None:
    data = base64.b64encode(bytes(range(256)) * 4096)[:700_000] + b"\x04"
    program = "stty raw -echo; echo ready; head -c 700000 | sha256sum; head -c 1 | xxd -p"
    terminal = sandbox.terminal(program)
    output = terminal.read()
    assert next(output).startswith(b"ready")
    terminal.write(data)
    rest = b"".join(output)
    assert rest.split()[0].decode() == hashlib.sha256(data[:700_000]).hexdigest()
