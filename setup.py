"""Builds the native parts: extensions for freezing and for copies of files, and the helper behind the walls."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FREEZING = Path("src/ramet/freezing/native")
ISOLATION = Path("src/ramet/isolation/native")
HELPER = Path("ramet/isolation/ramet-pod")
FLAGS = ["-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-result", "-fstack-protector-strong"]


class BuildNative(build_ext):
    """Also compiles `ramet-pod`, which is a program and not an extension, and puts it beside the package's modules."""

    def run(self) -> None:
        super().run()
        target = (Path("src") if self.inplace else Path(self.build_lib)) / HELPER
        target.parent.mkdir(parents=True, exist_ok=True)
        objects = self.compiler.compile(
            sorted(str(path) for path in ISOLATION.glob("*.c")), output_dir=self.build_temp, extra_postargs=FLAGS
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
            sources=sorted(str(path) for path in FREEZING.glob("*.c")),
            depends=sorted(str(path) for path in FREEZING.glob("*.h")),
            extra_compile_args=FLAGS,
        ),
        Extension(
            "ramet.isolation._files",
            sources=sorted(str(path) for path in [*ISOLATION.glob("copy*.c"), *ISOLATION.glob("files/*.c")]),
            depends=sorted(str(path) for path in ISOLATION.glob("*.h")),
            extra_compile_args=FLAGS,
        ),
    ],
    cmdclass={"build_ext": BuildNative},
)
