"""Each system call that could move a wall is refused, with the error that the list says."""

from __future__ import annotations

import pytest

from ramet import Sandbox
from ramet.isolation.kernel.seccomp import allowed_names
from tests.walls.attempts import attempt, ending, value

_AT_FDCWD = -100
_NEW_NAMESPACES = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "network": 0x40000000,
}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("mount", "b'none', b'/tmp', b'tmpfs', 0, 0"),
        ("mount", "b'/', b'/tmp', 0, 0x1000, 0"),
        ("mount", "0, b'/usr', 0, 0x1020, 0"),
        ("umount2", "b'/proc', 2"),
        ("umount2", "b'/usr', 0"),
        ("pivot_root", "b'/tmp', b'/tmp'"),
        ("chroot", "b'/tmp'"),
        ("open_tree", "-100, b'/', 1"),
        ("fsopen", "b'tmpfs', 0"),
        ("fsconfig", "0, 6, 0, 0, 0"),
        ("fsmount", "0, 0, 0"),
        ("fspick", "-100, b'/', 0"),
        ("move_mount", "0, b'', -100, b'/tmp', 4"),
        ("mount_setattr", "-100, b'/usr', 0, ctypes.create_string_buffer(32), 32"),
    ],
)
def test_the_file_tree_cannot_be_rebuilt(walled: Sandbox, name: str, arguments: str) -> None:
    assert attempt(walled, name, arguments) == "EPERM"


@pytest.mark.parametrize("kind", _NEW_NAMESPACES)
def test_unshare_makes_no_namespace(walled: Sandbox, kind: str) -> None:
    assert attempt(walled, "unshare", str(_NEW_NAMESPACES[kind])) == "EPERM"


@pytest.mark.parametrize("flag", [0x80, 0x200, 0x400])
def test_unshare_is_refused_for_everything_else_too(walled: Sandbox, flag: int) -> None:
    """Time namespaces, file system attributes, descriptor tables."""
    assert attempt(walled, "unshare", str(flag)) == "EPERM"


@pytest.mark.parametrize("kind", _NEW_NAMESPACES)
def test_clone_makes_no_namespace(walled: Sandbox, kind: str) -> None:
    assert attempt(walled, "clone", f"{_NEW_NAMESPACES[kind]} | 17, 0, 0, 0, 0") == "EPERM"


def test_clone3_does_not_exist(walled: Sandbox) -> None:
    """Its flags lie in memory, where a filter cannot read them; C libraries fall back to clone."""
    assert attempt(walled, "clone3", "ctypes.create_string_buffer(88), 88") == "ENOSYS"


@pytest.mark.parametrize("flag", [0x8000, 0x800000], ids=["CLONE_PARENT", "CLONE_UNTRACED"])
def test_clone_makes_no_child_of_the_engine(walled: Sandbox, flag: int) -> None:
    assert attempt(walled, "clone", f"{flag} | 17, 0, 0, 0, 0") == "ENOSYS"


def test_clone_makes_no_process_that_shares_memory(walled: Sandbox) -> None:
    assert attempt(walled, "clone", "0x100 | 17, 0, 0, 0, 0") == "EPERM"


def test_an_ordinary_fork_works(walled: Sandbox) -> None:
    assert value(walled, "subprocess.run(['/bin/true']).returncode") == 0


@pytest.mark.parametrize("name", ["mnt", "pid", "user", "net", "ipc", "uts", "cgroup"])
def test_setns_joins_no_namespace_not_even_the_own_one(walled: Sandbox, name: str) -> None:
    number = "308"
    assert value(walled, f"call({number}, os.open('/proc/self/ns/{name}', os.O_RDONLY), 0)") == "ENOSYS"


@pytest.mark.parametrize("name", ["mnt", "pid", "user", "net", "ipc", "uts", "cgroup"])
def test_the_namespaces_of_the_init_cannot_be_opened(walled: Sandbox, name: str) -> None:
    assert value(walled, f"refusal(os.open, '/proc/1/ns/{name}', os.O_RDONLY)") == "EACCES"


def test_a_namespace_does_not_give_its_parent(walled: Sandbox) -> None:
    ask_parent = (
        "[refusal(fcntl.ioctl, os.open('/proc/self/ns/user', os.O_RDONLY), request) for request in (0xb702, 0xb701)]"
    )
    assert value(walled, ask_parent) == ["EPERM", "EPERM"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ptrace", "0, 0, 0, 0"),
        ("ptrace", "16, 1, 0, 0"),
        ("ptrace", "0x4206, 1, 0, 0"),
        ("process_vm_readv", "1, 0, 0, 0, 0, 0"),
        ("process_vm_writev", "1, 0, 0, 0, 0, 0"),
        ("process_madvise", "0, 0, 0, 0, 0"),
        ("kcmp", "1, os.getpid(), 0, 0, 0"),
    ],
)
def test_no_process_looks_into_another(walled: Sandbox, name: str, arguments: str) -> None:
    assert attempt(walled, name, arguments) == "EPERM"


def test_descriptors_cannot_be_taken_from_the_init(walled: Sandbox) -> None:
    assert value(walled, "[call(438, os.pidfd_open(1), number, 0) for number in range(3, 10)]") == ["ENOSYS"] * 7


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("keyctl", "0, -3, 0, 0, 0"),
        ("add_key", "b'user', b'x', b'y', 1, -3"),
        ("request_key", "b'user', b'x', 0, -3"),
        ("bpf", "0, ctypes.create_string_buffer(72), 72"),
        ("perf_event_open", "ctypes.create_string_buffer(112), 0, -1, -1, 0"),
        ("userfaultfd", "0"),
        ("fanotify_init", "0, 0"),
        ("open_by_handle_at", "-100, 0, 0"),
        ("name_to_handle_at", "-100, b'/', 0, 0, 0"),
        ("init_module", "b'x', 1, b''"),
        ("finit_module", "0, b'', 0"),
        ("delete_module", "b'x', 0"),
        ("kexec_load", "0, 0, 0, 0"),
        ("kexec_file_load", "0, 0, 0, b'', 0"),
        ("reboot", "0xfee1dead, 672274793, 0, 0"),
        ("swapon", "b'/tmp/x', 0"),
        ("swapoff", "b'/tmp/x'"),
        ("acct", "b'/tmp/x'"),
        ("syslog", "3, ctypes.create_string_buffer(64), 64"),
        ("iopl", "3"),
        ("ioperm", "0, 1, 1"),
        ("quotactl", "0, 0, 0, 0"),
        ("settimeofday", "ctypes.create_string_buffer(16), 0"),
        ("clock_settime", "0, ctypes.create_string_buffer(16)"),
        ("adjtimex", "ctypes.create_string_buffer(256)"),
        ("clock_adjtime", "0, ctypes.create_string_buffer(256)"),
        ("sethostname", "b'x', 1"),
        ("setdomainname", "b'x', 1"),
    ],
)
def test_the_kernel_and_the_machine_are_out_of_reach(walled: Sandbox, name: str, arguments: str) -> None:
    assert attempt(walled, name, arguments) == "EPERM"


@pytest.mark.parametrize("name", ["io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup", "io_submit"])
def test_rings_do_not_exist_so_that_programs_fall_back(walled: Sandbox, name: str) -> None:
    assert attempt(walled, name, "8, ctypes.create_string_buffer(120), 0, 0, 0, 0") == "ENOSYS"


@pytest.mark.promise("wall-system-calls")
@pytest.mark.parametrize("number", [180, 236, 500, 1023, 0x3FFFFFFF])
def test_calls_that_nobody_listed_do_not_exist(walled: Sandbox, number: int) -> None:
    assert value(walled, f"call({number}, 0, 0, 0)") == "ENOSYS"


def test_close_range_does_not_unshare_the_descriptor_table(walled: Sandbox) -> None:
    assert attempt(walled, "close_range", "900, 901, 2") == "EPERM"
    assert attempt(walled, "close_range", "900, 901, 0") == 0


# mov eax, NUMBER; (int 0x80 | syscall); ret
_MACHINE_CODE = """
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b'\\xb8' + struct.pack('<I', {number}) + {instruction!r} + b'\\xc3')
entry = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
entry()
"""


def test_a_32_bit_system_call_ends_the_process(attacker: Sandbox) -> None:
    result = attacker.run_code(_MACHINE_CODE.format(number=20, instruction=b"\xcd\x80"))
    assert ending(result) == ("lost", "signal 31", 128 + 31)


@pytest.mark.parametrize("number", [39, 165, 520])
def test_x32_system_calls_do_not_exist(walled: Sandbox, number: int) -> None:
    code = _MACHINE_CODE.format(number=0x40000000 | number, instruction=b"\x0f\x05")
    assert value(walled, code) == -38  # ENOSYS


def test_the_filter_holds_for_programs_that_a_cell_starts(walled: Sandbox) -> None:
    code = "subprocess.run([sys.executable, '-c', 'import ctypes, os; c = ctypes.CDLL(None, use_errno=True); " + (
        "print(c.unshare(0x10000000), ctypes.get_errno())'], capture_output=True, text=True).stdout"
    )
    assert value(walled, code) == "-1 1\n"


def test_a_filter_of_ones_own_cannot_bring_a_call_back(attacker: Sandbox) -> None:
    """All filters are asked, and the strictest answer counts."""
    allow_all = """
program = struct.pack('<HBBI', 6, 0, 0, 0x7fff0000)
keep = ctypes.create_string_buffer(program)
header = struct.pack('<HxxxxxxQ', 1, ctypes.addressof(keep))
(call(317, 1, 0, header), call(272, 0x10000000))
"""
    assert value(attacker, allow_all) == (0, "EPERM")


def test_a_supervisor_of_ones_own_cannot_bring_a_call_back(attacker: Sandbox) -> None:
    """Its answer "go on" would outrank ours for every call that is not listed, such as setns."""
    listen = """
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 308), (6, 0, 0, 0x7fc00000), (6, 0, 0, 0x7fff0000)]
program = b''.join(struct.pack('<HBBI', *step) for step in steps)
keep = ctypes.create_string_buffer(program)
described = struct.pack('<HxxxxxxQ', len(program) // 8, ctypes.addressof(keep))
[call(317, 1, flags, ctypes.create_string_buffer(described)) for flags in (8, 8 | 1, 8 | 1 | 16, 8 | 1 << 32)]
"""
    assert value(attacker, listen) == ["EPERM"] * 4


def test_a_sandbox_does_not_make_the_host_flush_its_disks(walled: Sandbox) -> None:
    """It is told that it worked; the kernel itself would refuse a descriptor that is not open."""
    assert attempt(walled, "syncfs", "-1") == 0
    assert not {"sync", "syncfs"} & allowed_names()
    assert attempt(walled, "sync", "") == 0
