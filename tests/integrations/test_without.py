"""Each integration says how to get its library where that is missing, and `import ramet` needs none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

_USED = {
    "anthropic": ("anthropic", "from ramet.integrations.anthropic import SandboxTools; SandboxTools(None).runnable"),
    "openai-agents": ("agents", "import ramet.integrations.openai_agents"),
    "langchain": ("langchain_core", "import ramet.integrations.langchain"),
    "smolagents": ("smolagents", "import ramet.integrations.smolagents"),
    "pydantic-ai": ("pydantic_ai", "import ramet.integrations.pydantic_ai"),
}


@pytest.mark.parametrize("extra", list(_USED))
def test_a_missing_library_is_told_with_its_cure(extra: str) -> None:
    module, use = _USED[extra]
    program = f"import sys; sys.modules[{module!r}] = None\n{use}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert f"hint: pip install '.[{extra}]'" in ended.stderr


def test_ramet_alone_imports_no_framework() -> None:
    modules = ["anthropic", "agents", "langchain_core", "smolagents", "pydantic_ai", "mcp", "pydantic"]
    program = f"import sys, ramet, ramet.cli.main; print([name for name in {modules} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[]\n"
