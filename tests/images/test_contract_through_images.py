"""What a child of a fork has, a sandbox has that went through an image on disk: the tests of the contract, once more.

The fixtures of this folder make a "child" by writing a snapshot to disk and reading it back.
"""

from __future__ import annotations

import pytest

from tests.fork.test_contract import *  # noqa: F403
from tests.fork.test_contract_of_files import *  # noqa: F403
from tests.fork.test_threads import *  # noqa: F403

pytestmark = pytest.mark.deep("load")
