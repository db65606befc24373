"""A child goes on with all that a REPL keeps between cells."""

from __future__ import annotations

import pytest

from ramet import Sandbox


@pytest.mark.idle_loop
def test_a_child_has_the_streams_hooks_errors_and_earlier_cells_of_its_parent(sandbox: Sandbox) -> None:
    sandbox.run_code("'first'")
    sandbox.run_code("def fail(n):\n    return n / 0\nfail(5)")
    sandbox.run_code("import io, sys\nlog = sys.stdout = io.StringIO()\nprint('parent')\ncalls = []")
    sandbox.run_code("def trace(*arguments): calls.append(1)\nsys.settrace(trace)")
    [child] = sandbox.fork()
    with child:
        child.run_code("print('child')")
        assert child.run_code("log.getvalue(), sys.gettrace() is trace, len(calls) > 0").value == (
            "('parent\\nchild\\n', True, True)"
        )
        assert child.run_code("Out[1], _1, In[1], type(sys.last_value).__name__").value == (
            "('first', 'first', \"'first'\", 'ZeroDivisionError')"
        )
        assert "return n / 0" in child.run_code("%tb").stderr
        assert (
            "n = 5" in child.run_code("sys.stdout = sys.__stdout__\nget_ipython().run_line_magic('debug', '')").stdout
        )
    assert sandbox.run_code("log.getvalue()").value == "'parent\\n'"


@pytest.mark.idle_loop
def test_a_plain_cell_of_a_child_has_the_loop_of_its_awaiting_ones(sandbox: Sandbox) -> None:
    sandbox.run_code("import asyncio\nloop = asyncio.get_event_loop()")
    [child] = sandbox.fork()
    for one in (child, sandbox):
        assert one.run_code("asyncio.get_event_loop() is loop").value == "True"
        assert one.run_code("await loop.run_in_executor(None, lambda: 5)").value == "5"
        one.run_code("async def six(): return 6\ndef begin(): return asyncio.create_task(six())\ntask = begin()")
        assert one.run_code("await task").value == "6"
    child.close()
