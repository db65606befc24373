"""Steps of a freeze, of a thaw and of a comparison that are left out, or done wrong."""

from __future__ import annotations

from tests.mutants.breakage import Breakage

_THAW = "ramet/freezing/native/thaw.c"
_CONTRACT = "fork/test_contract.py"
_FILES = "fork/test_contract_of_files.py"

FREEZING = (
    # The process and its threads
    Breakage(
        "thaw-begins-no-session",
        _THAW,
        'ADD_CALL(l, "setsid", SYS_setsid);',
        "",
        ("walls/test_processes.py::test_the_repl_leads_a_session_and_a_group_of_its_own",),
    ),
    Breakage(
        "thaw-forgets-blocked-signals",
        _THAW,
        "memcpy(&context->uc_sigmask, &thread->mask, sizeof thread->mask);",
        "",
        (f"{_CONTRACT}::test_a_blocked_signal_stays_blocked_in_every_thread",),
    ),
    Breakage(
        "thaw-forgets-vector-registers",
        _THAW,
        "arch_fill_extended(scratch_here(region, extended), thread->extended, thread->extended_size,",
        "arch_fill_extended(scratch_here(region, extended), thread->extended, 512 + 64,",
        ("fork/test_threads.py::test_vector_registers_of_a_thread_in_the_middle_of_machine_code_are_there",),
    ),
    Breakage(
        "thaw-forgets-names-of-threads",
        _THAW,
        'ADD_CALL(t, "name a thread", SYS_prctl, PR_SET_NAME,',
        'ADD_CALL(t, "name a thread", SYS_prctl, PR_GET_DUMPABLE,',
        (f"{_CONTRACT}::test_resource_limits_affinity_priority_and_thread_names_are_the_same",),
    ),
    Breakage(
        "freeze-leaves-threads-stopped",
        "ramet/freezing/native/live.c",
        "if (p->tasks[i].tid) let_go(p, &p->tasks[i]);",
        "if (p->tasks[i].tid == p->repl) let_go(p, &p->tasks[i]);",
        ("terminals/test_sessions.py::test_a_fork_leaves_the_parents_terminals_alone",),
    ),
    Breakage(
        "freeze-trusts-records-of-threads",
        "ramet/freezing/native/threads.c",
        "return find_ids(thread, trusted, why) || check_records(thread, why) ? -1 : 0;",
        "(void)check_records;\n    return find_ids(thread, trusted, why) ? -1 : 0;",
        (
            "fork/test_attacks_on_the_core.py"
            "::test_a_thread_whose_records_lie_where_the_calls_of_a_copy_are_laid_out_is_refused",
        ),
    ),
    Breakage(
        "freeze-allows-shared-memory-where-it-works",
        "ramet/freezing/live.py",
        "    _check_reserved(maps)\n",
        "",
        ("fork/test_hostile.py::test_shared_memory_that_looks_like_what_the_engine_left_there_is_refused",),
    ),
    Breakage(
        "thaw-forgets-the-folder",
        "ramet/freezing/process_state.py",
        'go = [call("go to its folder", "chdir", self.folder, must_work=False)]',
        "go: list[Call] = []",
        (f"{_CONTRACT}::test_working_folder_environment_and_umask_are_the_same_and_then_ones_own",),
    ),
    Breakage(
        "thaw-forgets-the-umask",
        "ramet/freezing/process_state.py",
        'return [*go, call("umask", "umask", self.umask)]',
        "return go",
        (f"{_CONTRACT}::test_working_folder_environment_and_umask_are_the_same_and_then_ones_own",),
    ),
    Breakage(
        "thaw-forgets-resource-limits",
        "ramet/freezing/live.py",
        "resources = set_limits(self._resource_limits(limits, usual))",
        "resources = set_limits(usual)",
        (f"{_CONTRACT}::test_resource_limits_affinity_priority_and_thread_names_are_the_same",),
    ),
    Breakage(
        "thaw-forgets-children",
        "ramet/freezing/process_state.py",
        "children=tuple(_child(child) for child in children),",
        "children=(),",
        (f"{_CONTRACT}::test_a_running_child_process_is_gone_as_if_killed",),
    ),
    # Descriptors and memory
    Breakage(
        "thaw-forgets-offsets-of-files",
        "ramet/freezing/descriptors/kinds/files.py",
        "if thing.seekable and each.position and not each.flags & os.O_PATH:",
        "if False:",
        (f"{_FILES}::test_open_files_keep_number_flags_and_offset_and_then_move_alone",),
    ),
    Breakage(
        "thaw-forgets-close-on-exec",
        "ramet/freezing/descriptors/compiling.py",
        "flags = O_CLOEXEC if place.close_on_exec else 0",
        "flags = 0",
        (f"{_FILES}::test_open_files_keep_number_flags_and_offset_and_then_move_alone",),
    ),
    Breakage(
        "thaw-forgets-semaphores",
        "ramet/freezing/descriptors/kinds/events.py",
        "flags = (_EFD_SEMAPHORE if thing.semaphore else 0)",
        "flags = 0",
        ("fork/test_descriptors_alone.py::test_in_the_copy",),
    ),
    Breakage(
        "thaw-forgets-locks-of-files",
        "ramet/freezing/descriptors/compiling.py",
        "locks.take_locks(self._script, list(self._found.descriptions))",
        "pass",
        (f"{_CONTRACT}::test_file_locks_are_held_in_the_child_on_its_own_files",),
    ),
    Breakage(
        "freeze-does-not-copy-shared-memory",
        "ramet/freezing/descriptors/maps.py",
        'add("copy shared memory", "pwrite64", 0, each.start + at, length, at, must_work=each.whole)',
        "pass",
        (f"{_FILES}::test_shared_memory_becomes_a_private_copy_of_each",),
    ),
    Breakage(
        "thaw-does-not-share-memory-again",
        "ramet/freezing/descriptors/maps.py",
        "            flags = _MAP_SHARED | _MAP_FIXED\n",
        "            flags = _MAP_PRIVATE | _MAP_FIXED\n",
        (f"{_FILES}::test_shared_memory_is_still_shared_with_the_childs_own_processes",),
    ),
    # Randomness
    Breakage(
        "fresh-sandbox-draws-the-numbers-of-its-template",
        "ramet_guest/waking/thawing.py",
        "        repl.fresh = False\n        draw_fresh_randomness()\n",
        "        repl.fresh = False\n",
        ("walls/test_thaw.py::test_two_sandboxes_of_one_template_draw_different_random_numbers",),
    ),
    Breakage(
        "fork-is-not-reseeded",
        "ramet_guest/waking/reseeding.py",
        "            reseed(generator)\n",
        "            pass\n",
        ("guest/test_thawed.py::test_a_copy_keeps_its_generators_unless_it_is_told_to_reseed",),
    ),
    # Files and differences
    Breakage(
        "fork-has-no-files-of-its-parent",
        "ramet/isolation/files/layers.py",
        "return self._upper_mark is None or self._upper_mark != _Mark.of(self.upper, self.names)",
        "return False",
        (f"{_FILES}::test_files_are_the_same_and_then_private",),
    ),
    Breakage(
        "diff-forgets-removed-files",
        "ramet/isolation/files/differences.py",
        "        return one is not other\n",
        "        return one is None and other is not None\n",
        ("fork/test_file_differences.py::test_what_is_told_of_each_kind_of_change",),
    ),
    Breakage(
        "diff-does-not-read-files",
        "ramet/isolation/files/differences.py",
        'return one.state.type == "file" or one.state != other.state',
        "return one.state != other.state",
        ("fork/test_file_differences.py::test_what_is_told_of_each_kind_of_change",),
    ),
    Breakage(
        "parent-gets-no-room-for-its-forks",
        "ramet/freezing/memory_allowance.py",
        "self._pod.group.set_room(self._extra_bytes(), _PROCESSES * len(self._claims))",
        "self._pod.group.set_room(0, _PROCESSES * len(self._claims))",
        ("fork/test_memory_of_forks.py::test_a_parent_may_rewrite_all_it_has_after_a_fork",),
    ),
)
