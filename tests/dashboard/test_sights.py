"""No one sees anything of a source without a role on it: a random desk, random people, every address of the URLconf."""

from __future__ import annotations

import random

from dashboard.web.rights import addresses
from tests.rigs import sights


def test_no_answer_tells_of_a_source_out_of_sight(watched, settings, tmp_path, db):
    rng = random.Random(7)
    world = sights.draw(rng, settings, tmp_path)
    found = sights.look(rng, world, 300, compared=0.3)
    assert found.leaks == []
    assert found.compared > 10 and len(found.addresses) > 200
    assert {one.route for one in sights.reachable()} >= {one.route for one in addresses() if one.kind == "api"}
