"""No thread of a sandbox holds any power, and no program gives it one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ramet import Sandbox, Template
from tests.walls.attempts import armed, value

_STATUS = """
def status(task):
    lines = open(f'/proc/self/task/{task}/status').read().splitlines()
    return dict(line.split(':\\t', 1) for line in lines if ':\\t' in line)
names = ('CapInh', 'CapPrm', 'CapEff', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'Uid')
[[(name, status(task)[name].strip()) for name in names] for task in os.listdir('/proc/self/task')]
"""
_POWERLESS = [
    ("CapInh", "0" * 16),
    ("CapPrm", "0" * 16),
    ("CapEff", "0" * 16),
    ("CapAmb", "0" * 16),
    ("NoNewPrivs", "1"),
    ("Seccomp", "2"),
    ("Uid", "0\t0\t0\t0"),
]

# A module of the interpreter's own that leaves threads waiting when it is imported.
_THREADED = "concurrent.futures.thread"


@pytest.fixture(scope="module", params=["default", "python-datasci"])
def any_template(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(request.param) as sandbox:
        yield armed(sandbox)


@pytest.mark.promise("wall-capabilities")
def test_no_thread_holds_a_capability(any_template: Sandbox) -> None:
    threads = value(any_template, _STATUS)
    assert threads == [_POWERLESS] * len(threads)


def test_the_threads_of_libraries_are_there_again(any_template: Sandbox) -> None:
    """Else the test above proves little of the threads that a thaw re-creates."""
    expected = any_template.info().template == "python-datasci"
    assert value(any_template, "len(os.listdir('/proc/self/task')) > 1") is expected


def test_new_threads_and_programs_hold_none_either(any_template: Sandbox) -> None:
    code = """
seen = []
def look():
    seen.extend(line for line in open('/proc/thread-self/status') if line.startswith('CapEff'))
thread = threading.Thread(target=look)
thread.start(); thread.join()
seen + [subprocess.run(['grep', 'CapEff', '/proc/self/status'], capture_output=True, text=True).stdout]
"""
    assert value(any_template, code) == ["CapEff:\t" + "0" * 16 + "\n"] * 2


def test_secure_bits_are_locked(any_template: Sandbox) -> None:
    """NOROOT, NO_SETUID_FIXUP and KEEP_CAPS off: uid 0 is an ordinary number, for ever."""
    get, put = 27, 28
    assert value(any_template, f"call(157, {get}, 0, 0, 0, 0)") == 0x2F
    assert value(any_template, f"call(157, {put}, 0, 0, 0, 0)") == "EPERM"


def test_capabilities_cannot_be_taken_back(any_template: Sandbox) -> None:
    """capset to all of them."""
    assert value(any_template, "call(126, struct.pack('II', 0x20080522, 0), b'\\xff' * 24)") == "EPERM"


def test_no_new_privs_cannot_be_taken_off(any_template: Sandbox) -> None:
    assert value(any_template, "call(157, 38, 0, 0, 0, 0)") == "EINVAL"


@pytest.mark.parametrize("kind", ["setuid", "setgid"])
@pytest.mark.parametrize("number", [1, 1000, 65534])
def test_no_other_user_can_be_become(walled: Sandbox, kind: str, number: int) -> None:
    assert value(walled, f"refusal(os.{kind}, {number})") == "EINVAL"  # not in the map


def test_groups_cannot_be_set(walled: Sandbox) -> None:
    assert value(walled, "refusal(os.setgroups, [0])") == "EPERM"


_SETUID_PROGRAMS = {
    "mount": ("mount -t tmpfs none /mnt", "mount: /mnt: permission denied."),
    "umount": ("umount /proc", "umount: /proc: must be superuser to unmount."),
    "su": ("su -c true root", "su: "),
    "newgrp": ("echo true | newgrp", "setgroups: Operation not permitted"),
    "sudo": ("sudo -n true", "sudo: "),
    "ping": ("ping -c 1 -W 1 192.0.2.1", "ping: "),
}


@pytest.mark.parametrize("program", _SETUID_PROGRAMS)
def test_setuid_programs_have_no_power(walled: Sandbox, program: str) -> None:
    command, refused = _SETUID_PROGRAMS[program]
    result = walled.run_code(f"command -v {program} > /dev/null || exit 77; {command}", language="bash", timeout=20)
    assert result.exit_code == 77 or refused in result.stderr  # 77: the host does not have it
    assert value(walled, "os.path.ismount('/mnt')") is False
    assert value(walled, "os.path.ismount('/proc')") is True


def test_what_a_setuid_program_starts_holds_no_capability(walled: Sandbox) -> None:
    script = "command -v newgrp > /dev/null || exit 77; echo 'grep -h Cap /proc/self/status' | newgrp"
    result = walled.run_code(script, language="bash", timeout=20)
    if result.exit_code == 77:
        pytest.skip("this host has no newgrp")
    held = dict(line.split() for line in result.stdout.splitlines())
    assert {held[name] for name in ("CapInh:", "CapPrm:", "CapEff:", "CapAmb:")} == {"0" * 16}


def test_no_mount_honours_setuid_bits(walled: Sandbox) -> None:
    """But single device files, which are no programs."""
    mounts = value(walled, "[(line.split()[4], line.split()[5]) for line in open('/proc/self/mountinfo')]")
    suid = [point for point, options in mounts if "nosuid" not in options.split(",")]
    assert [point for point in suid if not point.startswith(("/dev/", "/proc/"))] == []


def test_capabilities_cannot_be_put_on_a_file(walled: Sandbox) -> None:
    grant = "struct.pack('<IIIII', 0x02000001, 0xffffffff, 0, 0xffffffff, 0)"
    assert (
        value(
            walled,
            f"open('/tmp/capable', 'w').close(); refusal(os.setxattr, '/tmp/capable', 'security.capability', {grant})",
        )
        == "EPERM"
    )


def test_the_walls_are_told_as_they_stand(walled: Sandbox) -> None:
    walls = walled.info().walls
    assert walls["capabilities"] == "none"
    assert walls["no_new_privs"] is True
    assert walls["seccomp"] == "filter"
    assert walls["namespaces"] == ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"]


def test_the_region_of_the_thaw_is_ordinary_memory_afterwards(attacker: Sandbox) -> None:
    """Lists of calls were run there. What is left may be read, changed and taken away: nobody looks at it again."""
    code = """
places = [line.split()[:2] for line in open('/proc/self/maps') if line.startswith('1fa0')]
answers = set()
for place, access in places:
    at, end = (int(part, 16) for part in place.split('-'))
    if 'w' in access: ctypes.memset(at, 0xcc, end - at)
    answers.add(call(11, at, end - at))
(len(places) > 0, answers, [access for _, access in places if 'w' in access and 'x' in access])
"""
    assert value(attacker, code) == (True, {0}, [])
    assert value(attacker, "6 * 7") == 42
    result = attacker.run_code("import os; os._exit(5)")
    assert (result.state, result.exit_code) == ("lost", 5)
    assert attacker.run_code("6 * 7").value == "42"


def test_a_template_of_ones_own_has_the_same_walls() -> None:
    with Sandbox(Template("walls-own", preload=[_THREADED])) as sandbox:
        threads = value(armed(sandbox), _STATUS)
        assert threads == [_POWERLESS] * len(threads)


@pytest.mark.deep("load")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave its groups")
def test_the_groups_of_a_root_owner_stay_outside() -> None:
    program = "from ramet import Sandbox; print(Sandbox().run_code('import os; os.getgroups()').value)"
    done = subprocess.run(
        [sys.executable, "-c", program], extra_groups=[4, 27], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
