"""Clients that lost a server together do not come back together."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.reconnect_delay import ReconnectDelay


@given(
    st.floats(0.01, 10), st.floats(0.01, 100), st.floats(0, 5), st.integers(1, 2000), st.floats(0, 1, exclude_max=True)
)
def test_no_pause_leaves_its_bounds_however_many_came_before(first, most, least, tries, u):
    pauses = ReconnectDelay(first, most, least, lambda: u)
    drawn = [pauses.failed() for _ in range(tries)]
    assert all(least <= one <= max(most, least) for one in drawn)
    assert drawn == sorted(drawn)  # the same draw never falls


def test_what_may_be_drawn_doubles_until_its_most_and_a_success_starts_again():
    pauses = ReconnectDelay(1, 5, draw=lambda: 1 - 2**-53)
    assert [round(pauses.failed(), 6) for _ in range(5)] == [1, 2, 4, 5, 5]
    pauses.succeeded()
    assert round(pauses.failed(), 6) == 1


def test_every_part_of_the_range_is_drawn():
    pauses = ReconnectDelay(8, 8, least_s=2, draw=Random(1).random)
    assert {int((pauses.failed() - 2) / 0.6) for _ in range(1000)} == set(range(10))


def test_two_hundred_that_lost_a_server_together_query_it_at_different_times():
    """A fleet for a minute: in no tenth of a second more than a few ask, once the first pauses are over."""
    random, counts = Random(3), Counter()
    for _ in range(200):
        pauses, at = ReconnectDelay(1, 5, 0.5, random.random), 0.0
        while (at := at + pauses.failed()) < 60:
            counts[int(at * 10)] += 1
    later = [counts[tenth] for tenth in range(100, 600)]
    assert max(later) < 25  # 200 every 2.75 s are seven in a tenth of a second
    assert min(later) > 0
