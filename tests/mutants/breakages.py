"""All breakages. A refactor that moves what is broken here is told so when they are run, and updates the list."""

from __future__ import annotations

from tests.mutants.of_engine import ENGINE
from tests.mutants.of_faces import FACES
from tests.mutants.of_freezing import FREEZING
from tests.mutants.of_guest import GUEST
from tests.mutants.of_images import IMAGES
from tests.mutants.of_network import NETWORK
from tests.mutants.of_server import SERVER
from tests.mutants.of_walls import WALLS

BREAKAGES = (*WALLS, *FREEZING, *IMAGES, *ENGINE, *NETWORK, *SERVER, *GUEST, *FACES)
