"""Entry point of the guest: `python -P -X utf8 .../ramet_guest/__main__.py '<json>'`.

Loads the package with a private copy of the builtins, so that `del builtins.len` in a cell does not affect guest code:
a function keeps the builtins that its globals named when it was made. The guest's folder does not go on `sys.path`.
"""

import builtins
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

PACKAGE = "ramet_guest"
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PRIVATE_BUILTINS = dict(vars(builtins))


class PrivateLoader(SourceFileLoader):
    """Loads guest modules whose names resolve to the private builtins."""

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = PRIVATE_BUILTINS
        super().exec_module(module)


class PrivateFinder:
    """Finds the guest package beside this file, and nothing else."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != PACKAGE and not name.startswith(PACKAGE + "."):
            return None
        spec = PathFinder.find_spec(name, [FOLDER] if path is None else path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = PrivateLoader(spec.loader.name, spec.loader.path)
        return spec


def main() -> None:
    # Stays installed: some guest modules are imported later, on first use.
    sys.meta_path.insert(0, PrivateFinder)
    from ramet_guest import boot

    boot.main(sys.argv[1], FOLDER)


if __name__ == "__main__":
    main()
