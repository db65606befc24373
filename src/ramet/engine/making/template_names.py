"""The names of templates: each owner's own, given once, to a template that is booted or to a snapshot that is saved."""

from __future__ import annotations

from collections.abc import Set
from contextlib import AbstractContextManager, nullcontext

from ramet.engine.making.quotas import Quotas
from ramet.engine.making.snapshots import Snapshot, Snapshots
from ramet.protocol.argument_errors import must, wrong_argument
from ramet.protocol.checks import BUILTIN_TEMPLATES, check_template_name
from ramet.protocol.values.allowances import Allowance
from ramet.protocol.values.specs import SandboxSpec, TemplateSpec


class TemplateNames:
    """Remembers which template each owner has booted under which name."""

    def __init__(self, quotas: Quotas, snapshots: Snapshots) -> None:
        self._quotas = quotas
        self._snapshots = snapshots
        self._booted: dict[tuple[str, str, str], TemplateSpec] = {}  # owner, name, interpreter

    def check(self, template: TemplateSpec, owner: str) -> None:
        """Raise InvalidArgument if the name means another template, or a saved snapshot."""
        known = self._booted.get((owner, template.name, template.python))
        if known is not None and known != template:
            preloads = ", ".join(known.preload) or "none"
            raise wrong_argument(
                "template",
                f"the template {template.name!r} already exists with other preloads: {preloads}",
                hint="choose another name, or the same preloads",
            )
        if self._snapshots.is_saved(template.name, owner):
            raise wrong_argument(
                "template", f"a snapshot is already saved as {template.name!r}", hint="choose another name"
            )

    def booting(self, spec: SandboxSpec, allowance: Allowance) -> AbstractContextManager[None]:
        """Inside, the template of a spec boots and counts in its owner's quota. Raises LimitReached."""
        if spec.template.builtin:
            return nullcontext()
        return self._quotas.boot(spec.owner, spec.template.name, allowance, self._own(spec.owner))

    def booted(self, spec: SandboxSpec) -> None:
        self._booted.setdefault((spec.owner, spec.template.name, spec.template.python), spec.template)

    def save(self, snapshot: Snapshot, name: str, allowance: Allowance) -> None:
        """Make a snapshot a template of its owner's. Raises LimitReached; InvalidArgument for a name that is taken."""
        owner = snapshot.owner
        self._quotas.check_template(owner, name, allowance, self._own(owner))
        taken = any((of, known) == (owner, name) for of, known, _ in self._booted)
        self._snapshots.save(snapshot, name, taken)

    def check_saving(self, snapshot: Snapshot, name: str, allowance: Allowance, on_disk: Set[str]) -> None:
        """Raise InvalidArgument if a template has the name, which would hide what is saved by it; or LimitReached.

        ``on_disk``: what this owner has saved there.
        """
        check_template_name(name)
        if name in BUILTIN_TEMPLATES or any((of, known) == (snapshot.owner, name) for of, known, _ in self._booted):
            raise must("name", "be one that no template has yet", name)
        self._quotas.check_template(snapshot.owner, name, allowance, self._own(snapshot.owner) | on_disk)

    def _own(self, owner: str) -> set[str]:
        """The names of an owner's own templates."""
        own = {name for (of, name, _), spec in self._booted.items() if of == owner and not spec.builtin}
        return own | self._snapshots.names(owner)
