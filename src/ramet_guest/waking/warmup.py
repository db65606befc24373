"""Runs cells in the template before it is frozen, so that the first cell of every sandbox finds warm code.

CPython rewrites instructions as they run, and every sandbox would copy each rewritten page. The cells go through the
real loop over a private socket pair, with the pipes set aside. They leave no name, number or output behind.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from ramet_guest.cells import postmortem
from ramet_guest.wire import FRAME_VERSION, REPL_STDERR, REPL_STDOUT, RUN, TOOL_ANSWER

if TYPE_CHECKING:
    from ramet_guest.repl import Repl

_PREFIX = struct.Struct("<IBBI")

# CPython specialises an instruction after a few runs, and again after a few more if its first guess was wrong.
REPEATS = 12
CELLS = (
    "print(6*7)",
    "x = 1\nx",
    "print('a', 1, [2])\nprint('b', end='')",
    "def f(a):\n    return a + 1\nf(1)",
    "    y = 3\n    y\n",
    "class A:\n    pass\nA()",
    "import os, sys\nos.getcwd()",
    "[i for i in range(3)]",
    "{'a': 1.5}",
    "'text'",
    "1/0",
    "f(",
    "undefined_name",
    "raise SystemExit(0)",
)
LIBRARY_REPEATS = 3
LIBRARY_CELLS = {
    "numpy": (
        "import numpy as np\na = np.arange(12).reshape(3, 4)\nprint(a.sum(axis=0), a.mean(), (a * 2.5).std())\na",
    ),
    "pandas": (
        "import pandas as pd\n"
        "df = pd.DataFrame({'month': [1, 1, 2], 'revenue': [10, 20, 5], 'name': ['a', 'b', 'c']})\n"
        "monthly = df.groupby('month')['revenue'].sum()\n"
        "print(monthly.describe())\nprint(df.head(), df['revenue'].mean(), df[df.revenue > 5])\n"
        "df['twice'] = df['revenue'] * 2\ndf.sort_values('revenue')",
    ),
    "matplotlib.pyplot": ("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.title('t')",),
}

TOOL = {
    "name": "tool",
    "description": "",
    "input_schema": {"properties": {"text": {"type": "string"}, "number": {"type": "integer"}}, "required": ["text"]},
}
TOOL_VALUE = '{"value":{"text":"a","numbers":[1,2.5,null]},"attachments":[]}'


def run(repl: Repl) -> None:
    """Warms up, then removes all traces."""
    names = dict(repl.namespace)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    before = repl.channel.attach(theirs)
    silence(repl)
    try:
        for cell in CELLS * REPEATS:
            run_cell(repl, ours, cell)
        for library, cells in LIBRARY_CELLS.items():
            if library in sys.modules:
                for cell in cells * LIBRARY_REPEATS:
                    run_cell(repl, ours, cell)
        call_tools()
    finally:
        if before is not None:
            repl.channel.attach(before)
        ours.close()
        theirs.close()
        for descriptor, spare in ((1, REPL_STDOUT), (2, REPL_STDERR)):
            os.dup2(spare, descriptor, inheritable=True)
        repl.output.remember()
    forget(repl, names)


def silence(repl: Repl) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor, inheritable=True)
    os.close(null)
    repl.output.remember()


def run_cell(repl: Repl, engine: socket.socket, cell: str) -> None:
    """Runs one cell as the engine would, and discards the answer."""
    header = json.dumps({"id": 1, "language": "python"}).encode("ascii")
    code = cell.encode()
    engine.sendall(_PREFIX.pack(6 + len(header) + len(code), FRAME_VERSION, RUN, len(header)) + header + code)
    repl.serve_one()
    while True:
        try:
            engine.recv(1 << 20)
        except BlockingIOError:
            return


def call_tools() -> None:
    """Calls a tool whose answer is already in the socket.

    Also imports, once for all sandboxes, the modules that tools need.
    """
    from ramet_guest.tools import calls, frames, functions

    import_module("ramet_guest.tools.given_tools")
    function = functions.make_function(TOOL, "")
    value = TOOL_VALUE.encode("ascii")
    header = b'{"outcome":"value","more":false}'
    answer = frames.pack(TOOL_ANSWER, header, len(value).to_bytes(4, "little") + value)
    for _ in range(REPEATS):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(answer)
            calls.connections.give_back(ours)
            function(text="a", number=1)
            calls.connections.forget()


def forget(repl: Repl, names: dict[str, object]) -> None:
    """Removes every trace of the warm-up, so that a sandbox begins with an empty namespace and cell 1."""
    repl.namespace.clear()
    repl.namespace.update(names)
    repl.shell.displayhook.forget()
    repl.sources.reset()
    repl.history.forget()
    postmortem.forget()
    repl.compiler.flags = 0
    repl.first_names = dict(names)
