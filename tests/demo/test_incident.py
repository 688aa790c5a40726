from __future__ import annotations

from demo.incident import measure
from demo.story import Side
from demo.temper import FALLEN_S, Temper

BEGAN = 99.75


def side(temper):
    return Side(began=BEGAN, falls_before=temper.falls)


def warming():
    temper = Temper(0)
    temper.change("warming", BEGAN)
    return temper


def test_each_full_second_is_what_the_partner_counted():
    temper = warming()
    measured = side(temper)
    for at in (100.3, 100.4, 101.5, 102.5):
        temper.answer(at)
    for now in (101.1, 102.1, 102.6):
        measure(measured, temper.state(now), left=7)
    assert [second.requests for second in measured.seconds] == [2, 1]
    assert [second.left for second in measured.seconds] == [7, 7]
    assert measured.seconds[1].capacity > measured.seconds[0].capacity >= 8


def test_what_no_one_checked_is_counted_later_and_its_rest_is_unknown():
    temper = warming()
    measured = side(temper)
    temper.answer(100.5)
    temper.answer(102.5)
    measure(measured, temper.state(104.1), left=7)
    assert [second.requests for second in measured.seconds] == [1, 0, 1, 0]
    assert [second.left for second in measured.seconds] == [None, None, None, 7]


def test_what_was_refused_in_the_second_of_its_return_is_not_this_sides():
    temper = Temper(0)
    temper.change("outage", 90)
    temper.answer(99.5)
    temper.change("warming", BEGAN)
    measured = side(temper)
    temper.answer(100.5)
    measure(measured, temper.state(101.1), left=7)
    assert (measured.while_down, measured.peak) == (0, 1)


def test_what_the_partner_has_forgotten_is_a_gap():
    temper = warming()
    measured = side(temper)
    measure(measured, temper.state(BEGAN + 100), left=7)
    assert measured.seconds[0] is None and measured.seconds[-1].requests == 0


def test_a_fall_is_marked_once_and_at_its_moment():
    temper = warming()
    measured = side(temper)
    answers = [temper.answer(101 + n / 50).status for n in range(60)]
    for now in (102.3, 102.8, 110.0):
        measure(measured, temper.state(now), left=50)
    assert len(measured.falls) == 1
    assert 101 - BEGAN < measured.falls[0] < 102.3 - BEGAN
    assert sum(second.refused for second in measured.seconds) == 60 - answers.count(200)
    measure(measured, temper.state(102 + FALLEN_S + 1), left=50)
    assert len(measured.falls) == 1
