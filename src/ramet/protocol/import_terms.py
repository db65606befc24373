"""What the one who imports an image decides: never the image itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from ramet.protocol import fields
from ramet.protocol.checks import BUILTIN_TEMPLATES
from ramet.protocol.lazy_dataclasses import dataclass
from ramet.protocol.values.specs import Interpreter, Limits, TemplateSpec

_SLACK_BYTES = 1 << 30  # template and libraries, as for images that are saved here


@dataclass(frozen=True, slots=True)
class ImportTerms:
    """Whose the image will be, under which name and id in the store, and how much it may bring along."""

    id: str
    name: str
    owner: str
    limits: Limits
    interpreter: Interpreter
    room_bytes: int  # that are left on disk

    @property
    def page_bytes_at_most(self) -> int:
        return self.limits.memory_bytes + _SLACK_BYTES

    @property
    def file_bytes_at_most(self) -> int:
        return self.limits.disk_bytes + self.limits.disk_bytes // 16 + (64 << 20)  # with the headers of its entries

    def template(self, asked: TemplateSpec) -> TemplateSpec:
        """What its sandbox starts anew from when its Python dies. One of our own: an image decides on no preloads."""
        name = asked.name if BUILTIN_TEMPLATES.get(asked.name) == asked.preload else "default"
        return TemplateSpec(name, self.interpreter, BUILTIN_TEMPLATES[name], builtin=True)

    def header(self) -> dict[str, object]:
        return {
            "id": self.id,
            "name": self.name,
            "owner": self.owner,
            "limits": asdict(self.limits),
            "interpreter": self.interpreter.header(),
            "room_bytes": self.room_bytes,
        }

    @classmethod
    def read(cls, header: Mapping[str, object]) -> ImportTerms:
        return cls(
            id=fields.text(header, "id"),
            name=fields.text(header, "name"),
            owner=fields.text(header, "owner"),
            limits=Limits.read(fields.mapping(header, "limits")),
            interpreter=Interpreter.read(fields.mapping(header, "interpreter")),
            room_bytes=fields.natural(header, "room_bytes"),
        )
