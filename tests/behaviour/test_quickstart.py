"""What a user does first."""

from __future__ import annotations

import asyncio

import pytest

from ramet import AsyncSandbox, RametError, Sandbox
from tests.behaviour.faces import AnySandbox


def test_the_first_session_of_a_user_works_as_written() -> None:
    pytest.importorskip("pandas")
    with Sandbox() as s:
        s.run_code("""
            import pandas as pd
            df = pd.DataFrame({'month': [1, 1, 2], 'revenue': [10, 20, 5]})
        """)
        s.run_code("monthly = df.groupby('month')['revenue'].sum()")
        r = s.run_code("print(monthly.describe())")
        assert "mean     17.5" in r.stdout
        assert (r.stderr, r.exit_code, r.ok) == ("", 0, True)

        printed = ""
        codes = []
        for event in s.run_code_stream("for i in range(5): print(i)"):
            if event.type == "stdout":
                printed += event.data
            elif event.type == "exit":
                codes.append(event.code)
        assert (printed, codes) == ("0\n1\n2\n3\n4\n", [0])

        r1 = s.run_code("1 / 0")
        assert r1.exit_code == 1
        assert "ZeroDivisionError" in r1.stderr
        r2 = s.run_code("print('still alive')")
        assert r2.exit_code == 0
        assert r2.stdout == "still alive\n"


def test_the_async_face_works_with_async_with_and_with_create() -> None:
    async def session() -> None:
        async with AsyncSandbox() as s:
            await s.run_code("x = 6")
            assert (await s.run_code("print(x * 7)")).stdout == "42\n"
            events = [event async for event in s.run_code_stream("print('hello')")]
            assert "".join(event.data for event in events if event.type == "stdout") == "hello\n"
            assert events[-1].type == "exit"
        created = await AsyncSandbox.create()
        assert (await created.run_code("1 + 1")).value == "2"
        await created.close()

    asyncio.run(session())


def test_the_async_face_says_that_it_is_for_asyncio() -> None:
    """A library with a loop of its own, such as trio, begins a coroutine as this does."""
    begun = [
        AsyncSandbox.create(),
        AsyncSandbox().__aenter__(),
        AsyncSandbox.connect("sbx_1"),
        AsyncSandbox.resume("sbx_1"),
        AsyncSandbox.kept(),
    ]
    for one in begun:
        with pytest.raises(RametError, match="needs a running event loop of asyncio") as refused:
            one.send(None)
        assert "use Sandbox in a thread" in str(refused.value.hint)


def test_sandboxes_know_nothing_of_each_other() -> None:
    with Sandbox() as one, Sandbox() as other:
        assert one.id != other.id
        one.run_code("secret = 1")
        one.files.write("/root/mine", b"")
        assert other.run_code("secret").error is not None
        assert not other.files.exists("/root/mine")


def test_a_handle_shows_its_id_and_whether_it_is_open() -> None:
    s = Sandbox()
    assert repr(s) == f"<Sandbox {s.id} open>"
    s.close()
    assert repr(s) == f"<Sandbox {s.id} closed>"


@pytest.mark.every_face
def test_info_says_what_a_sandbox_is_and_is_walled_in_by(any_sandbox: AnySandbox) -> None:
    info = any_sandbox.info()
    assert info.id == any_sandbox.id
    assert info.state == "idle"
    assert info.template == "default"
    assert info.limits.pids == 256
    assert str(info.pid) == any_sandbox.run_code("import os; os.getpid()").value
    assert info.walls["seccomp"] == "filter"
    assert info.walls["capabilities"] == "none"


def test_two_sandboxes_of_one_template_draw_different_random_numbers() -> None:
    draw = "import random, uuid, os; (random.random(), str(uuid.uuid4()), os.urandom(8))"
    with Sandbox() as one, Sandbox() as other:
        assert one.run_code(draw).value != other.run_code(draw).value
