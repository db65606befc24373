"""Images on disk, sleep, survival, history and taking, each with a step left out."""

from __future__ import annotations

from tests.mutants.breakage import Breakage

_SLEEPERS = "ramet/engine/sleeping/sleepers.py"
_STORE = "ramet/freezing/images/stored/store.py"
_OF_HIBERNATION = "images/test_hibernation.py"
_OF_PERSISTENCE = "images/test_persistence.py"
_OF_SURVIVAL = "images/test_survival_model.py::test_a_sandbox_survives_a_few_random_steps"

IMAGES = (
    # The store
    Breakage(
        "image-is-believed-without-its-mac",
        _STORE,
        'if not hmac.compare_digest(_read(folder, "manifest.mac", _SMALL), self._mac(data)):',
        'if not self._mac(data) or not _read(folder, "manifest.mac", _SMALL):',
        ("images/test_template_images.py::test_an_image_with_another_key_is_not_believed",),
    ),
    Breakage(
        "images-of-a-sandbox-are-written-in-any-order",
        "ramet/freezing/images/sandboxes.py",
        "async with self._images.of_name.held(name):",
        "if name:",
        ("unit/test_saved_images_order.py::test_a_checkpoint_of_a_state_that_has_passed_never_replaces_a_later_one",),
    ),
    Breakage(
        "images-of-all-owners-have-the-same-names",
        "ramet/isolation/files/cache_folders.py",
        'return f"saved-{owner_part(owner)}-{name}"',
        'return f"saved-{owner_part(str())}-{name}"',
        ("server/test_saved_on_disk.py::test_what_is_saved_is_there_after_a_restart_and_is_each_keys_own",),
    ),
    Breakage(
        "clock-goes-back-after-a-reboot",
        "ramet/freezing/images/identity.py",
        "if manifest.boot == boot_id():",
        "if manifest.boot:",
        ("images/test_template_images.py::test_after_a_reboot_the_clock_goes_on",),
    ),
    Breakage(
        "first-page-of-a-block-is-mapped-too",
        "ramet/freezing/images/blocks.py",
        "start = max(at, blocks[place][0] + PAGE)",
        "start = max(at, blocks[place][0])",
        ("images/test_large_blocks.py::test_all_of_a_block_but_its_first_page_is_mapped",),
    ),
    Breakage(
        "memory-of-other-allocators-is-mapped",
        "ramet/freezing/images/blocks.py",
        "mapped = before == 0 and size & _FLAGS == _IS_MAPPED",
        "mapped = before == 0 or size & _FLAGS == _IS_MAPPED",
        ("images/test_large_blocks.py::test_what_does_not_begin_like_a_mapped_block_is_none",),
    ),
    Breakage(
        "large-blocks-are-copied",
        "ramet/freezing/images/images.py",
        "manifest = replace(manifest, segments=planned)",
        "manifest = replace(manifest, segments=planned and manifest.segments)",
        ("images/test_large_blocks.py::test_blocks_are_mapped_and_hold_what_was_saved",),
    ),
    # Sleep
    Breakage(
        "threads-run-on-while-a-sandbox-is-written",
        "ramet/freezing/live.py",
        "signal.pidfd_send_signal(subject.repl_pidfd, signal.SIGSTOP)",
        "pass",
        (f"{_OF_HIBERNATION}::test_work_of_threads_is_neither_lost_nor_done_twice",),
    ),
    Breakage(
        "hibernated-sandbox-keeps-its-processes",
        _SLEEPERS,
        "return self._perform(retired.close())",
        "return self._perform(asyncio.sleep(0))",
        (f"{_OF_HIBERNATION}::test_a_hibernated_sandbox_has_no_process_and_no_memory",),
    ),
    Breakage(
        "closed-sandbox-leaves-its-image",
        _SLEEPERS,
        "            with suppress(RametError):\n"
        "                await machine.forget_image(space_image_name(sandbox.owner, sandbox.id))\n"
        "        kept.journal.close(remove=True)",
        "            pass\n        kept.journal.close(remove=True)",
        (f"{_OF_HIBERNATION}::test_closing_a_hibernated_sandbox_removes_its_image",),
    ),
    # Survival
    Breakage(
        "missing-cells-are-not-told",
        "ramet/engine/sleeping/reopen.py",
        "missing = tuple(cell for cell in contents.cells if cell[0] > snapshot.carried.cells)",
        "missing: tuple[tuple[int, str], ...] = ()",
        (_OF_SURVIVAL,),
    ),
    Breakage(
        "two-engines-have-the-same-sandbox",
        "ramet/isolation/files/journals.py",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        (f"{_OF_PERSISTENCE}::test_one_that_is_alive_in_another_program_is_refused",),
    ),
    Breakage(
        "checkpoints-are-never-written",
        "ramet/engine/sleeping/checkpoints.py",
        "self._working = self._perform(self._checkpoint())",
        "pass",
        (f"{_OF_PERSISTENCE}::test_a_killed_program_costs_the_cells_since_the_last_checkpoint",),
    ),
    # History
    Breakage(
        "undone-steps-stay-in-the-history",
        "ramet/engine/history/past.py",
        "gone, self.steps = self.steps[place:], self.steps[:place]",
        "gone = self.steps[place:]",
        ("fork/test_history_model.py::test_a_sandbox_is_as_its_model_after_a_few_random_steps",),
    ),
    Breakage(
        "lost-cells-look-as-if-their-work-were-there",
        "ramet/engine/history/past.py",
        "            later.lost = True\n",
        "",
        ("unit/test_past.py::test_steps_after_a_restored_one_are_shown_as_lost",),
    ),
    # Taking
    Breakage(
        "take-overwrites-what-both-have-changed",
        "ramet/isolation/files/three_way.py",
        "if against and prefer is None:",
        'if against and prefer == "nobody":',
        ("fork/test_take.py::test_what_both_have_changed_is_a_conflict_and_nothing_is_taken",),
    ),
    Breakage(
        "take-does-not-say-what-contradicts",
        "ramet/engine/merging/take.py",
        "if names.conflicts or paths:",
        "if len(names.conflicts) < 0:",
        ("fork/test_take.py::test_what_both_have_changed_is_a_conflict_and_nothing_is_taken",),
    ),
    # What comes from elsewhere
    Breakage(
        "imported-image-has-its-wishes-made-with-capabilities",
        "ramet/freezing/live.py",
        "if self.imported:\n            # All else",
        "if self.imported and main_pid < 0:\n            # All else",
        (
            "images/test_hostile_images.py::test_what_an_image_asks_for_is_made_without_capabilities",
            "images/test_hostile_images.py::test_resource_limits_are_never_above_the_usual_ones",
        ),
    ),
)
