"""Text, displays and `clear_output()` of a cell: in their order as it runs, and what is left of them in its result."""

from __future__ import annotations

import pytest

from ramet import ClearEvent, OutputEvent, ResultEvent
from tests.behaviour.faces import AnySandbox

CLEAR = "from IPython.display import clear_output\n"


def events(sandbox: AnySandbox, code: str) -> list[object]:
    """What is seen, text that follows text as one piece."""
    seen: list[object] = []
    for event in sandbox.run_code_stream(code):
        if isinstance(event, OutputEvent):
            if seen and isinstance(seen[-1], str):
                seen[-1] += event.data
            else:
                seen.append(event.data)
        elif isinstance(event, ResultEvent):
            seen.append((event.result.what, event.result.text))
        elif isinstance(event, ClearEvent):
            seen.append(event)
    return seen


@pytest.mark.every_face
def test_a_stream_has_text_and_displays_in_the_order_of_the_cell(any_sandbox: AnySandbox) -> None:
    code = "for n in range(20):\n    print(n)\n    display(-n)\n    print('after', n)\n'value'"
    expected: list[object] = ["0\n"]
    for n in range(20):
        expected += [("display", str(-n)), f"after {n}\n" + (f"{n + 1}\n" if n < 19 else "")]
    for _ in range(10):
        assert events(any_sandbox, code) == [*expected, ("value", "'value'")]


def test_output_of_child_processes_keeps_its_place_among_displays(any_sandbox: AnySandbox) -> None:
    code = "import os\nfor n in range(5):\n    os.system(f'echo {n}')\n    display(n)\n    os.write(1, b'written\\n')"
    seen = events(any_sandbox, code)
    assert [part for part in seen if isinstance(part, tuple)] == [("display", str(n)) for n in range(5)]
    assert [part for part in seen if isinstance(part, str)] == [
        "0\n",
        *(f"written\n{n}\n" for n in range(1, 5)),
        "written\n",
    ]


def test_displays_of_threads_arrive(any_sandbox: AnySandbox) -> None:
    code = (
        "import threading\nthreads = [threading.Thread(target=display, args=(n,)) for n in range(8)]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()\ndisplay('last')"
    )
    seen = events(any_sandbox, code)
    assert sorted(seen[:-1]) == [("display", str(n)) for n in range(8)]  # type: ignore[type-var]
    assert seen[-1] == ("display", "'last'")


@pytest.mark.every_face
def test_clear_output_is_an_event_of_a_stream_in_its_place(any_sandbox: AnySandbox) -> None:
    code = CLEAR + "print('a')\nclear_output()\nprint('b')\nclear_output(wait=True)\nprint('c')"
    assert events(any_sandbox, code) == ["a\n", ClearEvent(False), "b\n", ClearEvent(True), "c\n"]


@pytest.mark.every_face
@pytest.mark.parametrize("wait", [False, True])
def test_clear_output_leaves_the_last_step_of_a_loop_in_the_result(any_sandbox: AnySandbox, wait: bool) -> None:
    code = (
        f"{CLEAR}import sys\nfor n in range(30):\n    clear_output(wait={wait})\n    print('step', n)\n"
        "    print('error', n, file=sys.stderr)\n    display(n)"
    )
    result = any_sandbox.run_code(code)
    assert (result.stdout, result.stderr) == ("step 29\n", "error 29\n")
    assert [shown.text for shown in result.results] == ["29"]


def test_clear_output_that_waits_for_something_new_leaves_what_is_there(any_sandbox: AnySandbox) -> None:
    assert any_sandbox.run_code(CLEAR + "print('stays')\nclear_output(wait=True)").stdout == "stays\n"
    assert any_sandbox.run_code(CLEAR + "print('goes')\nclear_output()").stdout == ""


def test_a_stream_that_was_long_before_it_was_cleared_is_whole_in_its_file(any_sandbox: AnySandbox) -> None:
    result = any_sandbox.run_code(CLEAR + "print('x' * 20_000_000)\nclear_output()\nprint('end')")
    assert result.stdout == "end\n"
    assert result.truncated is not None
    assert result.truncated.stdout_bytes == 20_000_005
    path = result.truncated.stdout_path
    assert path is not None
    assert any_sandbox.run_code(f"import os\nos.path.getsize({path!r})").value == "20000005"


def test_a_display_is_interrupted_like_anything_else_and_the_next_cell_has_its_own(any_sandbox: AnySandbox) -> None:
    seen = []
    for event in any_sandbox.run_code_stream("n = 0\nwhile True:\n    n += 1\n    display(n)"):
        seen.append(event)
        if len(seen) == 20:
            any_sandbox.interrupt()
    assert events(any_sandbox, "print('a')\ndisplay('b')\nprint('c')") == ["a\n", ("display", "'b'"), "c\n"]
