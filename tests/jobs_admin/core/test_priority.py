"""Levels of priority, and the number that each queue system has for them."""

from __future__ import annotations

import pytest

from jobs_admin.core.priority import BULLMQ, LEVELS, RABBITMQ, REDIS, level, number, span


def test_the_numbers_are_those_of_each_system():
    assert [number(one, REDIS) for one in LEVELS] == [0, 3, 6, 9]  # kombu's steps; 0 is read first
    assert [number(one, RABBITMQ) for one in LEVELS] == [9, 6, 3, 0]  # the highest goes first
    assert [number(one, BULLMQ) for one in LEVELS] == [1, 3, 5, 10]  # a lower number goes first


@pytest.mark.parametrize("system", [REDIS, RABBITMQ, BULLMQ])
def test_each_number_has_one_level_and_a_level_comes_back(system):
    assert [level(number(one, system), system) for one in LEVELS] == list(LEVELS)
    for n in range(1, 20):
        (found,) = [one for one in LEVELS if (span(one, system)[0] or 0) <= n <= (span(one, system)[1] or 99)]
        assert level(n, system) == found
    order = [LEVELS.index(level(n, system)) for n in range(1, 10)]
    assert order == sorted(order, reverse=system == RABBITMQ)


def test_a_job_of_bullmq_without_a_priority_has_no_level():
    assert level(0, BULLMQ) is None
