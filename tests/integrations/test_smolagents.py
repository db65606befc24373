"""The published `smolagents` with a stub model, its code in a real sandbox."""

from __future__ import annotations

import io
import struct
import subprocess
import zlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import numpy
import PIL.Image
import pytest
from smolagents import CodeAgent, Tool, tool
from smolagents.local_python_executor import InterpreterError
from smolagents.models import ChatMessage, MessageRole, Model
from smolagents.monitoring import LogLevel

from ramet import Sandbox
from ramet.integrations.pictures import PIXELS_AT_MOST, NotAPicture, open_png
from ramet.integrations.smolagents import SandboxExecutor


class Scripted(Model):  # type: ignore[misc] # smolagents has no types
    """Writes the code it was given to write, and remembers what it was told."""

    def __init__(self, *cells: str) -> None:
        super().__init__()
        self._cells = list(cells)
        self.told: list[str] = []

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        self.told.append("\n".join(part["text"] for message in messages[-2:] for part in message.content))
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"<code>\n{self._cells.pop(0)}\n</code>")


@pytest.fixture
def executor() -> Iterator[SandboxExecutor]:
    with SandboxExecutor() as made:
        yield made


def agent(executor: SandboxExecutor, model: Model, *tools: Tool, **options: Any) -> CodeAgent:
    return CodeAgent(
        tools=list(tools),
        model=model,
        executor=executor,
        additional_authorized_imports=["*"],
        verbosity_level=LogLevel.OFF,
        **options,
    )


@tool  # type: ignore[untyped-decorator] # smolagents has no types
def price_of(name: str, pieces: int = 1) -> float:
    """The price of something.

    Args:
        name: What it is.
        pieces: How many.
    """
    if name == "moon":
        raise ValueError("not for sale")
    return 2.5 * pieces


class Table(Tool):  # type: ignore[misc] # smolagents has no types
    name = "table"
    description = "A table."
    inputs = {"rows": {"type": "integer", "description": "How many rows.", "nullable": True}}
    output_type = "object"

    def forward(self, rows: int | None = None) -> Any:
        return {"squares": numpy.arange(rows or 3) ** 2}


def test_state_persists_and_the_answer_comes_out(executor: SandboxExecutor) -> None:
    model = Scripted("import os\nx = 6\nprint('pid', os.getpid() > 0)\nx", "final_answer(x * 7)")
    assert agent(executor, model).run("what is it?") == 42
    assert "pid True" in model.told[1]
    assert "Last output from code snippet:\n6" in model.told[1]


def test_the_tools_of_the_agent_are_functions_of_the_sandbox(executor: SandboxExecutor) -> None:
    model = Scripted(
        "first = price_of('bolt')\nmore = price_of(name='bolt', pieces=4)",
        "squares = table(rows=4)['squares']\nassert table()['squares'].sum() == 5",
        "final_answer([first, more, int(squares.sum()), type(squares).__name__])",
    )
    assert agent(executor, model, price_of, Table()).run("what is it?") == [2.5, 10.0, 14, "ndarray"]


def test_errors_are_told_to_the_model_which_can_go_on(executor: SandboxExecutor) -> None:
    model = Scripted("x = 6\nprint('before')\n1 / 0", "price_of('moon')", "price_of(5)", "final_answer(x)")
    assert agent(executor, model, price_of).run("what is it?") == 6
    assert "Execution logs:\nbefore" in model.told[1]
    assert "ZeroDivisionError: division by zero" in model.told[1]
    assert "not for sale" in model.told[2]
    assert "price_of" in model.told[3]


def test_variables_of_the_run_are_there(executor: SandboxExecutor) -> None:
    model = Scripted("final_answer({'mean': numbers.mean().item(), 'who': who, 'n': len(rows)})")
    given = {"numbers": numpy.arange(5), "who": "grün", "rows": [{"a": 1}, {"a": None}]}
    assert agent(executor, model).run("what is it?", additional_args=given) == {"mean": 2.0, "who": "grün", "n": 2}


def test_a_variable_that_cannot_cross_is_told(executor: SandboxExecutor) -> None:
    with pytest.raises(InterpreterError, match="cannot cross"):
        executor.send_variables({"rows": [1, object()]})


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("final_answer('text')", "text"),
        ("final_answer(answer=None)", None),
        ("final_answer({'a': (1, 2), 3: {4}})", {"a": (1, 2), 3: {4}}),
        ("final_answer(b'\\x00\\xff')", b"\x00\xff"),
        ("final_answer(1 + 2j)", 1 + 2j),
        ("import numpy\nfinal_answer(numpy.float64(0.5))", 0.5),
        ("import numpy\nfinal_answer(numpy.int64(5))", 5),
        ("try:\n    final_answer(1)\nexcept Exception:\n    final_answer(2)", 1),
        ("final_answer(1)\nraise SystemExit", 1),
    ],
)
def test_answers_of_many_kinds(executor: SandboxExecutor, code: str, answer: object) -> None:
    assert agent(executor, Scripted(code)).run("what is it?") == answer


def test_an_array_and_an_image_come_out(executor: SandboxExecutor) -> None:
    array = agent(executor, Scripted("import numpy\nfinal_answer(numpy.eye(2))")).run("what is it?")
    assert array.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    code = "import PIL.Image\nimage = PIL.Image.new('RGB', (3, 2), 'red')\nfinal_answer(image)"
    image = agent(executor, Scripted(code)).run("what is it?")
    raw = image.to_raw()
    assert (raw.size, raw.getpixel((0, 0))) == ((3, 2), (255, 0, 0))
    shown = executor("image")
    assert isinstance(shown.output, PIL.Image.Image)


def test_an_answer_that_cannot_leave_is_told_to_the_model(executor: SandboxExecutor) -> None:
    model = Scripted("final_answer(open('/etc/hostname'))", "final_answer('text')")
    assert agent(executor, model).run("what is it?") == "text"
    assert "a TextIOWrapper cannot leave the sandbox as an answer" in model.told[1]


def test_a_final_answer_of_ones_own(executor: SandboxExecutor) -> None:
    class Checked(Tool):  # type: ignore[misc] # smolagents has no types
        name = "final_answer"
        description = "The answer."
        inputs = {
            "value": {"type": "integer", "description": "It."},
            "unit": {"type": "string", "description": "Its unit."},
        }
        output_type = "string"

        def forward(self, value: int, unit: str) -> str:
            if value < 0:
                raise ValueError("below zero")
            return f"{value} {unit}"

    model = Scripted("final_answer(-1, unit='m')", "final_answer(1, unit='m')")
    made = agent(executor, model)
    made.tools["final_answer"] = Checked()
    assert made.run("what is it?") == "1 m"
    assert "below zero" in model.told[1]


def test_a_managed_agent_is_called_from_inside(executor: SandboxExecutor) -> None:
    with SandboxExecutor() as other:
        helper = agent(other, Scripted("final_answer('found it')"), name="helper", description="Finds things.")
        model = Scripted("said = helper(task='find it')\nprint(said)", "final_answer('found it' in said)")
        made = agent(executor, model, managed_agents=[helper])
        assert made.run("where is it?") is True


def test_code_that_kills_its_python_can_begin_again(executor: SandboxExecutor) -> None:
    model = Scripted("import os; os._exit(3)", "final_answer(price_of('bolt'))")
    assert agent(executor, model, price_of).run("what is it?") == 2.5
    assert "Python ended: it exited" in model.told[1]


def test_a_timeout_interrupts() -> None:
    with SandboxExecutor(timeout_seconds=0.3) as executor:
        model = Scripted("x = 6\nimport time\ntime.sleep(3600)", "final_answer(x)")
        assert agent(executor, model).run("what is it?") == 6
        assert "Interrupted at its timeout" in model.told[1]


def test_a_sandbox_that_was_given_stays_open(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 6")
    with agent(SandboxExecutor(sandbox), Scripted("final_answer(x)")) as made:
        assert made.run("what is it?") == 6
    assert sandbox.run_code("x").value == "6"


def test_its_own_sandbox_is_made_as_told_and_ends_with_the_agent() -> None:
    executor = SandboxExecutor(env={"WHO": "me"})
    with agent(executor, Scripted("import os\nfinal_answer(os.environ['WHO'])")) as made:
        assert made.run("who?") == "me"
    assert "closed" in repr(executor.sandbox)


def test_the_host_is_out_of_reach(executor: SandboxExecutor, tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    model = Scripted(f"import os\nfinal_answer(os.path.exists({str(secret)!r}))")
    assert agent(executor, model).run("can you see it?") is False


# Pictures and arrays that are none: their bytes are the sandbox's


def _png(width: int, height: int) -> bytes:
    """A PNG of that size as it says itself, with next to nothing in it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
_SMALL = io.BytesIO()
PIL.Image.new("RGB", (3, 2), "red").save(_SMALL, "PPM")
_NO_PNG = {
    "eps": EPS,
    "ppm": _SMALL.getvalue(),
    "another format behind the signature of one": b"\x89PNG\r\n\x1a\n" + EPS,
    "nothing": b"",
    "cut": _png(10, 10)[:20],
    "cut in its data": _png(10, 10)[:-20],
    "large": _png(100_000, 100_000),
    "long": _png(1, 25_000_001),
    "of no size": _png(0, 0),
}


@pytest.fixture(scope="module")
def shared() -> Iterator[SandboxExecutor]:
    with SandboxExecutor() as made:
        made.send_tools({"final_answer": lambda answer: answer})
        yield made


@pytest.mark.parametrize("data", _NO_PNG.values(), ids=_NO_PNG)
def test_what_is_no_png_is_not_opened(shared: SandboxExecutor, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would give it to any of its decoders, and start Ghostscript for some."""
    started: list[object] = []
    monkeypatch.setattr(subprocess, "check_call", started.append)
    monkeypatch.setattr(subprocess, "Popen", started.append)
    with pytest.raises(NotAPicture):
        open_png(data)
    shown = shared(
        f"class Fake:\n    def _repr_png_(self): return {data!r}\n    def __repr__(self): return 'a fake'\nFake()"
    )
    assert shown.output == "a fake"
    marked = {"__type__": "PIL.Image", "data": b64encode(data).decode()}
    with pytest.raises(InterpreterError):
        shared(f"ramet_final_answer(arguments=[[{marked}]], named={{}})")
    assert started == []


def test_a_png_at_the_bound_is_opened() -> None:
    made = io.BytesIO()
    PIL.Image.new("1", (5000, PIXELS_AT_MOST // 5000)).save(made, "PNG")
    assert open_png(made.getvalue()).size == (5000, PIXELS_AT_MOST // 5000)


@pytest.mark.parametrize("dtype", ["<U999999999", "S99999", "V100000000", "i4,(1000000,)i8", "O,O", 5, None])
def test_an_array_of_elements_of_any_size_is_not_made(shared: SandboxExecutor, dtype: object) -> None:
    marked = {"__type__": "ndarray", "data": ["1"], "dtype": dtype}
    with pytest.raises(InterpreterError, match="an array in an answer"):
        shared(f"ramet_final_answer(arguments=[{{'a': {marked}}}], named={{}})")


@pytest.mark.parametrize(
    "array",
    ["numpy.arange(3)", "numpy.array([1.5, 2])", "numpy.array([True])", "numpy.array(['a', 'bc'])",
     "numpy.zeros(2, 'float32')", "numpy.zeros(2, '>i4')"],
)  # fmt: skip
def test_usual_arrays_come_out(shared: SandboxExecutor, array: str) -> None:
    answer = shared(f"import numpy\nfinal_answer({array})").output
    assert isinstance(answer, numpy.ndarray)
