"""A sandbox with all that an image must bring back, and cells that look for it."""

from __future__ import annotations

STATE = """
import asyncio, os, queue, sqlite3, threading
numbers = list(range(1000)); many = bytearray(b"x" * (8 << 20))
lock = threading.RLock(); lock.acquire()
work = queue.Queue(); work.put(42)
ticks = []
def tick(stop=threading.Event()):
    while not stop.wait(0.01): ticks.append(1)
ticking = threading.Thread(target=tick, daemon=True); ticking.start()
reading, writing = os.pipe(); os.write(writing, b"in the pipe")
notes = open("/root/notes.txt", "w+"); notes.write("a file"); notes.flush()
database = sqlite3.connect("/root/data.db"); database.execute("create table t (a)"); database.commit()
os.mkdir("/root/work"); os.chdir("/root/work"); os.mkdir("folder"); os.symlink("folder", "link")
os.environ["MINE"] = "yes"
os.truncate(os.open("sparse", os.O_CREAT | os.O_RDWR), 1 << 50)
os.remove("/etc/hostname")
"""
LOOK = (
    "sum(numbers), len(many), many[-1]",
    "lock._is_owned(), work.get(), os.read(reading, 100)",
    "before = len(ticks); ticking.join(0.1); len(ticks) > before, ticking.is_alive()",
    "notes.seek(0), notes.read(), open('/root/notes.txt').read()",
    "database.execute('insert into t values (1)'); database.commit(); database.execute('select * from t').fetchall()",
    "os.getcwd(), sorted(os.listdir()), os.readlink('link'), os.environ['MINE'], os.stat('sparse').st_size == 1 << 50",
    "os.path.exists('/etc/hostname'), os.path.exists('/etc/passwd')",
)
SEEN = [
    "(499500, 8388608, 120)",
    "(True, 42, b'in the pipe')",
    "(True, True)",
    "(0, 'a file', 'a file')",
    "[(1,)]",
    "('/root/work', ['folder', 'link', 'sparse'], 'folder', 'yes', True)",
    "(False, True)",
]
