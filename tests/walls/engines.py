"""Engines of this process that no other test shares."""

from __future__ import annotations

from ramet import Sandbox
from ramet.transport import embedded
from ramet.transport.embedded import close_engine


class fresh_engine:
    """An engine apart from the one that other tests share; theirs is put back afterwards."""

    def __enter__(self) -> embedded.EmbeddedEngine:
        self._before, embedded._default = embedded._default, None
        self.engine = embedded.default_engine()
        with Sandbox() as sandbox:
            sandbox.run_code("1")
        return self.engine

    def __exit__(self, *_: object) -> None:
        close_engine()
        embedded._default = self._before
