"""Output that is too long for a result lies in files of the sandbox, which are bounded and counted."""

from __future__ import annotations

import pytest

from ramet import Sandbox

_MIB = 1 << 20


def printed(sandbox: Sandbox, mebibytes: int, stream: str = "stdout") -> str | None:
    """The file in which the whole of it lies."""
    code = f"import sys\nfor _ in range({mebibytes}): n = sys.{stream}.write('x' * {_MIB})"
    result = sandbox.run_code(code, timeout=60)
    assert result.ok, result
    assert result.truncated is not None
    assert result.truncated.stdout_bytes + result.truncated.stderr_bytes == mebibytes * _MIB
    return result.truncated.stdout_path or result.truncated.stderr_path


def spilled_mib(sandbox: Sandbox) -> int:
    return sandbox.info().usage["spilled_bytes"] // _MIB


@pytest.mark.deep("load")
def test_all_files_of_output_together_have_at_most_the_memory_limit() -> None:
    with Sandbox(memory_mib=128) as sandbox:
        assert spilled_mib(sandbox) == 0
        first = printed(sandbox, 50)
        assert first is not None
        assert spilled_mib(sandbox) == 50
        assert printed(sandbox, 50, "stderr") is not None
        assert printed(sandbox, 50) is None
        assert spilled_mib(sandbox) == 100
        sandbox.run_code(f"import os; os.rename({first!r}, '/root/kept')")
        assert printed(sandbox, 50) is None  # renamed is not gone
        sandbox.run_code("os.unlink('/root/kept')")
        assert printed(sandbox, 50) is not None


def test_copies_know_what_their_files_hold() -> None:
    with Sandbox(memory_mib=128) as sandbox:
        assert printed(sandbox, 90) is not None
        (child,) = sandbox.fork(1)
        with child:
            assert child.files.stat("/var/tmp/ramet/output-1.stdout").size_bytes == 90 * _MIB


@pytest.mark.deep("load")
def test_a_stream_beyond_its_bound_has_no_file_and_leaves_nothing_behind() -> None:
    with Sandbox(memory_mib=1024) as sandbox:
        assert printed(sandbox, 300) is None
        assert spilled_mib(sandbox) == 0
        assert sandbox.run_code("import os; os.listdir('/var/tmp/ramet')").value == "[]"
