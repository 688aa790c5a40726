from __future__ import annotations

import pytest

from demo.temper import COLD_RATE, FALLEN_S, WARM_RATE, WARMING_S, Temper


def request_evenly(temper, rate, *, start, seconds):
    """Statuses of `rate` requests/s for so long, evenly spread."""
    return [temper.answer(start + n / rate).status for n in range(int(rate * seconds))]


def test_well_it_answers_everything():
    assert set(request_evenly(Temper(0), 500, start=0, seconds=2)) == {200}


def test_an_outage_cuts_connections_and_answers_503_in_turn():
    temper = Temper(0)
    temper.change("outage", 0)
    assert request_evenly(temper, 10, start=0, seconds=1) == [0, 503] * 5


def test_above_its_limit_it_shows_when_to_come_back_and_then_answers():
    temper = Temper(0)
    temper.change("rate_limit", 0, limit=2)
    answers = [temper.answer(0.1 * n) for n in range(5)]
    assert [a.status for a in answers] == [200, 200, 429, 429, 429]
    assert temper.answer(0.4 + answers[-1].retry_after_s).status == 200


@pytest.mark.parametrize("limit", [0.5, 2, 25])
def test_a_rate_limit_lets_through_its_rate_and_not_more(limit):
    temper = Temper(0)
    temper.change("rate_limit", 0, limit=limit)
    taken = request_evenly(temper, 100, start=0, seconds=20).count(200)
    assert limit * 20 * 0.9 <= taken <= limit * 20 + limit + 1


def test_warming_up_it_carries_more_and_more():
    temper = Temper(0)
    temper.change("warming", 0)
    assert temper.capacity(0) == COLD_RATE
    temper.answer(0)
    assert temper.capacity(WARMING_S / 2) == (COLD_RATE + WARM_RATE) / 2
    assert set(request_evenly(temper, COLD_RATE, start=0, seconds=10)) == {200}


def test_it_is_cold_until_the_first_request_however_long_that_takes():
    """On a busy machine the jobs came when it was warm, and everything at once did not knock it over."""
    temper = Temper(0)
    temper.change("warming", 0)
    assert temper.capacity(10 * WARMING_S) == COLD_RATE and temper.state(10 * WARMING_S)["mode"] == "warming"
    assert 503 in request_evenly(temper, 4 * COLD_RATE, start=10 * WARMING_S, seconds=3)


def test_warming_up_it_falls_over_above_its_capacity_and_warms_again_later():
    temper = Temper(0)
    temper.change("warming", 0)
    assert 503 in request_evenly(temper, 4 * COLD_RATE, start=0, seconds=3)
    assert temper.state(3)["fell_over"]
    assert temper.answer(3 + FALLEN_S).status == 200
    assert temper.state(3 + FALLEN_S)["mode"] == "warming"


def test_warming_up_it_carries_a_rate_that_rises_as_it_does():
    temper = Temper(0)
    temper.change("warming", 0)
    for second in range(int(WARMING_S)):
        assert set(request_evenly(temper, int(temper.capacity(second)), start=second, seconds=1)) == {200}
    assert temper.state(WARMING_S)["mode"] == "well"


def test_it_reports_the_requests_of_the_last_seconds_by_answer():
    temper = Temper(0)
    temper.change("outage", 0)
    request_evenly(temper, 10, start=0, seconds=5)
    seen = temper.state(5)
    assert (seen["requests_per_s"], seen["refused_per_s"]) == (10, 10)
    assert seen["by_status"] == {"503": 25, "cut": 25}
    assert temper.state(100)["by_status"] == {}


def test_a_mode_that_is_not_is_refused_and_changes_nothing():
    temper = Temper(0)
    with pytest.raises(ValueError, match="Nothing was changed"):
        temper.change("sulking", 0)
    with pytest.raises(ValueError, match="Nothing was changed"):
        temper.change("slow", 0, delay_s=float("nan"))
    assert temper.mode.name == "well"
