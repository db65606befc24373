"""Builds the native parts: extensions for freezing and for copies of files, and the helper behind the walls."""

from __future__ import annotations

import os
import runpy
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FREEZING = Path("src/ramet/freezing/native")
ISOLATION = Path("src/ramet/isolation/native")
WIRE = Path("src/ramet_guest/wire.py")
HELPER = Path("ramet/isolation/ramet-pod")
FLAGS = ["-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-result", "-fstack-protector-strong"]


def wire_header(source: Path) -> str:
    """The constants of `wire.py` as C macros. A tuple becomes an initializer, and a second macro with its length."""
    lines = [
        "/* Generated from wire.py by setup.py; not to be edited. */",
        "#ifndef RAMET_WIRE_H",
        "#define RAMET_WIRE_H",
    ]
    for name, value in runpy.run_path(str(source)).items():
        if name.startswith("_"):
            continue
        if isinstance(value, tuple):
            lines.append(f"#define WIRE_{name} {{{', '.join(map(_in_c, value))}}}")
            lines.append(f"#define WIRE_{name}_COUNT {len(value)}")
        else:
            lines.append(f"#define WIRE_{name} {_in_c(value)}")
    return "\n".join([*lines, "#endif", ""])


def _in_c(value: object) -> str:
    if isinstance(value, str) and value.isascii() and value.isprintable() and not set(value) & set('"\\'):
        return f'"{value}"'
    if type(value) is int:
        return str(value) if -(2**31) <= value < 2**31 else f"{value:#x}ul"
    raise TypeError(f"{WIRE} has {value!r}, which wire.h cannot hold")


class BuildNative(build_ext):
    """Also compiles `ramet-pod`, which is a program and not an extension, and puts it beside the package's modules."""

    def run(self) -> None:
        # In the build folder and not beside the sources: no old one can be packed or compiled by mistake.
        generated = Path(self.build_temp) / "generated"
        generated.mkdir(parents=True, exist_ok=True)
        (generated / "wire.h").write_text(wire_header(WIRE))
        for extension in self.extensions:
            extension.include_dirs.append(str(generated))
        super().run()
        target = (Path("src") if self.inplace else Path(self.build_lib)) / HELPER
        target.parent.mkdir(parents=True, exist_ok=True)
        objects = self.compiler.compile(
            sorted(str(path) for path in [*ISOLATION.glob("*.c"), *ISOLATION.glob("pod/*.c")]),
            output_dir=self.build_temp,
            include_dirs=[str(generated)],
            extra_postargs=FLAGS,
        )
        linked = Path(self.build_temp) / HELPER.name
        try:  # static when the machine has a static C library: the holder then maps nothing of the host
            self.compiler.link_executable(objects, str(linked), extra_postargs=["-static"])
        except Exception:  # setuptools has no public name for a failed link
            self.compiler.link_executable(objects, str(linked))
        # A new inode: a running engine keeps executing the old one.
        fresh = target.with_suffix(".new")
        shutil.copy(linked, fresh)
        fresh.chmod(0o755)
        os.replace(fresh, target)


setup(
    ext_modules=[
        Extension(
            "ramet.freezing._core",
            sources=sorted(str(path) for path in FREEZING.rglob("*.c")),
            depends=[*sorted(str(path) for path in FREEZING.rglob("*.h")), str(WIRE)],
            extra_compile_args=FLAGS,
        ),
        Extension(
            "ramet.isolation._files",
            sources=sorted(str(path) for path in [*ISOLATION.glob("copy*.c"), *ISOLATION.glob("files/*.c")]),
            depends=[*sorted(str(path) for path in ISOLATION.glob("*.h")), str(WIRE)],
            extra_compile_args=FLAGS,
        ),
    ],
    cmdclass={"build_ext": BuildNative},
)
