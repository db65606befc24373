"""What runs on a terminal is behind the walls of its sandbox, no fewer and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramet import Sandbox
from tests.conftest import Neighbour

# Only the standard library, and nothing of the REPL: it runs in a program of its own in both places.
_LOOK = """
import ctypes, errno, json, os, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    return errno.errorcode[ctypes.get_errno()] if result == -1 else result
status = dict(line.rstrip('\\n').split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)
names = ('CapInh', 'CapPrm', 'CapEff', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'Seccomp_filters', 'Uid', 'Gid', 'Groups',
         'Umask', 'SigBlk', 'TracerPid', 'Cpus_allowed', 'Speculation_Store_Bypass')
limits = [name for name in sorted(dir(resource)) if name.startswith('RLIMIT_')]
calls = {'unshare': (272, 0x10000000), 'mount': (165, b'x', b'/mnt', b'tmpfs', 0, 0), 'ptrace': (101, 0, 0, 0, 0),
         'setns': (308, 0, 0), 'keyctl': (250, 0, 0), 'bpf': (321, 0, 0, 0), 'io_uring_setup': (425, 1, 0),
         'clone3': (435, 0, 0), 'pidfd_getfd': (438, 0, 0, 0), 'chroot': (161, b'/'), 'userfaultfd': (323, 0),
         'open_tree': (428, 0, b'/', 1), 'perf_event_open': (298, 0, 0, -1, -1, 0), 'socket(AF_PACKET)': (41, 17, 3, 0),
         'capset': (126, b'\\x22\\x05\\x08\\x20' + bytes(4), b'\\xff' * 24), 'secure bits': (157, 28, 0, 0, 0, 0),
         'no_new_privs': (157, 38, 0, 0, 0, 0), 'sethostname': (170, b'x', 1), 'openat2': (437, -100, b'/', 0, 0),
         'seccomp listener': (317, 1, 8, 0)}
print(json.dumps({
    'status': {name: status.get(name, '').strip() for name in names},
    'bounding': status['CapBnd'],
    'secure bits': call(157, 27, 0, 0, 0, 0),
    'namespaces': {name: os.readlink(f'/proc/self/ns/{name}') for name in sorted(os.listdir('/proc/self/ns'))},
    'groups': open('/proc/self/cgroup').read(),
    'maps': [open(f'/proc/self/{name}').read() for name in ('uid_map', 'gid_map', 'setgroups')],
    'limits': {name: resource.getrlimit(getattr(resource, name)) for name in limits},
    'oom': open('/proc/self/oom_score_adj').read(),
    'nice': os.nice(0),
    'mounts': open('/proc/self/mountinfo').read(),
    'root': os.stat('/').st_ino,
    'descriptors': sorted(int(name) for name in os.listdir('/proc/self/fd'))[:-1],
    'scheduler': os.sched_getscheduler(0),
    'keyring': open('/proc/keys').read(),
    'personality': call(135, 0xffffffff),
    'calls': {name: call(*arguments) for name, arguments in calls.items()},
    'parent': os.getppid() if os.environ.get('LEADER') else 0,
    'environment': sorted(name for name in os.environ if name not in ('_', 'SHLVL', 'OLDPWD')),
}))
"""


def look_in_terminal(sandbox: Sandbox) -> dict[str, Any]:
    sandbox.files.write("/root/look.py", _LOOK)
    terminal = sandbox.terminal(["python3", "-I", "/root/look.py"], env={"LEADER": "1"})
    text = b"".join(terminal.read()).decode()
    assert terminal.wait() == 0, text
    found: dict[str, Any] = json.loads(text)
    return found


def look_in_cell(sandbox: Sandbox) -> dict[str, Any]:
    sandbox.files.write("/root/look.py", _LOOK)
    result = sandbox.run_code("python3 -I /root/look.py", language="bash")
    assert result.ok, result
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def both(sandbox: Sandbox) -> tuple[dict[str, Any], dict[str, Any]]:
    return look_in_cell(sandbox), look_in_terminal(sandbox)


def test_the_walls_are_those_of_a_cell(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    cell, terminal = both
    different = {name for name in cell if cell[name] != terminal[name]}
    # The bounding set is empty, where that of a cell is only locked away; a terminal has variables of its own.
    assert different == {"bounding", "environment"}
    assert terminal["bounding"] == "0" * 16
    assert set(terminal["environment"]) - set(cell["environment"]) == {"LEADER"}


def test_no_power_and_the_filter(sandbox: Sandbox) -> None:
    found = look_in_terminal(sandbox)
    status = found["status"]
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"], status["Seccomp_filters"]) == ("1", "2", "1")
    assert found["secure bits"] == 0x2F
    assert found["parent"] == 0  # outside: nobody in the sandbox
    assert set(found["calls"].values()) <= {"EPERM", "ENOSYS", "EINVAL", "EAFNOSUPPORT"}


def test_three_descriptors_and_no_more(sandbox: Sandbox) -> None:
    assert look_in_terminal(sandbox)["descriptors"] == [0, 1, 2]


def test_a_setuid_program_gains_nothing(sandbox: Sandbox) -> None:
    terminal = sandbox.terminal("su -c id root; mount -t tmpfs none /mnt; unshare -r id; grep CapEff /proc/self/status")
    text = b"".join(terminal.read()).decode()
    assert "CapEff:\t" + "0" * 16 in text
    assert "uid=0(root) gid=0(root) groups" not in text


def test_limits_of_processes_hold_for_cells_and_terminals_together() -> None:
    with Sandbox(pids=20) as sandbox:
        terminal = sandbox.terminal("for i in $(seq 40); do sleep 1013 & done; echo all; wait")
        text = b""
        for piece in terminal.read():
            text += piece
            if b"Resource temporarily unavailable" in text:
                break
        count = "import os; len([n for n in os.listdir('/proc') if n.isdigit()])"
        result = sandbox.run_code(count)
        assert result.value is not None
        assert int(result.value) <= 21


def test_memory_of_a_terminal_counts(neighbour: Neighbour) -> None:
    with Sandbox(memory_mib=128) as sandbox:
        if "cgroup v" not in str(sandbox.info().walls["memory"]):
            pytest.skip("this host has no writable control group for memory")
        terminal = sandbox.terminal(["python3", "-c", "x = bytearray(500 * 1024 * 1024)"])
        assert terminal.wait() == 137
        assert sandbox.run_code("6 * 7").value == "42"
    neighbour.assert_unharmed()


def test_a_terminal_in_a_fork_has_the_walls_of_the_fork(sandbox: Sandbox) -> None:
    with sandbox.fork(1) as children:
        cell, terminal = look_in_cell(children[0]), look_in_terminal(children[0])
        parent = look_in_terminal(sandbox)
    assert {name for name in cell if cell[name] != terminal[name]} == {"bounding", "environment"}
    assert not {*parent["namespaces"].values()} & {
        link for name, link in terminal["namespaces"].items() if not name.startswith("time")
    }
