"""Images of templates: the second engine that needs a template pours it instead of booting it.

No image is ever needed. One that is stale, foreign or broken is removed, and the template boots as if there were none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from ramet.freezing import _core
from ramet.freezing.images import identity
from ramet.freezing.images.images import FAILURES, FileRecipe, Images, ImageSource
from ramet.freezing.images.manifest import ImageRefused
from ramet.freezing.images.stored.store import OpenImage
from ramet.isolation.pods import Pod
from ramet.protocol.values.specs import TemplateSpec

_QUIET_SECONDS = 0.2  # a caller that waits for its first sandbox comes before the image
_CLOSING_SECONDS = 5.0  # that a write may take when the engine ends: else a short program would never have an image


class BootedTemplate(NamedTuple):
    """A template that has just booted, for its image."""

    spec: TemplateSpec
    environment: dict[str, str]
    snapshot: _core.Snapshot
    pod: Pod
    open_files: tuple[FileRecipe, ...]
    loaded: Sequence[str]  # files and folders that its modules came from
    began: float  # seconds since 1970


class PouredTemplate(NamedTuple):
    """A template from its image."""

    snapshot: _core.Snapshot
    open_files: tuple[FileRecipe, ...]


class TemplateImages:
    """Pours and writes the images of one machine's templates."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self._writes: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()  # set: a write that waits for a quiet moment begins at once

    def _name(self, spec: TemplateSpec, environment: dict[str, str]) -> str:
        return identity.template_name(spec, self._images.guest, environment)

    async def pour(self, spec: TemplateSpec, environment: dict[str, str], pod: Pod) -> PouredTemplate | None:
        """The template, frozen, in a pod that was made for its boot; None where it has to be booted."""
        name = self._name(spec, environment)
        try:
            return await self._images.used(name, lambda opened: self._pour(opened, spec, pod))
        except FAILURES as error:
            self._images.note(f"the image of template {spec.name!r} was not used", error)
            await self._images.forget(name)
            return None

    async def _pour(self, opened: OpenImage, spec: TemplateSpec, pod: Pod) -> PouredTemplate:
        if opened.manifest.template != spec:
            raise ImageRefused("the image is of another template")
        snapshot = await self._images.pour(opened, pod, await asyncio.to_thread(opened.part, "loaded"))
        return PouredTemplate(snapshot, opened.manifest.open_files)

    async def forget(self, spec: TemplateSpec, environment: dict[str, str]) -> None:
        await self._images.forget(self._name(spec, environment))

    def keep_soon(self, booted: BootedTemplate) -> None:
        """Write the image of a template that has just booted, when its first caller has been served."""
        task = asyncio.create_task(self._keep(booted))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _keep(self, booted: BootedTemplate) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), _QUIET_SECONDS)
        root, loaded, began = booted.pod.root, booted.loaded, booted.began
        source = ImageSource(
            name=self._name(booted.spec, booted.environment),
            template=booted.spec,
            snapshot=booted.snapshot,
            open_files=booted.open_files,
            parts=lambda _, mapped: {"loaded": identity.loaded_list(root, (*loaded, *mapped), began)},
        )
        try:
            await self._images.write(source)
        except FAILURES as error:
            self._images.note(f"the image of template {booted.spec.name!r} was not written", error)

    async def close(self) -> None:
        """Let a write that is under way come to its end, for a moment. Templates are closed after this."""
        self._closing.set()
        if self._writes:
            await asyncio.wait(self._writes, timeout=_CLOSING_SECONDS)
            self._images.stop_writing()
            if self._writes:
                await asyncio.wait(self._writes)
