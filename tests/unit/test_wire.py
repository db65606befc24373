"""The numbers that engine, guest and C share have one source, and sharing them opens no other way into the guest."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ramet_guest import wire

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "ramet_guest" / "wire.py"


def test_the_module_holds_constants_only_and_imports_nothing() -> None:
    docstring, *statements = ast.parse(SOURCE.read_text("utf-8")).body
    assert isinstance(docstring, ast.Expr)
    for statement in statements:
        assert isinstance(statement, ast.Assign), ast.unparse(statement)
        assert not [part for part in ast.walk(statement.value) if isinstance(part, (ast.Call, ast.Name, ast.Attribute))]


def test_it_is_the_only_module_of_the_guest_that_the_package_imports() -> None:
    imports = re.compile(r"^\s*(?:from|import) +(ramet_guest\b.*)$", re.MULTILINE)
    allowed = re.compile(r"ramet_guest import wire|ramet_guest\.wire import .*")
    for path in (ROOT / "src" / "ramet").rglob("*.py"):
        for found in imports.findall(path.read_text("utf-8")):
            assert allowed.fullmatch(found), f"{path}: {found}"


def test_every_name_that_c_uses_is_defined_here() -> None:
    names = {f"WIRE_{name}" for name in vars(wire) if not name.startswith("_")} | {"WIRE_NAMESPACES_COUNT"}
    for path in (ROOT / "src" / "ramet").rglob("native/**/*.[ch]"):
        used = set(re.findall(r"\bWIRE_[A-Z_]+\b", path.read_text("utf-8")))
        assert used <= names, f"{path}: {used - names}"


def test_kinds_of_frames_differ_in_each_direction() -> None:
    to_guest = [
        wire.CONFIGURE,
        wire.RUN,
        wire.THAWED,
        wire.ASK_LOOPS,
        wire.ASK_NAMES,
        wire.WAKE,
        wire.TOOLS,
        wire.INTERRUPT,
        wire.VALUE_GET,
        wire.VALUE_NEXT,
        wire.VALUE_SET,
        wire.VALUE_DROP,
        wire.TAKEN,
    ]
    from_guest = [wire.READY, wire.CONFIGURED, wire.RESULT, wire.DONE, wire.LOOPS, wire.NAMES, wire.VALUE]
    for kinds in (to_guest, from_guest):
        assert len(set(kinds)) == len(kinds)
