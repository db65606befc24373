"""An exception is a result: exit code, the user's own traceback, and a namespace that is intact."""

from __future__ import annotations

import pytest

from tests.behaviour.faces import AnySandbox


def frames(stderr: str) -> list[str]:
    """The lines of a traceback that say where, whoever's code that was."""
    return [line.strip() for line in stderr.splitlines() if line.lstrip().startswith("File ")]


@pytest.mark.promise("repl-errors")
@pytest.mark.every_face
def test_an_exception_gives_code_1_and_leaves_the_namespace_intact(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("x = 1\nprint('before')\nx / 0\nx = 2")
    assert (result.exit_code, result.ok, result.state, result.stdout) == (1, False, "kept", "before\n")
    assert result.error is not None
    assert (result.error.name, result.error.message) == ("ZeroDivisionError", "division by zero")
    assert any_sandbox.run_code("x").value == "1"


@pytest.mark.promise("repl-tracebacks")
def test_a_traceback_has_the_lines_of_the_user_only_with_the_right_numbers(any_sandbox: AnySandbox) -> None:
    stderr = any_sandbox.run_code("a = 1\n\ndef broken():\n    return a / 0\n\nbroken()").stderr
    assert [frame.split(", ", 1)[1] for frame in frames(stderr)] == ["line 6, in <module>", "line 4, in broken"]
    assert "return a / 0" in stderr
    for ours in ("ramet", "IPython", "exec("):
        assert ours not in stderr


def test_a_traceback_shows_source_of_functions_of_earlier_cells(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("def earlier(n):\n    # a comment\n    return 10 / n  # here")
    any_sandbox.run_code("unrelated = 1")
    stderr = any_sandbox.run_code("earlier(0)").stderr
    assert "return 10 / n  # here" in stderr
    assert frames(stderr) == ['File "<cell 3>", line 1, in <module>', 'File "<cell 1>", line 3, in earlier']


def test_line_numbers_count_leading_empty_lines_and_survive_indentation(any_sandbox: AnySandbox) -> None:
    stderr = any_sandbox.run_code("""
        a = 1
        a / 0
    """).stderr
    assert "line 3, in <module>\n    a / 0\n" in stderr


def test_a_chain_of_exceptions_is_shown_whole(any_sandbox: AnySandbox) -> None:
    code = "try:\n    {}['key']\nexcept KeyError as e:\n    raise ValueError('outer') from e"
    stderr = any_sandbox.run_code(code).stderr
    assert "KeyError: 'key'" in stderr
    assert "direct cause" in stderr
    assert "ValueError: outer" in stderr
    assert {frame.split(", ")[0] for frame in frames(stderr)} == {'File "<cell 1>"'}


def test_an_exception_group_is_shown_with_its_parts(any_sandbox: AnySandbox) -> None:
    stderr = any_sandbox.run_code("raise ExceptionGroup('several', [ValueError('a'), KeyError('b')])").stderr
    assert "several (2 sub-exceptions)" in stderr
    assert "ValueError: a" in stderr
    assert "KeyError: 'b'" in stderr


EXITS = [
    ("raise SystemExit", 0, ""),
    ("import sys; sys.exit()", 0, ""),
    ("import sys; sys.exit(None)", 0, ""),
    ("import sys; sys.exit(3)", 3, ""),
    ("import sys; sys.exit(256 + 5)", 5, ""),
    ("import sys; sys.exit(-1)", 255, ""),
    ("import sys; sys.exit('what went wrong')", 1, "what went wrong\n"),
    ("import sys; sys.exit(True)", 1, ""),
    ("exit(4)", 4, ""),
    ("quit()", 0, ""),
]


def test_system_exit_gives_its_code(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("kept = 1")
    for code, exit_code, stderr in EXITS:
        result = any_sandbox.run_code(code)
        assert (result.exit_code, result.stderr, result.state) == (exit_code, stderr, "kept"), code
        assert any_sandbox.run_code("kept").value == "1", code


def test_a_syntax_error_runs_nothing(any_sandbox: AnySandbox) -> None:
    for code in ("print('ran')\ndef f(:\n    pass", "print('ran')\nreturn 5", "print('ran')\n    x = 1", "x = = 1"):
        result = any_sandbox.run_code(code)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.error is not None
        assert result.error.name in ("SyntaxError", "IndentationError")
        assert result.error.name in result.stderr
    stderr = any_sandbox.run_code("print('ran')\nreturn 5").stderr
    assert "line 2\n    return 5\n" in stderr
    assert stderr.endswith("SyntaxError: 'return' outside function\n")


def test_a_syntax_error_shows_the_line_it_is_in(any_sandbox: AnySandbox) -> None:
    stderr = any_sandbox.run_code("a = 1\nb = (2,\nc = 3 +").stderr
    assert "line 2" in stderr or "line 3" in stderr
    assert "SyntaxError" in stderr


UNUSUAL = [
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("def f():\n    f()\nf()", "RecursionError"),
    ("bytearray(1 << 50)", "MemoryError"),
    ("raise MemoryError", "MemoryError"),
    ("class Odd(BaseException): pass\nraise Odd", "Odd"),
    ("raise GeneratorExit", "GeneratorExit"),
]


def test_unusual_exceptions_leave_the_repl_alive(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("kept = 1")
    for code, name in UNUSUAL:
        result = any_sandbox.run_code(code)
        assert result.error is not None, code
        assert (result.error.name, result.state) == (name, "kept"), code
        assert name in result.stderr, code
        assert any_sandbox.run_code("kept").value == "1", code


def test_a_keyboard_interrupt_raised_by_the_cell_itself_is_code_130_and_no_interrupt(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("raise KeyboardInterrupt")
    assert (result.exit_code, result.interrupted, result.cause) == (130, False, None)


def test_an_exception_whose_text_cannot_be_made_is_still_a_result(any_sandbox: AnySandbox) -> None:
    code = "class Bad(Exception):\n    def __str__(self): raise RuntimeError\nraise Bad"
    result = any_sandbox.run_code(code)
    assert result.exit_code == 1
    assert "Bad" in result.stderr
    assert any_sandbox.run_code("1").value == "1"


def test_an_exception_in_a_thread_is_shown_and_does_not_fail_the_cell(any_sandbox: AnySandbox) -> None:
    any_sandbox.run_code("import threading\ndef work(): raise ValueError('in a thread')")
    result = any_sandbox.run_code("t = threading.Thread(target=work, name='worker')\nt.start()\nt.join()")
    assert result.exit_code == 0
    assert result.stderr.startswith("Exception in thread worker:\nTraceback")
    assert "ValueError: in a thread" in result.stderr


def test_an_exception_after_await_shows_the_line_of_the_user(any_sandbox: AnySandbox) -> None:
    code = "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    raise ValueError('late')\nawait f()"
    stderr = any_sandbox.run_code(code).stderr
    assert frames(stderr) == ['File "<cell 1>", line 5, in <module>', 'File "<cell 1>", line 4, in f']


def test_input_raises_eof_at_once_and_stdin_is_empty(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code("input('name? ')", timeout=60)
    assert result.error is not None
    assert (result.error.name, result.error.message) == ("EOFError", "EOF when reading a line")
    assert not result.interrupted
    assert any_sandbox.run_code("import sys; sys.stdin.read()", timeout=60).value == "''"
    assert any_sandbox.run_code("list(sys.stdin)", timeout=60).value == "[]"
