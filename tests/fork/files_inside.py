"""Runs a coroutine where an engine runs, in its namespaces, with a holder and a maker of pods but nothing else."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from ramet.isolation import launch

# Takes the place of the engine's own start; what it finds on standard error is the test's to show.
_PROGRAM = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import argparse, asyncio, json, os, resource, socket, traceback
from ramet.isolation.kernel.cgroups import Delegation
from ramet.isolation.holder import Broker, Holder
from ramet.isolation.files.interpreter import find
from ramet.isolation.pods import PodMaker
from ramet.protocol.values.specs import Limits

parser = argparse.ArgumentParser()
for name in ("primary", "owner-pidfd", "broker"):
    parser.add_argument("--" + name, type=int)
parser.add_argument("--cgroups", type=json.loads)
parser.add_argument("--guest")
chosen, _ = parser.parse_known_args()  # what an engine is told besides is not for this
os.umask(0o022)
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # as the engine does
LIMITS = Limits(memory_bytes=1 << 30, pids=64, cpus=2.0, disk_bytes=1 << 30)

class World:
    def __init__(self, holder, maker, interpreter):
        self.holder, self.maker, self.interpreter = holder, maker, interpreter

    async def pod(self, image=None, limits=LIMITS, mounts=()):
        return await self.maker.take(self.interpreter, limits, mounts, image)

def below(pod, path=""):
    return f"/proc/self/fd/{pod.root}{path}"

def trees(world):
    return len(os.listdir(f"/proc/{world.holder_pid}/root/trees"))

async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)

async def start():
    delegation = Delegation(chosen.cgroups["version"], chosen.cgroups["folders"])
    broker = Broker(socket.socket(fileno=chosen.broker))
    holder = await Holder.start(broker, chosen.guest)
    maker = PodMaker(holder, broker, delegation, 0)
    world = World(holder, maker, find(sys.executable))
    with open(f"/proc/self/fdinfo/{holder.pidfd}") as lines:
        world.holder_pid = int(next(line for line in lines if line.startswith("Pid:")).split()[1])
    try:
        return await test(world)
    finally:
        await maker.close()
        holder.close()

def run():
    primary = socket.socket(fileno=chosen.primary)
    try:
        answer = {"value": asyncio.run(start())}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    primary.sendall(json.dumps(answer).encode())
"""


def run_inside(code: str, monkeypatch: pytest.MonkeyPatch, seconds: float = 120) -> object:
    """What `async def test(world)` of the code returns, through JSON. Its failure is ours."""
    ours, theirs = socket.socketpair()
    with monkeypatch.context() as patch:
        patch.setattr(launch, "_BOOT", _PROGRAM + code + "\nrun()\n")
        process = launch.start_engine(theirs)
    theirs.close()
    ours.settimeout(seconds)
    with ours:
        data = bytearray()
        while part := ours.recv(65536):
            data += part
    process.wait(10)
    assert data, process.stderr_tail()
    answer = json.loads(bytes(data))
    assert "error" not in answer, answer["error"]
    return answer["value"]


def program(name: str) -> str:
    """A program for `run_inside` that is too long for a string in a test."""
    return (Path(__file__).parent / name).read_text()
