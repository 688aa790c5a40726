"""Names in Redis: all under one prefix, and never shaped by a user's text."""

from __future__ import annotations

import pytest

from jobs_admin.core import keys


@pytest.mark.parametrize("name", ["shop", "a", "shop-2", "my_app", "0"])
def test_a_plain_name_may_name_a_source(name):
    assert keys.valid_source(name)


@pytest.mark.parametrize("name", ["", "Shop", "-a", "a b", "a:b", "{a}", "a\n", "ä", "a" * 64])
def test_a_name_that_could_shape_a_key_may_not(name):
    assert not keys.valid_source(name)


def test_every_key_starts_with_the_prefix():
    made = [
        keys.failures("s", "p"),
        keys.workers("s", "p"),
        keys.switch("p"),
        keys.steps("p"),
        keys.ledger("s", "r", "p"),
    ]
    assert all(key.startswith("p:") for key in made)
    assert len(set(made)) == len(made)


def test_a_key_of_a_source_carries_it_between_braces():
    assert keys.ledger("shop", "r1") == "redrive:{shop}:ledger:r1"


def test_what_scripts_keep_has_its_layouts_number_in_its_name_from_the_second_on(monkeypatch):
    made = [keys.due, keys.due_jobs, keys.due_claims, keys.budget, keys.boots]
    assert [name("shop") for name in made] == [
        "redrive:{shop}:due",
        "redrive:{shop}:due:jobs",
        "redrive:{shop}:due:claims",
        "redrive:{shop}:budget",
        "redrive:{shop}:crash:boots",
    ]
    for layout in keys.LAYOUTS:
        monkeypatch.setitem(keys.LAYOUTS, layout, 2)
    assert [name("shop") for name in made] == [
        "redrive:{shop}:due:2",
        "redrive:{shop}:due:2:jobs",
        "redrive:{shop}:due:2:claims",
        "redrive:{shop}:budget:2",
        "redrive:{shop}:crash:2:boots",
    ]
    assert keys.crash("shop", "j") == "redrive:{shop}:crash:2:job:j"
    assert keys.starts("shop", "p") == "redrive:{shop}:limits:2:starts:p"
