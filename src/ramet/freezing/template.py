"""Booting an interpreter into a template: started behind the filter, warmed up by the guest, then frozen for ever."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path

from ramet.errors import RametError, TemplateFailed
from ramet.freezing import _core
from ramet.freezing.calls import (
    AT_FDCWD,
    CONTROL,
    SPARE_STDERR,
    SPARE_STDOUT,
    InjectedCall,
    ResourceLimit,
    call,
    set_limits,
    standard_lines,
)
from ramet.freezing.failures import describe, failure
from ramet.freezing.frozen import Frozen
from ramet.freezing.images import identity
from ramet.freezing.images.images import FileRecipe
from ramet.freezing.images.templates import BootedTemplate, TemplateImages
from ramet.freezing.process_ends import end_process
from ramet.freezing.resource_limits import BOOT_LIMITS
from ramet.isolation import hints
from ramet.isolation.files.layers import FileImage
from ramet.isolation.files.skeleton import COMMAND_FOLDER, GUEST_FOLDER, system_folders
from ramet.isolation.holder import Holder
from ramet.isolation.kernel.seccomp import compile_filter
from ramet.isolation.kernel.syscall_numbers import X86_64
from ramet.isolation.launch import HELPER, NOT_CAPABLE
from ramet.isolation.pods import Ends, Pod, PodMaker
from ramet.isolation.thread_work import finish
from ramet.protocol import checks
from ramet.protocol.frames import FROM_GUEST, FrameDecoder
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import Limits, TemplateSpec
from ramet_guest.wire import PIP_RETRIES, READY

_OWN_DESCRIPTORS = {0, 1, 2, CONTROL, SPARE_STDOUT, SPARE_STDERR}
_KEPT_BY_KERNEL = 0o100000  # O_LARGEFILE: shown in flags, not to be passed to open
_MOST_FILES = 64
_BOOT_SECONDS = 120.0
_IDLE_SECONDS = 10.0
_FREEZE_SECONDS = 10.0
_BOOT_CPUS = 2.0


@dataclass(frozen=True, slots=True)
class TemplateRecipes:
    """What a new sandbox gets of its template: the standard lines, and files that the preloads left open."""

    template: TemplateSpec
    taken_pids: frozenset[int]  # of its threads
    file_calls: tuple[InjectedCall, ...]
    poured: bool = False  # from an image on disk
    image: FileImage = field(default_factory=lambda: FileImage(None, None, (), 0))

    faithful = True

    @property
    def children(self) -> tuple[tuple[int, int], ...]:
        return ()

    @property
    def greeting(self) -> bytes:
        return b""  # the engine's first frame wakes it

    def calls(self, main_pid: int, limits: Limits, usual: tuple[ResourceLimit, ...]) -> tuple[InjectedCall, ...]:
        home = call("go home", "chdir", b"/root", must_work=False)  # a pod that was used before may have lost it
        return (*standard_lines(), home, call("umask", "umask", 0o022), *self.file_calls, *set_limits(usual))

    def powerless_calls(self, main_pid: int, usual: tuple[ResourceLimit, ...]) -> tuple[InjectedCall, ...]:
        return ()

    def failure(self, error: _core.FreezeError) -> RametError:
        return failure(f"cannot make a sandbox from template {self.template.name!r}", error, RametError)


class Templates:
    """Owns the templates of one machine. Each is booted when it is first asked for."""

    def __init__(
        self, holder: Holder, maker: PodMaker, tracer: ThreadPoolExecutor, images: TemplateImages | None = None
    ) -> None:
        self._holder = holder
        self._maker = maker
        self._tracer = tracer
        self._images = images
        self._boots: dict[TemplateSpec, asyncio.Task[Frozen]] = {}

    async def get(self, spec: TemplateSpec) -> Frozen:
        """The frozen template; concurrent callers share one boot. Raises TemplateFailed."""
        if spec not in self._boots:
            work = make_template(spec, self._holder, self._maker, self._tracer, self._images)
            self._boots[spec] = asyncio.create_task(work)
        task = self._boots[spec]
        try:
            # Shielded: one of the callers being cancelled must not stop the boot that the others wait for.
            return await asyncio.shield(task)
        except Exception:
            if self._boots.get(spec) is task:  # else another caller has begun the next try already
                del self._boots[spec]
            raise

    async def forget_dead(self, frozen: Frozen) -> bool:
        """Drop a template that the host's kernel has killed. Returns whether it was dead."""
        if await asyncio.get_running_loop().run_in_executor(self._tracer, _core.usable, frozen.snapshot):
            return False
        await self._forget(frozen)
        return True

    async def forget_poured(self, frozen: Frozen) -> bool:
        """Drop a template that no sandbox can be thawed from, if its image is to blame. Returns whether it may be."""
        if self._images is None or not isinstance(frozen.recipes, TemplateRecipes) or not frozen.recipes.poured:
            return False
        await self._images.forget(frozen.template, environment(frozen.template, _BOOT_CPUS))
        await self._forget(frozen)
        return True

    async def _forget(self, frozen: Frozen) -> None:
        task = self._boots.get(frozen.template)
        # Only if it is still the known one: during the wait another caller may have made it again.
        if task is not None and task.done() and task.result() is frozen:
            del self._boots[frozen.template]
            await frozen.close()

    async def close(self) -> None:
        for booting in self._boots.values():
            booting.cancel()
        if self._images is not None:
            await self._images.close()  # before the templates, whose memory it may be writing
        for frozen in await asyncio.gather(*self._boots.values(), return_exceptions=True):
            if isinstance(frozen, Frozen):
                await frozen.close()


async def make_template(
    spec: TemplateSpec,
    holder: Holder,
    maker: PodMaker,
    tracer: ThreadPoolExecutor,
    images: TemplateImages | None,
) -> Frozen:
    """Pour it from its image or else boot it, in a pod of its own. Raises TemplateFailed if it does not boot."""
    async with contextlib.AsyncExitStack() as undo:
        pod = await maker.make(spec.interpreter, BOOT_LIMITS, (), boot=True)
        undo.push_async_callback(pod.close)
        variables = environment(spec, _BOOT_CPUS)
        poured = None if images is None else await images.pour(spec, variables, pod)
        if poured is None:
            snapshot, files = await _boot(spec, holder, maker, tracer, pod, variables, images)
        else:
            snapshot, files = poured
            if not maker.counts_memory:
                _offer_first(_core.shadow(snapshot))
        undo.pop_all()
    threads = frozenset(_core.thread_ids(snapshot))
    recipes = TemplateRecipes(spec, threads, tuple(_open_again(files)), poured is not None)
    return Frozen(snapshot, recipes, spec, BOOT_LIMITS, tracer, pod=pod)


async def _boot(
    spec: TemplateSpec,
    holder: Holder,
    maker: PodMaker,
    tracer: ThreadPoolExecutor,
    pod: Pod,
    variables: dict[str, str],
    images: TemplateImages | None,
) -> tuple[_core.Snapshot, tuple[FileRecipe, ...]]:
    """Boot, wait for the guest to be ready, freeze. Raises TemplateFailed with what the interpreter printed."""
    began = time.time()
    async with contextlib.AsyncExitStack() as always, contextlib.AsyncExitStack() as undo:
        ends = Ends.make()
        always.callback(ends.close)
        # A caller that is cancelled waits for the thread: an interpreter that it starts would have no owner.
        pid = await finish(asyncio.to_thread(_spawn, spec, holder, pod, ends, variables), _end_spawned)
        pidfd = os.pidfd_open(pid)
        always.callback(os.close, pidfd)
        undo.push_async_callback(_end_booted, pidfd)
        ends.sent()
        loaded = await _wait_until_ready(spec, ends, pidfd)
        if not maker.counts_memory:
            _offer_first(pid)
        await _wait_until_idle(spec, pid)
        files = _recipes(spec, pid)
        snapshot = await _freeze(spec, pid, tracer)
        undo.pop_all()
    if images is not None:
        images.keep_soon(BootedTemplate(spec, variables, snapshot, pod, files, loaded, began))
    return snapshot, files


async def _freeze(spec: TemplateSpec, pid: int, tracer: ThreadPoolExecutor) -> _core.Snapshot:
    work = asyncio.get_running_loop().run_in_executor(tracer, _core.freeze_template, pid, CONTROL, _FREEZE_SECONDS)
    try:
        # Once frozen, it is ended by the tracer: a traced thread stays until the one that traces it has reaped it.
        return await finish(work, lambda made: tracer.submit(_core.end_snapshot, made))
    except _core.FreezeError as error:
        message = f"template {spec.name!r} booted but could not be frozen: {describe(error)}"
        # Trusted code is all that it has run, so a refusal is the host's.
        kind = hints.refused if error.args[1] in hints.REFUSALS else TemplateFailed
        raise kind(message) from error


async def _end_booted(pidfd: int) -> None:
    await end_process(os.dup(pidfd))


def _open_again(files: Sequence[FileRecipe]) -> Iterator[InjectedCall]:
    """With 0, 1 and 2 in place an open gives 3, which is then moved. The one that belongs at 3 comes last."""
    for number, flags, offset, path in sorted(files, key=lambda file: file[0] == 3):
        # In a pod that was used before, anything may be at this path: a pipe without a writer must not hold the thaw.
        yield call("open a file of the template again", "openat", AT_FDCWD, path, flags | os.O_NONBLOCK, 0)
        if not flags & os.O_NONBLOCK:
            yield call("set a file's flags", "fcntl", 3, fcntl.F_SETFL, flags, must_work=False)
        if offset:
            yield call("lseek", "lseek", 3, offset, os.SEEK_SET)
        if number != 3:
            yield call("place a file", "dup3", 3, number, flags & os.O_CLOEXEC)
            yield call("close", "close", 3)


def _offer_first(pid: int) -> None:
    """Where sandboxes have no group that counts their memory, they share a limit with their owner, a container's for
    instance. When it is reached, they go before anybody else. All of the template's copies inherit it."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")


def _end_spawned(pid: int) -> None:
    end_process(os.pidfd_open(pid))


def environment(spec: TemplateSpec, cpus: float) -> dict[str, str]:
    """What programs of a sandbox find, the interpreter first of all."""
    folder = os.path.dirname(spec.python)
    first = f"{COMMAND_FOLDER}:/root/.local/bin"
    threads = str(max(1, int(cpus)))
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        "HOME": "/root",
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/bash",
        "PATH": f"{first}:{folder}:{system}" if folder not in system.split(":") else f"{first}:{system}",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PYTHONUNBUFFERED": "1",
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # Without a network, and through the proxy, the first try has the answer, but pip shows why it failed only when
        # it tries again. A second try follows soon; the six of pip and the four of uv take ten seconds.
        "PIP_RETRIES": PIP_RETRIES,
        "UV_HTTP_RETRIES": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        # As many threads as the sandbox has processors: a library that counts the host's would only fight itself.
        **dict.fromkeys(
            (
                "OPENBLAS_NUM_THREADS",
                "OMP_NUM_THREADS",
                "MKL_NUM_THREADS",
                "NUMEXPR_NUM_THREADS",
                "POLARS_MAX_THREADS",
                "RAYON_NUM_THREADS",
            ),
            threads,
        ),
    }


def template_image_name(spec: TemplateSpec, guest: str) -> str:
    """The name of its image in a store."""
    return identity.template_name(spec, guest, environment(spec, _BOOT_CPUS))


def _spawn(spec: TemplateSpec, holder: Holder, pod: Pod, ends: Ends, variables: dict[str, str]) -> int:
    boot = json.dumps({"preload": list(spec.preload), "warm_up": True, "builtin": spec.builtin})
    filter_file = os.memfd_create("filter", os.MFD_CLOEXEC)
    try:
        os.write(filter_file, compile_filter(pod.uncounted))
        numbers = [holder.pidfd, pod.handle.init_pidfd, filter_file, *ends.theirs]
        done = subprocess.run(
            [str(HELPER), "spawn", *map(str, numbers), "--",
             spec.python, "-P", "-X", "utf8", f"{GUEST_FOLDER}/__main__.py", boot],
            pass_fds=numbers, env=variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        os.close(filter_file)
    if done.returncode:
        message = f"cannot start the interpreter of template {spec.name!r}: {done.stderr.strip()}"
        raise hints.refused(message) if hints.is_refusal(message) else TemplateFailed(message)
    return int(done.stdout)


async def _wait_until_ready(spec: TemplateSpec, ends: Ends, pidfd: int) -> list[str]:
    """The guest says READY on the control socket when its preloads are imported and its memory is settled.

    Returns the files and folders that its modules came from.
    """
    loop = asyncio.get_running_loop()
    printed = bytearray()
    decoder = FrameDecoder(FROM_GUEST)
    dead = asyncio.Event()

    def keep(descriptor: int) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, 65536)
            printed.extend(data)
            if not data:
                loop.remove_reader(descriptor)

    loop.add_reader(pidfd, dead.set)
    for descriptor in (ends.stdout, ends.stderr):
        loop.add_reader(descriptor, keep, descriptor)
    try:
        async with asyncio.timeout(_BOOT_SECONDS):
            while True:
                # The line ends with the interpreter: no other process holds its other end.
                data = await loop.sock_recv(ends.control, 65536)
                if not data:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(dead.wait(), 1.0)
                    for descriptor in (ends.stdout, ends.stderr):
                        keep(descriptor)
                    raise _boot_error(spec, _ending(pidfd), printed)
                for frame in decoder.feed(data):
                    if frame.kind == READY:
                        return [os.fsdecode(path) for path in frame.blob.split(b"\0") if path]
    except TimeoutError as error:
        raise _boot_error(spec, f"it was not ready after {_BOOT_SECONDS:.0f} seconds", printed) from error
    finally:
        for descriptor in (pidfd, ends.stdout, ends.stderr):
            loop.remove_reader(descriptor)


async def _wait_until_idle(spec: TemplateSpec, pid: int) -> None:
    """READY is the guest's last word, but it may still be saying it. It is frozen in its wait for a cell."""
    waiting = f"{X86_64['recvfrom']} {CONTROL:#x} "
    try:
        async with asyncio.timeout(_IDLE_SECONDS):
            while not Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").startswith(waiting):
                await asyncio.sleep(0.001)
    except TimeoutError as error:
        raise TemplateFailed(f"template {spec.name!r} did not become idle after it booted") from error


def _ending(pidfd: int) -> str:
    status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if status is None:
        return "its interpreter closed the line to the engine"
    how = "exit code" if status.si_code == os.CLD_EXITED else "signal"
    return f"its interpreter ended with {how} {status.si_status}"


def _boot_error(spec: TemplateSpec, what: str, printed: bytearray) -> RametError:
    text = printed.decode("utf-8", "replace").strip()[-4000:]
    if what.endswith(f"exit code {NOT_CAPABLE}") and hints.is_refusal(text):  # of the helper, before the interpreter
        return hints.refused(f"template {spec.name!r} did not boot: {text}")
    if not spec.preload:
        hint = f"does {spec.python} work by itself?"
    elif spec.name in checks.BUILTIN_TEMPLATES:  # whoever asked for it named no module
        hint = f"it imports what may be missing here: {spec.python} -m pip install {' '.join(spec.preload)}"
    else:
        hint = "is every module of preload installed for this interpreter?"
    return TemplateFailed(f"template {spec.name!r} did not boot: {what}" + (f"\n{text}" if text else ""), hint=hint)


def _recipes(spec: TemplateSpec, pid: int) -> tuple[FileRecipe, ...]:
    """How to open the template's files again in a sandbox.

    Only files of the trees that every pod shows, opened for reading: anything else that is open, or a shared mapping,
    would be one thing for all sandboxes and is refused.
    """
    if "shstk" in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace"):
        raise TemplateFailed(
            f"template {spec.name!r} runs with shadow stacks, which cannot be thawed yet",
            hint="start the owner without GLIBC_TUNABLES that switch them on",
        )
    shown = (*system_folders(), *spec.interpreter.trees)
    recipes: list[FileRecipe] = []
    refused: list[str] = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        if int(name) in _OWN_DESCRIPTORS:
            continue
        path = os.readlink(f"/proc/{pid}/fd/{name}")
        with open(f"/proc/{pid}/fdinfo/{name}", encoding="ascii") as lines:
            facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        flags = int(facts["flags"], 8)
        again = not path.endswith(" (deleted)") and len(recipes) < _MOST_FILES
        if again and flags & os.O_ACCMODE == os.O_RDONLY and any(path.startswith(f"{tree}/") for tree in shown):
            recipes.append((int(name), flags & ~_KEPT_BY_KERNEL, int(facts["pos"]), os.fsencode(path)))
        else:
            refused.append(f"descriptor {name} ({path})")
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        modes = [(line.split()[1], line.split()[-1]) for line in maps]
    refused += [f"a shared mapping ({name})" for mode, name in modes if mode.endswith("s") and "w" in mode]
    if refused:
        raise TemplateFailed(
            f"template {spec.name!r} cannot be frozen: its preloads left open {', '.join(refused[:5])}",
            hint="preload modules that open nothing at import, and open what you need in a cell",
        )
    return tuple(recipes)
