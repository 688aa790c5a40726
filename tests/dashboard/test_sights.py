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


@pytest.mark.long("Draws a desk, and asks questions of it until enough are repeated.")
def test_a_right_that_a_person_should_not_have_is_found(watched, settings, tmp_path, db):
    """Also where the request names the source, as no share of the pages is drawn to be compared."""
    rng = random.Random(13)
    world = sights.draw(rng, settings, tmp_path)
    for person in world.people:  # a right on everything, of which `person.sources` does not know
        Role.objects.create(user=get_user_model().objects.get(username=person.name), source="*", role=ADMIN)
    rounds = []
    while len(rounds) < 10 and not (sum(one.repeating for one in rounds) > 3 and has_both(differing_in(rounds))):
        rounds.append(sights.run_questions(rng, world, 200, compared=0))
    assert sum(" tells " in one for one in rounds[0].leaks) > 10
    assert sum(one.repeating for one in rounds) > 3 and all(one.compared == one.repeating for one in rounds)
    assert has_both(differing_in(rounds))


def differing_in(rounds: list[sights.Found]) -> list[str]:
    return [one for found in rounds for one in found.leaks if " depends on " in one]


def has_both(differing: list[str]) -> bool:
    """Return whether there is a GET among them, and another method."""
    return {one.startswith("GET ") for one in differing} == {True, False}
