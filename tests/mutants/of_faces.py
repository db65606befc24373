"""What people and programs use: the command line, the gateway and MCP."""

from __future__ import annotations

from tests.mutants.breakage import Breakage

FACES = (
    Breakage(
        "run-always-ends-with-zero",
        "ramet/cli/local/outcomes.py",
        'return _TIMED_OUT if result.cause == "timeout" else result.exit_code',
        "return 0",
        ("cli/test_run.py::test_a_script_gets_its_arguments_and_its_exit_code_is_ours",),
    ),
    Breakage(
        "output-replaces-files-of-the-user",
        "ramet/cli/local/output_folder.py",
        "if entries and _MARK not in entries:",
        "if False:",
        ("cli/test_output_folder.py::test_a_folder_with_other_files_is_refused_before_anything_runs",),
    ),
    Breakage(
        "copy-follows-a-link-at-the-target",
        "ramet/cli/sandboxes/copying.py",
        "os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC",
        "os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC",
        ("cli/test_commands.py::test_what_comes_out_of_a_sandbox_stays_below_the_target",),
    ),
    Breakage(
        "linked-neighbour-goes-along",
        "ramet/cli/local/neighbours.py",
        "return stat.S_ISREG(os.lstat(path).st_mode)",
        "return stat.S_ISREG(os.stat(path).st_mode)",
        ("cli/test_scripts.py::test_modules_beside_the_script_can_be_imported_and_nothing_else_is_there",),
    ),
    Breakage(
        "container-is-found-by-another-key",
        "ramet/doors/gateway/containers/registry.py",
        "if container is not None and container.owner == owner:",
        "if container is not None:",
        ("gateway/test_containers.py::test_an_unknown_container_and_one_of_another_owner_look_the_same",),
    ),
    Breakage(
        "file-of-the-gateway-is-found-by-another-key",
        "ramet/doors/gateway/files/index.py",
        'f"SELECT {_COLUMNS} FROM files WHERE id = ? AND owner = ?", (file_id, owner)',
        'f"SELECT {_COLUMNS} FROM files WHERE id = ?", (file_id,)',
        ("gateway/test_file_store.py::test_a_file_comes_back_as_it_was_and_only_to_its_owner",),
    ),
    Breakage(
        "name-of-an-upload-leads-elsewhere",
        "ramet/doors/gateway/files/names.py",
        're.split(r"[/\\\\]", filename)[-1]',
        "filename",
        ("gateway/test_file_store.py::test_names_that_others_chose_are_made_harmless",),
    ),
    Breakage(
        "file-of-the-gateway-is-not-bounded",
        "ramet/doors/gateway/files/store.py",
        "if written > self.limits.file_bytes:",
        "if False:",
        ("gateway/test_file_store.py::test_size_number_and_sum_of_files_are_bounded",),
    ),
    Breakage(
        "gateway-takes-any-key",
        "ramet/doors/gateway/access.py",
        "if any(hmac.compare_digest(owner, known) for known in self._owners):",
        "if True:",
        ("gateway/test_passing.py::test_keys_of_the_gateway",),
    ),
    Breakage(
        "gateway-answers-pages-of-other-sites",
        "ramet/doors/gateway/access.py",
        "            _check_origin(headers)\n",
        "            pass\n",
        ("gateway/test_passing.py::test_without_keys_pages_in_a_browser_are_kept_out",),
    ),
    Breakage(
        "mcp-session-is-found-by-another-key",
        "ramet/doors/mcp/session_store.py",
        "if named in session and session.owner == owner:",
        "if named in session:",
        ("mcp/test_keeping.py::test_a_session_is_found_by_what_is_in_it_and_by_its_key_only",),
    ),
    Breakage(
        "mcp-sessions-are-mixed",
        "ramet/doors/mcp/session_store.py",
        "yield self._by_handshake.setdefault(caller.session_id,",
        'yield self._by_handshake.setdefault("",',
        ("mcp/test_sessions.py::test_two_clients_do_not_see_each_other",),
    ),
    Breakage(
        "mcp-session-has-any-number-of-sandboxes",
        "ramet/doors/mcp/sessions.py",
        "if len(self._sandboxes) + n > SANDBOXES:",
        "if False:",
        ("mcp/test_keeping.py::test_a_session_has_so_many_sandboxes_and_snapshots",),
    ),
    Breakage(
        "download-writes-where-a-name-leads",
        "ramet/client/folders.py",
        'if name in ("", ".", "..") or "/" in name or "\\0" in name:',
        "if False:",
        ("behaviour/test_folders.py::test_a_name_that_no_engine_would_tell_is_not_written",),
    ),
    Breakage(
        "html-of-a-sandbox-runs-in-a-notebook",
        "ramet/protocol/values/result_bundles.py",
        'srcdoc="{escape(_FETCHES_NOTHING + html)}"></iframe>\'',
        "></iframe>{html}'",
        ("unit/test_result_texts.py::test_a_notebook_shows_a_picture_and_runs_no_script_of_a_sandbox",),
    ),
    Breakage(
        "gateway-finds-containers-of-other-keys",
        "ramet/doors/gateway/containers/registry.py",
        "        for container in self.list(owner):\n            for tool_use_id",
        "        for container in self._all.values():\n            for tool_use_id",
        ("gateway/test_follow_ups.py::test_ids_of_another_keys_calls_lead_nowhere",),
    ),
    Breakage(
        "gateway-says-nothing-of-a-new-container",
        "ramet/doors/gateway/turns/cells.py",
        'notice = _NEW_CONTAINER if container_id is None and self.request.has_run_code else ""',
        'notice = ""',
        ("gateway/test_follow_ups.py::test_a_container_that_is_gone_is_replaced_by_a_new_one_that_says_so_once",),
    ),
    Breakage(
        "gateway-waits-for-no-commands",
        "ramet/doors/gateway/containers/container.py",
        "tools if request.name != EDITOR else ()",
        'tools if request.name == "code_execution" else ()',
        ("gateway/test_tools_in_bash.py::test_a_command_waits_for_the_client_and_prints_its_text",),
    ),
)
