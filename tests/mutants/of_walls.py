"""Walls around a sandbox and around our own processes, each left out or opened."""

from __future__ import annotations

from tests.mutants.breakage import Breakage

_POD = "ramet/isolation/native/pod/pod.c"
_POD_INIT = "ramet/isolation/native/pod/init.c"
_POD_TREE = "ramet/isolation/native/pod/tree.c"

WALLS = (
    # System calls
    Breakage(
        "seccomp-filter-is-not-installed",
        "ramet/isolation/native/spawn.c",
        'MUST("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));',
        "",
        ("walls/test_privileges.py::test_the_walls_are_told_as_they_stand",),
    ),
    Breakage(
        "seccomp-allows-ptrace",
        "ramet/isolation/kernel/seccomp.py",
        '"fork vfork execve execveat exit',
        '"ptrace fork vfork execve execveat exit',
        ("walls/test_system_calls.py::test_no_process_looks_into_another",),
    ),
    Breakage(
        "seccomp-allows-unshare",
        "ramet/isolation/kernel/seccomp.py",
        '"sched_yield sched_setparam',
        '"unshare sched_yield sched_setparam',
        ("walls/test_system_calls.py::test_unshare_makes_no_namespace",),
    ),
    Breakage(
        "seccomp-allows-namespaces-in-clone",
        "ramet/isolation/kernel/seccomp.py",
        "_CLONE_NEW_ANY = 0x7E020000",
        "_CLONE_NEW_ANY = 0x0E020000",
        ("walls/test_system_calls.py::test_clone_makes_no_namespace",),
    ),
    Breakage(
        "seccomp-allows-32-bit-calls",
        "ramet/isolation/kernel/seccomp.py",
        "_answer(_RET_KILL_PROCESS),  # 32-bit",
        "_answer(_RET_ALLOW),  # 32-bit",
        ("walls/test_system_calls.py::test_a_32_bit_system_call_ends_the_process",),
    ),
    Breakage(
        "seccomp-allows-a-supervisor-of-ones-own",
        "ramet/isolation/kernel/seccomp.py",
        "_Instruction(_JUMP_SET, 0, 1, _SECCOMP_NEW_LISTENER)",
        "_Instruction(_JUMP_SET, 1, 1, _SECCOMP_NEW_LISTENER)",
        ("walls/test_system_calls.py::test_a_supervisor_of_ones_own_cannot_bring_a_call_back",),
    ),
    Breakage(
        "seccomp-allows-packet-sockets",
        "ramet/isolation/kernel/seccomp.py",
        "_FAMILIES = (_AF_UNIX, 2, 10)",
        "_FAMILIES = (_AF_UNIX, 2, 10, 17)",
        ("walls/test_network.py::test_sockets_of_rare_families_are_not_made",),
    ),
    Breakage(
        "seccomp-allows-set-id-bits",
        "ramet/isolation/kernel/seccomp.py",
        "_SET_ID_BITS = 0o6000",
        "_SET_ID_BITS = 0o4000",
        (
            "walls/test_files_of_the_host.py"
            "::test_a_program_left_in_a_writable_folder_lends_nobody_the_power_of_its_owner",
        ),
    ),
    # Privileges
    Breakage(
        "sandbox-may-gain-privileges",
        "ramet/isolation/native/common.c",
        'MUST("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));',
        "",
        ("walls/test_privileges.py::test_the_walls_are_told_as_they_stand",),
    ),
    Breakage(
        "thaw-keeps-capabilities",
        "ramet/freezing/native/thaw.c",
        "    add_power_drop(l, capability_header, capability_data);",
        "",
        ("walls/test_privileges.py::test_no_thread_holds_a_capability",),
    ),
    Breakage(
        "thaw-leaves-secure-bits-open",
        "ramet/freezing/native/thaw.c",
        'ADD_CALL(l, "lock the secure bits", SYS_prctl, PR_SET_SECUREBITS, WIRE_SECURE_BITS);',
        "",
        ("walls/test_privileges.py::test_secure_bits_are_locked",),
    ),
    Breakage(
        "terminal-keeps-capabilities",
        "ramet/isolation/native/enter.c",
        'MUST("capset", syscall(SYS_capset, &version, none));',
        "",
        ("terminals/test_walls_of_terminals.py::test_no_power_and_the_filter",),
    ),
    Breakage(
        "terminal-has-no-filter",
        "ramet/isolation/native/enter.c",
        'MUST("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program));',
        "(void)program;",
        ("terminals/test_walls_of_terminals.py::test_no_power_and_the_filter",),
    ),
    # Namespaces
    Breakage(
        "pod-shares-the-user-namespace",
        _POD,
        "CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC",
        "CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC",
        ("fork/test_isolation_of_relatives.py::test_each_relative_has_namespaces_of_its_own",),
    ),
    Breakage(
        "pod-shares-the-pid-namespace",
        _POD,
        "CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC",
        "CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC",
        ("walls/test_processes.py::test_another_sandbox_can_be_neither_seen_nor_signalled",),
    ),
    Breakage(
        "pod-shares-the-network",
        _POD,
        "CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC",
        "CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC",
        ("walls/test_network.py::test_the_loopback_of_another_sandbox_is_another",),
    ),
    Breakage(
        "pod-shares-system-v-objects",
        _POD,
        "CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |",
        "CLONE_NEWPID | CLONE_NEWNET |",
        ("walls/test_processes.py::test_system_v_objects_of_one_sandbox_are_not_in_another",),
    ),
    Breakage(
        "pod-shares-the-name-of-the-machine",
        _POD,
        "CLONE_NEWUTS | CLONE_NEWCGROUP;",
        "CLONE_NEWCGROUP;",
        ("fork/test_isolation_of_relatives.py::test_each_relative_has_namespaces_of_its_own",),
    ),
    Breakage(
        "pod-shares-the-view-of-control-groups",
        _POD,
        "CLONE_NEWUTS | CLONE_NEWCGROUP;",
        "CLONE_NEWUTS;",
        ("fork/test_isolation_of_relatives.py::test_each_relative_has_namespaces_of_its_own",),
    ),
    Breakage(
        "pod-shares-the-mount-namespace",
        _POD,
        'MUST("unshare a mount namespace", unshare(CLONE_NEWNS));',
        "",
        ("fork/test_isolation_of_relatives.py::test_each_relative_has_namespaces_of_its_own",),
    ),
    Breakage(
        "pod-may-make-namespaces",
        _POD_INIT,
        'write_text(path, "0", 0);',
        'write_text(path, "1", 0);',
        ("walls/test_proc.py::test_no_namespace_may_be_made_even_without_the_filter",),
    ),
    # Files
    Breakage(
        "host-folders-are-writable",
        "ramet/isolation/pods.py",
        "                if mount.writable:\n",
        "                if True:\n",
        ("walls/test_files_of_the_host.py::test_a_shown_folder_is_read_only",),
    ),
    Breakage(
        "host-folders-have-the-inodes-of-the-host",
        _POD_TREE,
        "mounted = place->kind == MOUNT ? *next : show_mount(*next, place->path);",
        "(void)show_mount, mounted = *next;",
        ("walls/test_inodes_of_the_host.py::test_a_lock_is_met_by_nobody_else",),
    ),
    Breakage(
        "host-folders-honour-setuid-bits",
        "ramet/isolation/native/launch.c",
        ".attr_set = RAMET_ATTR_NOSUID | RAMET_ATTR_NODEV |",
        ".attr_set = RAMET_ATTR_NODEV |",
        ("walls/test_files_of_the_host.py::test_a_writable_folder_honours_neither_set_id_bits_nor_devices",),
    ),
    Breakage(
        "kernel-settings-are-writable",
        _POD_TREE,
        'sealed[] = {"sys", "bus", "irq"}',
        'sealed[] = {"bus", "irq"}',
        ("walls/test_proc.py::test_kernel_settings_are_read_only_even_for_their_owner",),
    ),
    Breakage(
        "proc-shows-the-symbols-of-the-kernel",
        _POD_TREE,
        '"kallsyms",',
        "",
        ("walls/test_proc.py::test_files_that_tell_of_the_host_are_empty",),
    ),
    Breakage(
        "file-call-follows-links-out-of-the-sandbox",
        "ramet/isolation/kernel/syscalls.py",
        "return _openat2(root, path, flags, mode, _IN_ROOT | _NO_MAGIC_LINKS",
        'return _openat2(root, os.fsdecode(path).lstrip("/") or ".", flags, mode, _NO_MAGIC_LINKS',
        ("unit/test_tree.py::test_no_path_leads_out",),
    ),
    Breakage(
        "file-call-follows-magic-links",
        "ramet/isolation/kernel/syscalls.py",
        "_IN_ROOT | _NO_MAGIC_LINKS | (0 if follow_links else _NO_LINKS)",
        "_IN_ROOT | (0 if follow_links else _NO_LINKS)",
        ("walls/test_attacks_on_files.py::test_magic_links_of_the_repl_are_not_followed",),
    ),
    Breakage(
        "file-call-reads-kernel-files",
        "ramet/engine/files/tree.py",
        "if not stat.S_ISREG(mode) or file_system_type(descriptor) in _KERNEL_FILE_SYSTEMS:",
        "if not stat.S_ISREG(mode):",
        ("unit/test_tree.py::test_what_the_kernel_shows_in_proc_is_no_file",),
    ),
    # Limits
    Breakage(
        "control-groups-have-no-limits",
        "ramet/isolation/kernel/cgroups.py",
        "for file, value, required in _settings(delegation.version, controller, limits):",
        "for file, value, required in _settings(delegation.version, '', limits):",
        ("walls/test_attacks_on_limits.py::test_twice_the_memory_is_out_of_memory_and_was_counted",),
    ),
    Breakage(
        "pending-signals-are-not-limited",
        "ramet/freezing/resource_limits.py",
        "_at_most(resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS),",
        "",
        ("walls/test_attacks_on_processes.py::test_many_pending_signals_leave_the_neighbours_theirs",),
    ),
    Breakage(
        "disk-is-not-limited",
        _POD_TREE,
        '"mode=755,size=%llu,nr_inodes=%llu", pod->upper_bytes,',
        '"mode=755,nr_inodes=%llu",',
        ("walls/test_attacks_on_limits.py::test_a_full_disk_is_an_error_of_file_calls",),
    ),
    Breakage(
        "crash-starts-the-core-handler-of-the-host",
        "ramet/isolation/native/common.c",
        "struct rlimit no_core = {1, 1};",
        "struct rlimit no_core = {0, 0};",
        ("walls/test_processes.py::test_a_crash_never_starts_the_core_dump_handler_of_the_host",),
    ),
    # Our own processes
    Breakage(
        "landlock-is-not-applied",
        "ramet/isolation/own_processes/landlock.py",
        '_call("landlock_restrict_self", _RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))',
        "pass",
        ("network/test_proxy_walls.py::test_its_walls_stand",),
    ),
    Breakage(
        "server-worker-reads-all-files",
        "ramet/doors/http/processes/confined_worker.py",
        "read=(*LIBRARIES, *_SMALL_FILES, *python_folders()),",
        'read=("/",),',
        ("server/test_confinement.py::test_a_locked_down_process_reads_and_writes_no_files_of_the_host",),
    ),
    Breakage(
        "server-worker-may-open-sockets",
        "ramet/isolation/own_processes/given_up_calls.py",
        'parts += [_call(name, refused) for name in ("socket", "connect")]',
        'parts += [_call(name, refused) for name in ("connect",)]',
        ("server/test_confinement.py::test_a_locked_down_process_reaches_nobody_in_another_way",),
    ),
    Breakage(
        "proxy-keeps-capabilities",
        "ramet/network/confinement.py",
        "powers.drop_capabilities()",
        "pass",
        ("network/test_proxy_walls.py::test_it_has_no_capability_and_gets_none",),
    ),
    Breakage(
        "proxy-reads-all-files",
        "ramet/network/confinement.py",
        "_resolver_folder(), *python_folders()),",
        '_resolver_folder(), "/"),',
        ("network/test_proxy_walls.py::test_its_walls_stand",),
    ),
)
