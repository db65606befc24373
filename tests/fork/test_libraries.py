"""Libraries with threads of their own: used before the fork, then by the parent and every child at the same time.

After a plain `os.fork()` most of these hang: their pools believe in threads that are not there. The deadline of each
cell is the watchdog. The libraries are looked for in the sandbox: what it cannot import is skipped, except in CI.
"""

from __future__ import annotations

import os

import pytest

from ramet import Sandbox
from tests.fork.relatives import Fork, all_the_same, one_after_another, run, value

CHILDREN = 3


def needs(sandbox: Sandbox, *modules: str) -> None:
    for module in modules:
        result = sandbox.run_code(f"import {module}", timeout=60)
        if not result.ok:
            assert "No module named" in result.stderr, result.stderr
            assert not os.environ.get("CI"), f"{module} belongs to the extra `dev`"
            pytest.skip(f"{module} is not installed")


def assert_all_compute_the_same(parent: Sandbox, fork: Fork, before: str, operation: str) -> object:
    """Warms a library up in the parent, forks, and has everybody do the same at once; the value all agree on."""
    run(parent, before)
    expected = value(parent, operation)
    family = [parent, *fork(parent, CHILDREN)]
    assert all_the_same(family, operation) == expected
    # Again, and from a fork of a fork: what was torn down or made anew must serve a second time.
    (grandchild,) = fork(family[1])
    assert all_the_same([*family, grandchild], operation) == expected
    return expected


@pytest.mark.deep("libraries")
def test_numpy_multiplies_and_solves_with_its_pool_of_threads(parent: Sandbox, fork: Fork) -> None:
    needs(parent, "numpy")
    before = """
import numpy as np
a = np.random.default_rng(1).random((700, 700))
"""
    assert_all_compute_the_same(parent, fork, before, "round(float(np.linalg.norm(np.linalg.solve(a, a @ a) - a)), 3)")


def test_pandas_groups_joins_and_reads(parent: Sandbox, fork: Fork) -> None:
    needs(parent, "pandas")
    before = """
import pandas as pd, io
df = pd.DataFrame({'k': [n % 97 for n in range(200_000)], 'v': range(200_000)})
"""
    operation = """
g = df.groupby('k')['v'].agg(['sum', 'mean'])
back = pd.read_csv(io.StringIO(df.head(1000).to_csv(index=False)))
(int(g['sum'].sum()), float(df.merge(g, left_on='k', right_index=True)['mean'].sum()), len(back))
"""
    assert_all_compute_the_same(parent, fork, before, operation)


@pytest.mark.deep("libraries")
def test_polars_groups_lazily(parent: Sandbox, fork: Fork) -> None:
    needs(parent, "polars")
    before = """
import polars as pl
frame = pl.DataFrame({'k': [n % 97 for n in range(300_000)], 'v': range(300_000)})
"""
    operation = "frame.lazy().group_by('k').agg(pl.col('v').sum()).sort('k').collect()['v'].to_list()[:5]"
    assert_all_compute_the_same(parent, fork, before, operation)


@pytest.mark.deep("libraries")
def test_duckdb_queries_a_table_of_an_open_connection(parent: Sandbox, fork: Fork) -> None:
    needs(parent, "duckdb")
    before = """
import duckdb
db = duckdb.connect()
_ = db.execute('set threads = 4')
_ = db.execute('create table t as select range as n, range % 97 as k from range(500000)')
"""
    operation = "db.execute('select k, sum(n) from t group by k order by k limit 3').fetchall()"
    assert_all_compute_the_same(parent, fork, before, operation)


@pytest.mark.deep("libraries")
def test_duckdb_writes_to_a_file_of_its_own(parent: Sandbox, fork: Fork) -> None:
    needs(parent, "duckdb")
    run(
        parent,
        "import duckdb\ndb = duckdb.connect('/root/data.duckdb')\n_ = db.execute('create table t as select 1 n')",
    )
    children = fork(parent, 2)
    for number, each in enumerate([parent, *children]):
        run(each, f"_ = db.execute('insert into t values ({number * 10})'); _ = db.execute('checkpoint')")
    sums = one_after_another([parent, *children], "db.execute('select sum(n)::int from t').fetchone()[0]")
    assert sums == [1, 11, 21]


@pytest.mark.deep("libraries")
def test_pyarrow_aggregates_with_threads(parent: Sandbox, fork: Fork) -> None:
    needs(parent, "pyarrow")
    before = """
import pyarrow as pa, pyarrow.compute as pc
table = pa.table({'k': pa.array([n % 97 for n in range(300_000)]), 'v': pa.array(range(300_000))})
chunked = pa.concat_tables([table] * 4)
"""
    operation = (
        "chunked.group_by('k', use_threads=True).aggregate([('v', 'sum')]).sort_by('k')['v_sum'].to_pylist()[:5]"
    )
    assert_all_compute_the_same(parent, fork, before, operation)


@pytest.mark.deep("libraries")
def test_scikit_learn_fits_with_openmp(parent: Sandbox, fork: Fork) -> None:
    # Idle OpenMP threads spin, and there are more of them than processors here.
    run(parent, "os.environ['OMP_WAIT_POLICY'] = 'passive'")
    needs(parent, "sklearn.ensemble", "numpy")
    before = """
import numpy as np
from sklearn.cluster import KMeans
from sklearn.ensemble import HistGradientBoostingClassifier
x = np.random.default_rng(1).random((1000, 8)); y = (x.sum(axis=1) > 4).astype(int)
"""
    operation = """
model = HistGradientBoostingClassifier(max_iter=2, random_state=1).fit(x, y)
(round(float(model.score(x, y)), 6), round(float(KMeans(4, n_init=1, random_state=1).fit(x).inertia_), 3))
"""
    assert_all_compute_the_same(parent, fork, before, operation)


@pytest.mark.parametrize("mode", ["delete", "wal", "truncate"])
def test_an_open_sqlite_connection_reads_and_writes_in_each(mode: str, parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        f"""
import sqlite3
db = sqlite3.connect('/root/data.sqlite')
assert db.execute('pragma journal_mode = {mode}').fetchone()[0] == '{mode}'
_ = db.execute('create table t (n)'); _ = db.executemany('insert into t values (?)', [(n,) for n in range(1000)])
db.commit()
""",
    )
    children = fork(parent, 2)
    for number, each in enumerate([parent, *children]):
        run(each, f"_ = db.execute('insert into t values (?)', ({number * 1000},)); db.commit()")
    look = (
        "(db.execute('select sum(n) from t').fetchone()[0] - 499500, db.execute('pragma integrity_check').fetchone())"
    )
    family = [parent, *children]
    assert one_after_another(family, look) == [(0, ("ok",)), (1000, ("ok",)), (2000, ("ok",))]
    afresh = "sqlite3.connect('/root/data.sqlite').execute('select count(*) from t').fetchone()[0]"
    assert one_after_another(family, afresh) == [1001] * 3


def test_a_sqlite_transaction_that_was_open_is_committed_or_rolled_back_by_each(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import sqlite3
db = sqlite3.connect('/root/data.sqlite')
_ = db.execute('create table t (n)'); db.commit()
_ = db.execute('insert into t values (1)')
""",
    )
    rolls_back, commits = fork(parent, 2)
    run(rolls_back, "db.rollback()")
    run(commits, "db.commit()")
    run(parent, "_ = db.execute('insert into t values (2)'); db.commit()")
    count = "db.execute('select count(*) from t').fetchone()[0]"
    assert one_after_another([parent, rolls_back, commits], count) == [2, 0, 1]


def test_a_thread_pool_maps(parent: Sandbox, fork: Fork) -> None:
    before = """
import zlib
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(8)
blocks = [bytes([n]) * 200_000 for n in range(32)]
"""
    assert_all_compute_the_same(parent, fork, before, "sum(pool.map(zlib.crc32, blocks))")


def test_timers_that_start_one_another_go_on(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
beats = 0
def beat():
    global beats
    beats += 1
    timer = threading.Timer(0.005, beat); timer.daemon = True; timer.start()
beat()
""",
    )
    family = [parent, *fork(parent, CHILDREN)]
    assert all_the_same(family, "seen = beats\nuntil(lambda: beats > seen + 5)") is True


def test_an_asyncio_server_in_a_thread_answers_in_each(parent: Sandbox, fork: Fork) -> None:
    before = """
import asyncio
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
async def serve(reader, writer):
    line = await reader.readline()
    writer.write(line.upper()); await writer.drain(); writer.close()
async def start(): return await asyncio.start_server(serve, '127.0.0.1', 0)
server = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
address = server.sockets[0].getsockname()
def ask(text):
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(text + b'\\n')
        return connection.makefile('rb').readline()
async def shell(command):
    process = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0]
"""
    operation = """
([ask(b'hello %d' % n) for n in range(5)], asyncio.run_coroutine_threadsafe(shell('echo hi'), loop).result(20))
"""
    assert_all_compute_the_same(parent, fork, before, operation)


def test_a_queue_listener_writes_the_log_of_each(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import logging, logging.handlers, queue
records = queue.Queue()
listener = logging.handlers.QueueListener(records, logging.FileHandler('/root/log'))
listener.start()
log = logging.getLogger('mine'); log.setLevel('INFO'); log.addHandler(logging.handlers.QueueHandler(records))
log.info('before')
_ = until(lambda: os.path.exists('/root/log') and open('/root/log').read() == 'before\\n')
""",
    )
    family = [parent, *fork(parent, 2)]
    for number, each in enumerate(family):
        run(
            each,
            f"log.info('from {number}')\n_ = until(lambda: open('/root/log').read() == 'before\\nfrom {number}\\n')",
        )
    assert all_the_same(family, "listener.stop()\nlistener._thread is None") is True


@pytest.mark.deep("libraries")
def test_tqdm_counts_on(parent: Sandbox, fork: Fork) -> None:
    needs(parent, "tqdm")
    before = """
import io
from tqdm import tqdm
def counted(n):
    shown = io.StringIO()
    for _ in tqdm(range(n), file=shown, mininterval=0): pass
    return f'{n}/{n}' in shown.getvalue()
bar = tqdm(total=10, file=io.StringIO()); _ = bar.update(3)
"""
    assert_all_compute_the_same(parent, fork, before, "counted(200)")
    assert value(parent, "bar.n") == 3


def test_a_block_of_multiprocessing_shared_memory_serves_workers_of_each(parent: Sandbox, fork: Fork) -> None:
    run(
        parent,
        """
import multiprocessing
from multiprocessing import shared_memory
processes = multiprocessing.get_context('fork')
block = shared_memory.SharedMemory(create=True, size=1024)
lock = processes.Lock()
def add(amount):
    with lock: block.buf[0] += amount
def add_in_workers(amount):
    workers = [processes.Process(target=add, args=(amount,)) for _ in range(3)]
    [w.start() for w in workers]; [w.join(20) for w in workers]
    return block.buf[0]
_ = add_in_workers(1)
""",
    )
    family = [parent, *fork(parent, 2)]
    sums = [value(each, f"add_in_workers({number})") for number, each in enumerate(family)]
    assert sums == [3, 6, 9]


@pytest.mark.deep("libraries")
def test_torch_computes_with_its_threads(parent: Sandbox, fork: Fork) -> None:
    if not parent.run_code("import torch", timeout=120).ok:
        pytest.skip("torch is not installed")
    before = "a = torch.rand(600, 600, generator=torch.Generator().manual_seed(1))"
    assert_all_compute_the_same(parent, fork, before, "round(float((a @ a @ a).sum()), 0)")
