"""No one sees anything of a source without a role on it: a random desk, random people, every address of the URLconf."""

from __future__ import annotations

import random

import pytest
from django.contrib.auth import get_user_model

from dashboard.web.rights import addresses
from jobs_admin.models import Role
from jobs_admin.models.access import ADMIN
from tests.rigs import sights


@pytest.mark.long("Asks for every address as several viewers.")
def test_no_answer_shows_a_source_out_of_sight(watched, settings, tmp_path, db):
    rng = random.Random(7)
    world = sights.draw(rng, settings, tmp_path)
    found = sights.run_questions(rng, world, 300, compared=0.3)
    assert found.leaks == []
    assert found.compared > 10 and len(found.addresses) > 200
    assert {one.route for one in sights.reachable()} >= {one.route for one in addresses() if one.kind == "api"}


@pytest.mark.long("Draws a desk, and asks 200 questions of it.")
def test_a_right_that_a_person_should_not_have_is_found(watched, settings, tmp_path, db):
    """Also where the request names the source, as no share of the pages is drawn to be compared."""
    rng = random.Random(13)
    world = sights.draw(rng, settings, tmp_path)
    for person in world.people:  # a right on everything, of which `person.sources` does not know
        Role.objects.create(user=get_user_model().objects.get(username=person.name), source="*", role=ADMIN)
    found = sights.run_questions(rng, world, 200, compared=0)
    leaks = [one for one in found.leaks if " tells " in one]
    differing = [one for one in found.leaks if " depends on " in one]
    assert len(leaks) > 10
    assert found.repeating > 3 and found.compared == found.repeating
    assert any(one.startswith("GET ") for one in differing) and not all(one.startswith("GET ") for one in differing)
