"""Small notebooks as people write them: each is a list of cells, run from the first to the last."""

from __future__ import annotations

FIRST_STEPS = [
    "1 + 1",
    "_ * 21",
    "x = 5\nx",
    "y = x; y",
    "y;",
    "print('printed')\nx, y",
    "In[1], Out[1], _1, _i",
    "del _\n'new'",
    "_",
    "def area(width, height):\n    '''Of a rectangle.'''\n    return width * height\narea(2, 3)",
    "class Point:\n    def __init__(self, x):\n        self.x = x\n    def __repr__(self):\n"
    "        return f'Point({self.x})'\nPoint(1)",
    "[Point(n) for n in range(30)]",
    "{'text': 'a' * 100, 'numbers': list(range(40))}",
    "None",
    "   ",
    "len(In), sorted(Out)",
    "%history -n 1-4",
    "'a string with \\'quotes\\' and ünïcödé 🎉'",
    "print('no newline', end='')",
    "import sys; print('to stderr', file=sys.stderr); print('to stdout')",
]

PANDAS = [
    "import numpy as np\nimport pandas as pd",
    "table = pd.DataFrame({'city': ['Oslo', 'Rome', 'Oslo', 'Lima'], 'sales': [3.5, 2.25, 4.0, 1.0]})\ntable",
    "table.describe()",
    "table.groupby('city')['sales'].agg(['sum', 'mean'])",
    "table['sales'].sort_values()",
    "print(table.head(2))\ntable.dtypes",
    "np.arange(12).reshape(3, 4) / 7",
    "table.style.format({'sales': '{:.1f}'}).hide(axis='index').to_string()",
    "pd.set_option('display.max_rows', 6)\npd.DataFrame({'n': range(100)})",
    "table['missing']",
    "table.isna().sum().sum()",
    "table.info()",
    "pd.to_datetime(pd.Series(['2024-01-01', '2024-02-03']))",
]

MATPLOTLIB = [
    "import matplotlib.pyplot as plt",
    "plt.plot([1, 4, 9])\nplt.title('squares')\nplt.show()",
    "plt.plot([1, 2])",
    "figure, axes = plt.subplots(1, 2, figsize=(6, 2))\naxes[0].bar(['a', 'b'], [1, 2])\n"
    "axes[1].hist([1, 1, 2, 3])\nfigure",
    "print('before')\nplt.scatter([1, 2], [3, 4])\nplt.show()\nprint('after')",
    "for n in range(2):\n    plt.figure()\n    plt.plot([n, 1])",
    "plt.close('all')\nlen(plt.get_fignums())",
    "plt.plot([1, 2], 'no such format')",
]

ASYNCIO = [
    "import asyncio\nasync def double(n):\n    await asyncio.sleep(0.01)\n    return 2 * n",
    "await double(4)",
    "await asyncio.gather(*[double(n) for n in range(4)])",
    "loop = asyncio.get_event_loop()",
    "await loop.run_in_executor(None, lambda: 'from a thread')",
    "def begin(n):\n    return asyncio.create_task(double(n))\ntask = begin(5)",
    "await task",
    "async with asyncio.timeout(5):\n    print('in time')",
    "async for_each = 1",
    "async def numbers():\n    for n in range(3):\n        yield n\n[n async for n in numbers()]",
    "await asyncio.wait_for(asyncio.sleep(10), 0.01)",
    "queue = asyncio.Queue()\nasync def produce():\n    for n in range(3):\n        await queue.put(n)\n"
    "producer = asyncio.ensure_future(produce())",
    "[await queue.get() for _ in range(3)]",
    "double(1).close()",
]

TQDM = [
    "from tqdm import tqdm\nimport sys",
    "for _ in tqdm(range(3)):\n    pass",
    "for _ in tqdm(range(3), file=sys.stdout):\n    pass",
    "bar = tqdm(total=10)\nbar.update(4)\nbar.close()\n'done'",
    "with tqdm(total=2, desc='inner', leave=False) as bar:\n    bar.update(2)",
]

ERRORS = [
    "1/0",
    "def f(n):\n    return n[0]\nf(3)",
    "x = = 1",
    "  x = 1\n y = 2",
    "undefined_name",
    "raise ValueError('two\\nlines')",
    "try:\n    1/0\nexcept ZeroDivisionError as error:\n    raise RuntimeError('outer') from error",
    "import sys\ntype(sys.last_value).__name__",
    "print('before')\nraise KeyError('key')",
    "assert 1 == 2, 'not equal'",
    "class Own(Exception):\n    pass\nraise Own('mine')",
    "import warnings\nwarnings.warn('be careful', UserWarning)\nprint('went on')",
    "from no_such_module import name",
    "int('x')",
    "'still' + ' alive'",
]

DISPLAYS = [
    "from IPython.display import HTML, JSON, Latex, Markdown, SVG, Image, display, Math, Pretty",
    "display('text', 2)\nprint('between')\ndisplay(HTML('<b>bold</b>'))\nprint('end')",
    "HTML('<i>value</i>')",
    "Markdown('# title')",
    "JSON({'a': [1, 2]})",
    "Latex('$x^2$')",
    "Math('x^2')",
    'SVG(\'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>\')',
    "class Rich:\n    def _repr_html_(self): return '<p>rich</p>'\n    def __repr__(self): return 'plain'\nRich()",
    "class Both:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n"
    "        return {'text/plain': 'p', 'text/html': 'h'}\nBoth()",
    "class Broken:\n    def __repr__(self): raise ValueError('no repr')\nBroken()",
    "class Shows:\n    def _ipython_display_(self): print('shown by itself')\nShows()",
    "display({'text/plain': 'raw', 'text/html': '<u>raw</u>'}, raw=True)",
    "for n in range(3):\n    print(n)\n    display(n)",
    "display()",
    "b'bytes', 1.5, 2 + 3j, frozenset({1})",
]

UPDATES = [
    "from IPython.display import clear_output, display, update_display",
    "handle = display('first', display_id='one')\nhandle.update('second')",
    "for n in range(3):\n    clear_output()\n    print('step', n)",
    "for n in range(3):\n    clear_output(wait=True)\n    print('step', n)",
    "print('stays')\ndisplay('stays too')\nclear_output(wait=True)",
    "print('gone')\ndisplay('gone')\nclear_output()",
    "print('gone')\nclear_output(wait=True)\ndisplay('kept')\nprint('kept')",
    "import sys\nprint('gone', file=sys.stderr)\nclear_output()\nprint('kept', file=sys.stderr)",
]

MAGICS = [
    "%cd /",
    "%pwd",
    "name = 'world'\n!echo hello $name {name.upper()}",
    "files = !printf 'a\\nb\\n'\nfiles",
    "%%capture seen\nprint('captured')\n1",
    "seen.stdout",
    "%who str",
    "%env RAMET_TEST_VARIABLE=5",
    "import os; os.environ['RAMET_TEST_VARIABLE']",
    "import shutil, tempfile\nfolder = tempfile.mkdtemp()\nos.chdir(folder)",
    "%%writefile note.txt\nline one\nline two",
    "%cat note.txt",
    "%%writefile -a note.txt\nline three",
    "open('note.txt').read()",
    "os.chdir('/')\nshutil.rmtree(folder)",
    "%%python -c 1\npass",
    "%precision 3\n3.14159265",
    "%precision %r",
    "%macro again 2",
    "%config InlineBackend.figure_format",
    "%reset -f\n'name' in globals()",
    "?no_such_object",
]

BASH = [
    "%%bash\necho one\necho two >&2",
    "%%bash --out words\necho kept",
    "words",
    "%%bash --out words --err complaints --no-raise-error\necho out; echo err >&2; exit 3",
    "words, complaints",
    "%%sh\nprintf 'a\\tb\\n'",
    "%%bash -s first second\necho $2 $1",
    "!exit 0",
    "_exit_code",
    "%%script cat\nthrough cat",
    "import subprocess\nsubprocess.run(['echo', 'child'], capture_output=True, text=True).stdout",
]

STATE = [
    "import io, sys\nbefore = sys.stdout\nlog = sys.stdout = io.StringIO()\nprint('hidden')",
    "print('hidden too')",
    "sys.stdout = before\nlog.getvalue()",
    "calls = []\ndef trace(frame, event, argument):\n    calls.append(event)\nsys.settrace(trace)",
    "def traced(): pass\ntraced()",
    "sys.gettrace() is trace",
    "sys.settrace(None)\n'call' in calls",
    "import contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as text:\n    print('caught')\ntext.getvalue()",
    "from dataclasses import dataclass\n@dataclass\nclass Pair:\n    left: int\n    right: int\nPair(1, 2)",
    "import inspect\nprint(inspect.signature(Pair))",
    "import pickle\npickle.loads(pickle.dumps(Pair(3, 4)))",
    "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as pool:\n"
    "    squares = list(pool.map(lambda n: n * n, range(4)))\nsquares",
    "import logging\nlogging.basicConfig(level=logging.INFO, format='%(message)s')\nlogging.info('logged')",
    "__name__, '__file__' in globals()",
]

NOTEBOOKS = {
    "first steps": FIRST_STEPS,
    "pandas": PANDAS,
    "matplotlib": MATPLOTLIB,
    "asyncio": ASYNCIO,
    "tqdm": TQDM,
    "errors": ERRORS,
    "displays": DISPLAYS,
    "updates": UPDATES,
    "magics": MAGICS,
    "bash": BASH,
    "state": STATE,
}
