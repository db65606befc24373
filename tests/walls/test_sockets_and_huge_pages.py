"""System calls that are answered by their arguments: which sockets are made, which memory, whose limits are set."""

from __future__ import annotations

import struct

import pytest

from ramet import Sandbox
from ramet.isolation.kernel.seccomp import compile_filter
from ramet.isolation.kernel.syscall_numbers import X86_64
from tests.walls.attempts import attempt, value

_PAIR = "ctypes.create_string_buffer(8)"


@pytest.mark.parametrize(
    "family",
    [pytest.param(2, id="inet"), pytest.param(10, id="inet6"), pytest.param(16, id="netlink"),
     pytest.param(17, id="packet"), pytest.param(21, id="rds"), pytest.param(29, id="can"),
     pytest.param(30, id="tipc"), pytest.param(31, id="bluetooth"), pytest.param(38, id="alg"),
     pytest.param(40, id="vsock"), pytest.param(43, id="smc"), pytest.param(44, id="xdp")],
)  # fmt: skip
def test_pairs_are_made_of_unix_sockets_only(walled: Sandbox, family: int) -> None:
    """The kernel makes two sockets of a family, and loads its module, before it says that the family has no pairs."""
    assert attempt(walled, "socketpair", f"{family}, 1, 0, {_PAIR}") == "EAFNOSUPPORT"
    assert attempt(walled, "socketpair", f"{family} | 1 << 32, 1, 0, {_PAIR}") == "EAFNOSUPPORT"


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET"])
def test_a_pair_of_unix_sockets_works(walled: Sandbox, kind: str) -> None:
    code = f"a, b = socket.socketpair(socket.AF_UNIX, socket.{kind}); _ = a.send(b'x'); b.recv(1)"
    assert value(walled, code) == b"x"


@pytest.mark.parametrize("protocol", [2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 18, 19, 20, 21, 22, -1])
def test_netlink_of_other_parts_of_the_kernel_is_refused(walled: Sandbox, protocol: int) -> None:
    assert attempt(walled, "socket", f"16, 3, {protocol}") == "EPROTONOSUPPORT"
    assert attempt(walled, "socket", f"16 | 1 << 32, 3, {protocol}") == "EPROTONOSUPPORT"


def test_addresses_and_sockets_of_the_own_network_can_be_asked_for(walled: Sandbox) -> None:
    assert value(walled, "[name for _, name in socket.if_nameindex()]") == ["lo"]
    assert value(walled, "[socket.socket(16, socket.SOCK_RAW, protocol).proto for protocol in (0, 4)]") == [0, 4]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("mmap", "0, 2 << 20, 3, 0x40022, -1, 0", "ENOMEM"),
        ("mmap", "0, 2 << 20, 3, 0x40021, -1, 0", "ENOMEM"),
        ("mmap", "0, 2 << 20, 3, 0x40022 | 21 << 26, -1, 0", "ENOMEM"),
        ("mmap", "0, 1 << 30, 3, 0x40022 | 30 << 26, -1, 0", "ENOMEM"),
        ("memfd_create", "b'x', 4", "ENOSYS"),
        ("memfd_create", "b'x', 4 | 21 << 26", "ENOSYS"),
        ("shmget", "0, 2 << 20, 0o5600", "ENOMEM"),
    ],
)
def test_huge_pages_of_the_host_are_not_handed_out(walled: Sandbox, name: str, arguments: str, expected: str) -> None:
    assert attempt(walled, name, arguments) == expected


def test_the_filter_refuses_huge_pages_before_the_host_is_asked_for_them() -> None:
    """A host that has reserved none refuses them too: what the filter says is read from the filter."""
    program = compile_filter()
    refused = 0x00050000
    for name, huge, plain in (
        ("mmap", (0, 4096, 3, 0x40022, 0, 0), (0, 4096, 3, 0x22, 0, 0)),
        ("memfd_create", (0, 5, 0, 0, 0, 0), (0, 1, 0, 0, 0, 0)),
        ("shmget", (0, 4096, 0o5600, 0, 0, 0), (0, 4096, 0o1600, 0, 0, 0)),
    ):
        assert _answer(program, X86_64[name], huge) & 0xFFFF0000 == refused, name
        assert _answer(program, X86_64[name], plain) == 0x7FFF0000, name


def _answer(program: bytes, number: int, arguments: tuple[int, ...]) -> int:
    """What the kernel would make of the filter: the few instructions that it is made of, one after the other."""
    data = struct.pack("<IIQ6Q", number, 0xC000003E, 0, *arguments)
    steps = list(struct.iter_unpack("<HBBI", program))
    at, held = 0, 0
    while True:
        code, if_so, if_not, operand = steps[at]
        at += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            held = int.from_bytes(data[operand : operand + 4], "little")
            continue
        holds = {0x15: held == operand, 0x45: bool(held & operand), 0x35: held >= operand}[code]
        at += if_so if holds else if_not


def test_the_limits_of_the_init_are_not_the_sandboxes_to_set(walled: Sandbox) -> None:
    code = (
        "kinds = [getattr(resource, name) for name in dir(resource) if name.startswith('RLIMIT_')]\n"
        "before = [resource.prlimit(1, kind) for kind in kinds]\n"
        "answers = {refusal(resource.prlimit, 1, kind, (3, 3)) for kind in kinds}\n"
        "(answers, before == [resource.prlimit(1, kind) for kind in kinds])"
    )
    assert value(walled, code) == ({"EPERM"}, True)


def test_a_program_sets_the_limits_of_its_own_children(walled: Sandbox) -> None:
    code = """
child = subprocess.Popen(['sleep', '60'])
before = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
_ = resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (33, before[1]))
found = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)[0], resource.prlimit(0, resource.RLIMIT_NOFILE)[0] != 33
child.kill(); _ = child.wait()
found
"""
    assert value(walled, code) == (33, True)
