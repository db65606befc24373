"""The guest: what a cell may do to the REPL, and what the engine is told of it."""

from __future__ import annotations

from tests.mutants.breakage import Breakage

GUEST = (
    Breakage(
        "users-handler-outlives-its-cell",
        "ramet_guest/cells/interrupts.py",
        "            _set_signal(SOFT_SIGNAL, self._soft_handler)\n\n",
        "            pass\n\n",
        ("guest/test_interrupts.py::test_a_handler_of_the_users_serves_its_cells_only",),
    ),
    Breakage(
        "frame-to-the-guest-is-not-bounded",
        "ramet_guest/channel.py",
        "header_end > end or length > MAXIMUM_FRAME_BYTES:",
        "header_end > end:",
        ("guest/test_cells.py::test_what_is_no_frame_ends_the_guest",),
    ),
    Breakage(
        "forked-copy-answers-for-the-repl",
        "ramet_guest/repl.py",
        "        if _getpid() != self.channel.pid:\n            os._exit(code)\n",
        "        self.channel.pid = _getpid()\n",
        ("guest/test_cells.py::test_a_copy_of_the_repl_made_by_fork_does_not_answer",),
    ),
    Breakage(
        "output-is-held-back",
        "ramet_guest/processes/output.py",
        'newline="\\n", write_through=True)',
        'newline="\\n", write_through=False)',
        ("behaviour/test_output.py::test_output_of_child_processes_is_part_of_both_streams_in_order",),
    ),
    Breakage(
        "short-write-loses-output",
        "ramet_guest/processes/output.py",
        "return self._write_rest(data, written)",
        "return len(memoryview(data))",
        ("guest/test_output.py::test_output_is_not_lost_when_the_pipe_does_not_block",),
    ),
    Breakage(
        "redirected-output-outlasts-its-cell",
        "ramet_guest/processes/output.py",
        "os.dup2(SPARES[descriptor], descriptor, inheritable=True)",
        "pass",
        ("behaviour/test_output.py::test_the_next_cell_prints_whatever_was_done_to_the_streams",),
    ),
    Breakage(
        "stream-of-the-users-is-taken-away",
        "ramet_guest/repl.py",
        "            output.put_back_missing()\n",
        "            output.install()\n",
        ("guest/test_repl_state.py::test_a_stream_that_a_cell_puts_in_place_stays",),
    ),
    Breakage(
        "large-values-are-kept-for-ever",
        "ramet_guest/cells/history.py",
        "or self._bytes > MAXIMUM_VALUE_BYTES):",
        "or False):",
        ("guest/test_repl_state.py::test_values_are_kept_within_bounds",),
    ),
    Breakage(
        "forgotten-call-looks-well",
        "ramet_guest/repl.py",
        "if self.tools is not None and self.tools.unmade.calls:",
        "if False:",
        ("guest/test_tool_pending.py::test_a_call_that_nobody_awaits_fails_its_cell_and_names_tool_and_line",),
    ),
    Breakage(
        "huge-value-is-not-cut",
        "ramet_guest/cells/rich.py",
        "    if missing <= 0:\n",
        "    if True:\n",
        ("guest/test_results.py::test_oversized_forms_are_cut_or_left_out_with_a_note",),
    ),
    Breakage(
        "deleted-builtins-stay-deleted",
        "ramet_guest/repl.py",
        "if not kept.keys() <= _builtin_names.keys():",
        "if False:",
        ("behaviour/test_cells.py::test_builtins_that_a_cell_deletes_do_not_break_the_next_one",),
    ),
    Breakage(
        "pickle-of-a-tool-is-loaded",
        "ramet_guest/tools/returned_values.py",
        "read_array(Reader(data), allow_pickle=False)",
        "read_array(Reader(data), allow_pickle=True)",
        ("guest/test_tool_values.py::test_a_pickle_is_refused",),
    ),
    Breakage(
        "failed-command-is-forgotten",
        "ramet_guest/repl.py",
        "        if code == 0 and self._failed_command is not None:\n",
        "        if False:\n",
        ("behaviour/test_failed_commands.py::test_of_several_commands_the_last_that_failed_counts",),
    ),
    Breakage(
        "no-network-is-not-told",
        "ramet_guest/cells/no_network.py",
        "            return any(_RESOLVER in",
        "            return True or any(_RESOLVER in",
        ("behaviour/test_without_network.py::test_every_client_says_that_there_is_no_network",),
    ),
    Breakage(
        "copy-loses-a-value-named-like-a-tool",
        "ramet_guest/repl.py",
        "        if anew:\n            self.tools.put_back()\n",
        "        self.tools.put_back()\n",
        ("behaviour/test_names_of_tools.py::test_a_copy_has_the_values_of_its_parent",),
    ),
)
