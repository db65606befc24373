"""What one cell leaves to the next, as a notebook's kernel does: streams, hooks, the last error, earlier cells."""

from __future__ import annotations

import sys

import pytest

from tests.guest.guest_driver import HARD_SIGNAL, Guest


def test_a_stream_that_a_cell_puts_in_place_stays(guest: Guest) -> None:
    guest.run("import io, sys\nlog = sys.stdout = io.StringIO()\nprint('one')")
    assert guest.run("print('two')").stdout == ""
    assert guest.run("sys.stdout = sys.__stdout__\nprint(log.getvalue(), end='')").stdout == "one\ntwo\n"


def test_a_log_file_is_flushed_with_each_cell(guest: Guest) -> None:
    guest.run("import sys\nsys.stdout = open('log', 'w')\nprint('written')")
    assert guest.run("!cat log").stdout == "written\n"


@pytest.mark.parametrize("stream", ["open('closed', 'w')", "None", "type('Bad', (), {})()"])
def test_tracebacks_and_values_come_whatever_the_streams_are(guest: Guest, stream: str) -> None:
    assert guest.run(f"import sys\nsys.stdout = sys.stderr = {stream}").exit_code == 0
    guest.run("if sys.stdout: sys.stdout.close()")
    outcome = guest.run("1/0")
    assert outcome.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert guest.run("6 * 7").value == "42"
    guest.run("sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__")
    assert guest.run("print('back')").stdout == "back\n"


def test_tracebacks_do_not_go_to_a_log_of_the_users_but_warnings_do(guest: Guest) -> None:
    guest.run("import io, sys, warnings\nlog = sys.stderr = io.StringIO()")
    assert "ZeroDivisionError" in guest.run("1/0").stderr
    assert guest.run("warnings.warn('mind')").stderr == ""
    assert guest.run("'mind' in log.getvalue(), 'ZeroDivisionError' in log.getvalue()").value == "(True, False)"


def test_trace_and_profile_functions_stay_and_see_only_cells(guest: Guest) -> None:
    guest.run(
        "import sys\nseen = []\n"
        "def trace(frame, event, argument):\n    seen.append(frame.f_code.co_filename)\n    return trace\n"
        "sys.settrace(trace)"
    )
    guest.run("x = 1")
    assert guest.run("sys.gettrace() is trace").value == "True"
    guest.run("sys.settrace(None)\ncells = {name for name in seen if name.startswith('<cell')}")
    assert guest.run("len(cells) >= 3").value == "True"
    assert guest.run("[name for name in seen if name.endswith('ramet_guest/repl.py')]").value == "[]"
    guest.run("events = []\nsys.setprofile(lambda frame, event, argument: events.append(event))")
    assert guest.run("sys.getprofile() is not None").value == "True"
    guest.run("sys.setprofile(None)")
    assert guest.run("'c_call' in events").value == "True"


def test_a_trace_function_that_raises_ends_a_cell_and_is_gone(guest: Guest) -> None:
    assert guest.run("import sys; kept = 1; sys.settrace(lambda *a: 1 / 0)").exit_code == 0
    assert guest.run("kept").error == {"name": "ZeroDivisionError", "message": "division by zero"}
    assert guest.run("kept").value == "1"


def test_a_profile_of_several_cells_works(guest: Guest) -> None:
    guest.run("import cProfile, io, pstats\nprofile = cProfile.Profile()\nprofile.enable()")
    guest.run("def seen_by_the_profile(): pass\nseen_by_the_profile()")
    guest.run("profile.disable()\ntext = io.StringIO()\npstats.Stats(profile, stream=text).print_stats()")
    assert guest.run("'seen_by_the_profile' in text.getvalue()").value == "True"


def test_the_last_error_can_be_looked_at(guest: Guest) -> None:
    assert guest.run("%tb").stderr == "there was no error yet\n"
    failed = guest.run("def f(number):\n    half = number / 2\n    return half / 0\nf(3)")
    assert guest.run("import sys\ntype(sys.last_value) is sys.last_type is ZeroDivisionError").value == "True"
    assert guest.run("sys.last_traceback.tb_frame.f_code.co_filename").value == "'<cell 2>'"
    again = guest.run("%tb")
    assert (again.stderr, again.exit_code) == (failed.stderr, 0)
    assert "f(number=3)" in guest.run("%tb Verbose").stderr
    shown = guest.run("%debug")
    assert shown.exit_code == 0
    assert "<cell 2>, line 3, in f\n  number = 3\n  half = 1.5\n" in shown.stdout
    assert "cells have no terminal" in shown.stderr
    assert "-> return half / 0" in guest.run("import pdb; pdb.pm()").stdout


def test_breakpoint_says_that_there_is_no_terminal_and_goes_on(guest: Guest) -> None:
    outcome = guest.run("x = 1\nbreakpoint()\nprint('on')")
    assert (outcome.stdout, outcome.exit_code) == ("on\n", 0)
    assert "breakpoint() in <cell 1>, line 2" in outcome.stderr
    assert "cells have no terminal" in outcome.stderr
    assert "cells have no terminal" in guest.run("import pdb\npdb.set_trace()\nx = 2").stderr


def test_earlier_cells_and_values_have_their_names(guest: Guest) -> None:
    guest.run("6 * 7")
    guest.run("%time x = 1\n")
    guest.run("'last'")
    assert guest.run("Out[1], _1, _, __, _i, _i1, In[1]").value == "(42, 42, 'last', 42, \"'last'\", '6 * 7', '6 * 7')"
    assert guest.run("In[2], _i2").value == "(\"get_ipython().run_line_magic('time', 'x = 1')\", '%time x = 1')"
    assert guest.run("sorted(Out), _ih is In, _oh is Out").value == "([1, 3, 4, 5], True, True)"
    assert guest.run("%history 1-3").stdout == "6 * 7\n%time x = 1\n'last'\n"
    assert guest.run("%history -n -o 1").stdout == "   1: 6 * 7\n42\n"
    assert guest.run("get_ipython().execution_count").value == "9"


def test_the_history_can_be_searched_and_shown_from_its_end(guest: Guest) -> None:
    for code in ("alpha = 1", "beta = 2\nbeta", "%time gamma = 3", "alpha = 1"):
        guest.run(code)
    assert guest.run("%history -l 2").stdout == "%time gamma = 3\nalpha = 1\n"
    assert guest.run("%history -n -o -l 4").stdout == (
        "   2:\nbeta = 2\nbeta\n2\n   3: %time gamma = 3\n   4: alpha = 1\n   5: %history -l 2\n"
    )
    assert guest.run("%history -g alp*=").stdout == "   1: alpha = 1\n   4: alpha = 1\n   7: %history -g alp*=\n"
    assert guest.run("%history -u -g alpha = 1").stdout == "   4: alpha = 1\n   8: %history -u -g alpha = 1\n"
    assert guest.run("%history -l 1 -g alpha = 1").stdout == "   9: %history -l 1 -g alpha = 1\n"
    assert guest.run("%history -t -l 1").stdout == "get_ipython().run_line_magic('history', '-l 1 -g alpha = 1')\n"
    guest.run("%reset -f in")
    assert guest.run("%history -l 5").exit_code == 0


@pytest.mark.parametrize("magic", ["%load script.py", "%recall 1", "%rep 1"])
def test_code_that_a_magic_would_put_into_the_next_cell_is_printed(guest: Guest, magic: str) -> None:
    guest.run("%%writefile script.py\nprint('loaded')")
    expected = "print('loaded')" if magic == "%load script.py" else "%%writefile script.py"
    outcome = guest.run(magic)
    assert (outcome.exit_code, expected in outcome.stdout) == (0, True)
    assert "loaded\n" not in outcome.stdout.splitlines(keepends=True)


def test_numbers_of_cells_are_those_of_tracebacks(guest: Guest) -> None:
    guest.run("%%capture\n1")
    guest.run("   \n")
    guest.run("f(")
    assert 'File "<cell 3>", line 1' in guest.run("1/0").stderr
    assert guest.run("In[2:4], len(In)").value == "(['f(', '1/0'], 5)"


def test_a_name_that_was_deleted_is_set_by_the_next_value(guest: Guest) -> None:
    guest.run("1")
    guest.run("del _")
    assert guest.run("2").value == "2"
    assert guest.run("_").value == "2"
    guest.run("_ = 'mine'")
    guest.run("3")
    assert guest.run("_").value == "'mine'"


def test_values_are_kept_within_bounds(guest: Guest) -> None:
    guest.run("class Large:\n    def __sizeof__(self): return 40 << 20\n    def __repr__(self): return 'large'\n0")
    for _ in range(5):
        assert guest.run("Large()").value == "large"
    assert guest.run("sorted(Out), '_4' in globals(), '_6' in globals()").value == "([6], False, True)"


def test_reset_forgets_values_and_the_next_is_kept(guest: Guest) -> None:
    guest.run("x = 1\nx")
    assert guest.run("%reset -f").exit_code == 0
    assert guest.run("2").value == "2"
    assert guest.run("Out, _, 'x' in globals()").value == "({3: 2}, 2, False)"


@pytest.mark.parametrize(
    ("code", "exit_code"), [("10**30", 255), ("-(10**30)", 255), ("-1", 255), ("263", 7), ("True", 1)]
)
def test_an_exit_code_is_the_one_that_python_would_end_with(guest: Guest, code: str, exit_code: int) -> None:
    assert guest.run(f"import sys; sys.exit({code})").exit_code == exit_code


def test_options_of_bash_cells(guest: Guest) -> None:
    outcome = guest.run("%%bash --out words --err=complaints\necho out; echo err >&2")
    assert (outcome.stdout, outcome.stderr, outcome.exit_code) == ("", "", 0)
    assert guest.run("words, complaints").value == "('out\\n', 'err\\n')"
    assert guest.run("%%bash --no-raise-error --out words\necho kept; exit 3").exit_code == 0
    assert guest.run("words").value == "'kept\\n'"
    assert guest.run("%%bash --out words\necho kept; exit 3").exit_code == 3
    assert guest.run("%%bash -s one two\necho $2").stdout == "two\n"
    assert guest.run("%%bash --out\ntrue").exit_code == 1


@pytest.mark.parametrize("language", ["python", "bash"])
@pytest.mark.parametrize(("character", "name"), [("\0", "NUL"), ("\ud800", "U+D800"), ("\udc80", "U+DC80")])
def test_characters_that_no_code_has_are_a_syntax_error(guest: Guest, language: str, character: str, name: str) -> None:
    guest.start(f"x = 1\ny = '{character}'", language)
    outcome = guest.finish()
    assert outcome.error is not None
    assert (outcome.error["name"], outcome.exit_code) == ("SyntaxError", 1)
    assert "line 2" in outcome.stderr
    assert name in outcome.stderr
    assert guest.run("2").value == "2"


def test_code_in_a_fence_is_told_so(guest: Guest) -> None:
    done = guest.run("\n```python\nprint(6 * 7)\n```")
    assert done.stderr.splitlines() == [
        '  File "<cell 1>", line 2',
        "    ```python",
        "    ^",
        "SyntaxError: the code is in a Markdown fence: leave out the lines that begin with ```",
    ]
    assert guest.run("print(len('''\n```\n'''))").stdout == "5\n"


@pytest.mark.parametrize("code", ["x = 1; print(x)", "x = 1\nprint(x)", "%%time\nprint(1)"])
def test_a_byte_order_mark_is_no_part_of_the_code(guest: Guest, code: str) -> None:
    assert guest.run("\ufeff" + code).stdout.startswith("1\n")
    assert guest.run("\ufeffecho 1", "bash").stdout == "1\n"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="such a cell can only be killed there")
def test_a_stream_that_a_hard_interrupt_leaves_in_place_is_taken_away(guest: Guest) -> None:
    guest.start(
        "import contextlib, io, sys\nwith contextlib.redirect_stdout(io.StringIO()):\n"
        "    sys.__stdout__.write('begun\\n')\n    while True:\n        try:\n            while True: pass\n"
        "        except BaseException: pass"
    )
    guest.wait_for_stdout("begun")
    assert guest.finish_by_signal(HARD_SIGNAL).interrupted
    assert guest.run("print('seen')").stdout == "seen\n"
