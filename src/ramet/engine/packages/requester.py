"""The sandbox that asks for packages, reduced to what decides which files pip would install there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from ramet.engine.network.variables import certificates, is_of_the_system
from ramet.engine.packages.requirements import Requirements
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.network.specs import Attempt, NetworkSpec
from ramet.protocol.values.specs import Limits, SandboxSpec, TemplateSpec

_FORMAT = 2  # version of the store: trees of another version are not found
# Settings that say where packages come from. With any other pip setting of its owner, a sandbox is left to pip.
_INDEX_SETTINGS = frozenset(("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"))
# Settings that say which certificates pip trusts. A file of the system is the same in the installing sandbox.
_TRUST_SETTINGS = frozenset(("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"))
# Settings that do not change the installed files. The guest has the same list, in packaging/pip_arguments.py.
_WITHOUT_EFFECT = frozenset(
    (
        "PIP_RETRIES",
        "PIP_NO_INPUT",
        "PIP_NO_COLOR",
        "PIP_PROGRESS_BAR",
        "PIP_NO_CACHE_DIR",
        "PIP_CACHE_DIR",
        "PIP_DEFAULT_TIMEOUT",
        "PIP_TIMEOUT",
        "PIP_ROOT_USER_ACTION",
        "PIP_BREAK_SYSTEM_PACKAGES",
        "PIP_DISABLE_PIP_VERSION_CHECK",
    )
)
_KEPT_SECONDS = 24 * 3600
_KEPT_PINNED_SECONDS = 7 * 24 * 3600  # not for ever: the dependencies of a pinned package need not be pinned


@dataclass(frozen=True, slots=True)
class Requester:
    """A sandbox as its owner made it. Code that runs in the sandbox can change none of these fields."""

    template: TemplateSpec
    limits: Limits
    owner: str
    network: NetworkSpec
    settings: tuple[tuple[str, str], ...]  # pip's, in the environment that the owner gave
    secrets: bool
    certificates: str | None = None  # the file that we, not the owner, told programs to trust
    # Receives the connections that were tried on its behalf, for its log.
    on_attempts: Callable[[Iterable[Attempt]], None] = field(default=lambda attempts: None, compare=False)

    @classmethod
    def of(
        cls, spec: SandboxSpec, on_attempts: Callable[[Iterable[Attempt]], None] = lambda attempts: None
    ) -> Requester:
        pip = (pair for pair in spec.environment if pair[0].startswith("PIP_") or pair[0] in _TRUST_SETTINGS)
        network = spec.network or NetworkSpec()
        return cls(
            template=spec.template,
            limits=spec.limits,
            owner=spec.owner,
            network=network,
            settings=tuple(sorted((name, value) for name, value in pip if name not in _WITHOUT_EFFECT)),
            secrets=any(secret.name.startswith("PIP_") for secret in spec.secrets),
            certificates=certificates(bool(spec.secrets or network.ca_pem), dict(spec.environment)),
            on_attempts=on_attempts,
        )

    def why_not(self, settings: Mapping[str, str]) -> str | None:
        """Why this request is left to pip, or None. ``settings``: pip's, in the requesting program's environment."""
        if self.secrets or any(name not in _INDEX_SETTINGS | _TRUST_SETTINGS for name, _ in self.settings):
            return "its owner's settings of pip say more than where packages come from"
        if any(name in _TRUST_SETTINGS and not is_of_the_system(value) for name, value in self.settings):
            return "its owner trusts certificates of its own"
        if self._of_pip(dict(self.settings)) != self._of_pip(settings):
            return "other settings of pip than its owner's"
        if self.network.total_bytes is not None or self.network.bytes_per_second is not None:
            # Bytes of the installing sandbox would not count against the limits of this one.
            return "what it may send and receive is limited"
        return None

    def indexes(self, default: str | None) -> list[str]:
        """The URLs that pip would ask; ``default`` is pip's own index, if the interpreter's pip has one."""
        settings = dict(self.settings)
        first = settings.get("PIP_INDEX_URL") or default
        return [url for url in (first, *settings.get("PIP_EXTRA_INDEX_URL", "").split()) if url]

    def _of_pip(self, settings: Mapping[str, str]) -> dict[str, str]:
        """The pip settings without the one that we set ourselves."""
        known = ("PIP_CERT", self.certificates)
        return {name: value for name, value in settings.items() if name[:4] == "PIP_" and (name, value) != known}

    def key(self, wanted: Requirements, base: Mapping[str, str], now: float) -> str:
        """The key of the tree in the store: equal requests have equal keys.

        The owner is part of it: otherwise one owner could learn from the speed of an answer what another has installed.
        """
        period = int(now // (_KEPT_PINNED_SECONDS if wanted.all_pinned else _KEPT_SECONDS))
        parts = {
            "format": _FORMAT,
            "python": [self.template.interpreter.executable, self.template.interpreter.version],
            "base": sorted(base.items()),
            "owner": self.owner,
            "settings": self.settings,
            "network": {
                "open": self.network.open,
                "allow": sorted(map(str, self.network.allow)),
                "deny": sorted(map(str, self.network.deny)),
                "addresses": sorted(self.network.addresses),
                "ca_pem": self.network.ca_pem,
            },
            "wanted": wanted.header(),
            "period": period,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
