"""What /proc shows and what can be done through it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from ramet import Sandbox
from tests.walls.attempts import value


@pytest.mark.parametrize(
    "path",
    [
        "kernel/core_pattern",
        "kernel/hostname",
        "kernel/modprobe",
        "kernel/sysrq",
        "kernel/randomize_va_space",
        "kernel/ns_last_pid",
        "vm/drop_caches",
        "vm/overcommit_memory",
        "fs/file-max",
        "net/ipv4/ip_forward",
        "user/max_user_namespaces",
        "user/max_pid_namespaces",
        "user/max_mnt_namespaces",
        "user/max_inotify_instances",
    ],
)
def test_kernel_settings_cannot_be_written(walled: Sandbox, path: str) -> None:
    if value(walled, f"os.path.exists('/proc/sys/{path}')"):
        refused = (
            "EROFS" if path == "kernel/ns_last_pid" else "EACCES"
        )  # the only one that everybody may write elsewhere
        assert value(walled, f"refusal(writing, '/proc/sys/{path}', b'1')") == refused
        assert value(walled, f"refusal(writing, '/proc/self/root/proc/sys/{path}', b'1')") == refused


@pytest.mark.parametrize("folder", ["sys", "bus", "irq"])
def test_kernel_settings_are_read_only_even_for_their_owner(walled: Sandbox, folder: str) -> None:
    """A second wall: the mount itself takes no writes."""
    options = value(
        walled, f"[line.split()[5] for line in open('/proc/self/mountinfo') if line.split()[4] == '/proc/{folder}']"
    )
    assert [option.split(",")[0] for option in options] == ["ro"]


@pytest.mark.parametrize("kind", ["user", "pid", "uts", "ipc", "net", "mnt", "cgroup", "time"])
def test_no_namespace_may_be_made_even_without_the_filter(walled: Sandbox, kind: str) -> None:
    """A second wall behind the first: the pod's own limit of namespaces is zero."""
    assert value(walled, f"int(reading('/proc/sys/user/max_{kind}_namespaces'))") == 0


@pytest.mark.parametrize(
    "name",
    ["kcore", "kallsyms", "keys", "key-users", "kmsg", "timer_list", "interrupts", "config.gz", "cmdline", "iomem",
     "ioports", "slabinfo", "vmallocinfo", "kpagecount", "kpageflags", "sysrq-trigger", "sched_debug", "partitions"],
)  # fmt: skip
def test_files_that_tell_of_the_host_are_empty(walled: Sandbox, name: str) -> None:
    assert value(walled, f"refusal(reading, '/proc/{name}')") in (b"", "ENOENT")


def test_a_write_to_sysrq_goes_nowhere(walled: Sandbox) -> None:
    """The file is missing or is /dev/null."""
    code = "import stat; os.path.exists('/proc/sysrq-trigger') and os.stat('/proc/sysrq-trigger').st_rdev"
    assert value(walled, code) in (False, os.makedev(1, 3))


@pytest.mark.parametrize("name", ["acpi", "scsi", "fs", "driver", "asound", "pressure"])
def test_folders_of_drivers_are_empty(walled: Sandbox, name: str) -> None:
    assert value(walled, f"refusal(os.listdir, '/proc/{name}')") in ([], "ENOENT")


@pytest.mark.parametrize("name", ["bus", "irq", "irq/default_smp_affinity", "mtrr"])
def test_hardware_cannot_be_steered(walled: Sandbox, name: str) -> None:
    answer = value(walled, f"refusal(writing, '/proc/{name}', b'1')")
    assert answer in ("EROFS", "EISDIR", "ENOENT", "EACCES", "EPERM")


def test_there_is_no_cgroup_file_system(walled: Sandbox) -> None:
    assert value(walled, "refusal(os.listdir, '/sys/fs/cgroup')") == "ENOENT"
    assert (
        value(walled, "[line for line in open('/proc/self/mountinfo') if ' cgroup' in line.partition(' - ')[2]]") == []
    )


def test_the_name_of_the_machine_is_not_the_hosts(walled: Sandbox) -> None:
    assert value(walled, "(socket.gethostname(), os.uname().nodename)") == ("sandbox", "sandbox")


def test_the_maps_of_ids_cannot_be_written(walled: Sandbox) -> None:
    for name in ("uid_map", "gid_map", "projid_map"):
        assert value(walled, f"refusal(writing, '/proc/self/{name}', b'0 0 1')") == "EPERM"
    assert value(walled, "refusal(writing, '/proc/self/setgroups', b'allow')") == "EACCES"


def test_memory_of_the_own_process_can_be_read_and_that_of_the_init_not(walled: Sandbox) -> None:
    """/proc/self works as everywhere: the REPL is dumpable."""
    assert value(walled, "refusal(os.open, '/proc/self/mem', os.O_RDWR) not in ('EACCES', 'EPERM')") is True
    assert value(walled, "refusal(os.open, '/proc/1/mem', os.O_RDWR)") == "EACCES"


# Descriptors and environment


# Without the one that lists them.
_OPEN = """
import os
paths = {int(name): f'/proc/self/fd/{name}' for name in os.listdir('/proc/self/fd')}
{number: os.readlink(path) for number, path in paths.items() if os.path.lexists(path)}
"""


def test_exactly_our_six_descriptors_are_open(walled: Sandbox) -> None:
    with Sandbox() as fresh:
        seen = value(
            fresh,
            _OPEN,
        )
    assert sorted(seen) == [0, 1, 2, 1000, 1001, 1002]
    assert seen[0] == "/dev/null"
    assert seen[1] == seen[1001]
    assert seen[2] == seen[1002]
    assert seen[1].startswith("pipe:")
    assert seen[1000].startswith("socket:")


def test_a_child_process_inherits_only_the_three_standard_descriptors(walled: Sandbox) -> None:
    assert walled.run_code("ls /proc/self/fd", language="bash").stdout.split() == ["0", "1", "2", "3"]


def test_the_template_with_libraries_leaves_no_descriptor_open(datasci: Sandbox) -> None:
    seen = value(
        datasci,
        "import os; sorted(int(n) for n in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{n}'))",
    )
    assert seen == [0, 1, 2, 1000, 1001, 1002]


@pytest.fixture(scope="module")
def datasci() -> Iterator[Sandbox]:
    with Sandbox("python-datasci") as sandbox:
        yield sandbox


def test_variables_of_the_owner_are_in_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from ramet.transport import embedded

    canary = f"canary-{uuid.uuid4().hex}"
    monkeypatch.setenv("RAMET_CANARY", canary)
    engine = embedded.EmbeddedEngine(embedded.start_process)
    monkeypatch.setattr(embedded, "_default", engine)
    try:
        with Sandbox() as sandbox:
            search = f"""
import os, re
word = {canary[:20]!r}
found = [name for name, text in os.environ.items() if word in text or 'CANARY' in name]
for name in ('environ', 'cmdline', 'auxv'):
    found += [name] if word.encode() in open(f'/proc/self/{{name}}', 'rb').read() else []
for line in open('/proc/self/maps'):
    first, last = (int(part, 16) for part in line.split()[0].split('-'))
    if line.split()[1].startswith('r') and '[v' not in line:
        with open('/proc/self/mem', 'rb', buffering=0) as memory:
            memory.seek(first)
            try:
                data = memory.read(last - first)
            except OSError:
                continue
        # A pattern that does not match its own text: this cell lies in the memory that is searched.
        found += re.findall(rb'RAMET_CANAR[Y]=canary-[0-9a-f]{{32}}', data)
found
"""
            assert value(sandbox, search) == []
    finally:
        engine.close()


def test_the_initial_environment_of_the_process_is_that_of_the_template(walled: Sandbox) -> None:
    first = value(
        walled,
        "sorted(entry.split(b'=')[0].decode() for entry in reading('/proc/self/environ').split(b'\\0') if entry)",
    )
    assert "HOME" in first
    assert not {name for name in first if name.startswith(("PYTEST", "RAMET", "SSH", "SUDO", "XDG"))}
    assert "PYTEST_CURRENT_TEST" in os.environ
