"""Computed distributions of many waits, where the law of their sum is known: they must be equal."""

from __future__ import annotations

from statistics import NormalDist

import pytest

from jobs_admin.core import retry_times
from jobs_admin.core.policy import parse

FULL = {"kind": "full"}


def total_time(attempts, jitter=FULL, **backoff):
    return retry_times.total_time(parse({"backoff": backoff, "jitter": jitter, "max_attempts": attempts}))


def test_one_wait_is_even():
    found = total_time(2, kind="fixed", first_delay_s=60)
    assert [found.quantile(share) for share in (0, 0.25, 0.5, 1)] == pytest.approx([0, 15, 30, 60])
    assert found.share_until(-1) == 0 and found.share_until(15) == pytest.approx(0.25) and found.share_until(61) == 1


def test_two_equal_waits_have_a_triangle():
    found = total_time(3, kind="fixed", first_delay_s=60)
    for at, share in ((30, 0.125), (60, 0.5), (90, 0.875)):
        assert found.share_until(at) == pytest.approx(share, abs=1e-4)


def test_waits_without_jitter_only_move_it():
    found = total_time(6, {"kind": "none"}, kind="linear", first_delay_s=30)
    assert found.start == found.end == found.quantile(0.01) == found.quantile(0.99) == 450


@pytest.mark.parametrize("attempts", [60, 1000])
def test_many_equal_waits_are_nearly_normal(attempts):
    found, waits = total_time(attempts, kind="fixed", first_delay_s=60), attempts - 1
    normal = NormalDist(30 * waits, 60 * (waits / 12) ** 0.5)
    for share in (0.01, 0.16, 0.5, 0.84, 0.99):
        assert found.quantile(share) == pytest.approx(normal.inv_cdf(share), abs=0.04 * normal.stdev)


def test_one_wait_that_outweighs_all_others_is_not_lost_among_them():
    found = total_time(200, kind="table", delays_s=[10] * 30 + [36_000] + [10])
    for share in (0.01, 0.1, 0.5, 0.9, 0.99):
        assert found.quantile(share) == pytest.approx(990 + 36_000 * share, rel=0.01)


def test_there_is_a_law_for_every_retry_up_to_a_picture_full():
    times = retry_times.laws(
        parse({"backoff": {"kind": "fixed", "first_delay_s": 60}, "jitter": FULL, "max_attempts": 1000})
    )
    assert len(times) == retry_times.MOST_RETRIES
    assert [one.quantile(0.5) for one in times] == pytest.approx(
        [30 * n for n in range(1, retry_times.MOST_RETRIES + 1)]
    )
    assert retry_times.laws(parse({"max_attempts": 1})) == ()
