from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.message import Message
from types import SimpleNamespace
from urllib.error import HTTPError

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as some

from jobs_admin.core import retry_after
from jobs_admin.core.retry_after import find_wish, seconds
from tests.kit import hostile
from tests.kit.cases import with_cases

NOW = datetime(2026, 11, 20, 10, 0, 0, tzinfo=UTC).timestamp()


@with_cases(
    "wish, found",
    [
        ("120", 120),
        (" 1.5 ", 1.5),
        (60, 60),
        (Decimal("2.5"), 2.5),
        (timedelta(minutes=2), 120),
        (datetime(2026, 11, 20, 10, 1, tzinfo=UTC), 60),
        (datetime(2026, 11, 20, 10, 1), 60),  # without a zone: UTC
        ("Fri, 20 Nov 2026 10:02:00 GMT", 120),  # the three forms of RFC 9110 section 5.6.7
        ("Friday, 20-Nov-26 10:02:00 GMT", 120),
        ("Fri Nov 20 10:02:00 2026", 120),
        ("Fri, 20 Nov 2026 12:02:00 +0200", 120),
        ("-5", 0),
        (-5, 0),
        (math.nan, 0),
        ("nan", 0),
        ("Thu, 19 Nov 2026 10:00:00 GMT", 0),  # past
        (math.inf, math.inf),
        (10**400, math.inf),
        (-(10**400), 0),
        ("9" * 400, math.inf),
    ],
)
def test_seconds_and_dates_are_read(wish, found):
    assert seconds(wish, NOW) == pytest.approx(found)


@pytest.mark.parametrize(
    "nothing",
    [None, True, "", "soon", "1 hour", "0x10", "١٢", "inf", [], {}, b"12", "9" * 2000, "Fri, 99 Nov 2026 10:02:00 GMT"],
)
def test_what_cannot_be_read_is_no_wish(nothing):
    assert seconds(nothing, NOW) is None


@given(
    some.one_of(some.text(), some.floats(), some.integers(), some.binary(), some.timedeltas(), some.datetimes()),
    some.floats(0, 4e9),
)
def test_whatever_is_requested_the_answer_is_a_time_or_nothing(wish, now):
    found = seconds(wish, now)
    assert found is None or found >= 0


class RateLimited(Exception):
    retry_after = 17


class Refused(Exception):
    def __init__(self, headers) -> None:
        self.response = SimpleNamespace(headers=headers)


class Tricky(Exception):
    @property
    def retry_after(self):
        raise RuntimeError("not now")

    response = property(retry_after.fget)


class HasRetryAfterBesideItsResponse(Tricky):
    """An error with its own time to wait: its response is not read."""

    retry_after = 5

    @property
    def response(self):
        raise SystemExit


class Forwards(Exception):
    """Whatever it does not have it asks of what it stands for."""

    def __init__(self, wish) -> None:
        self.retry_after = wish

    def __getattr__(self, name):
        raise SystemExit


def test_an_error_may_report_it_itself_or_carry_a_response():
    assert find_wish(RateLimited()) == 17
    assert find_wish(Refused({"Retry-After": "9"})) == "9"
    assert find_wish(Refused({"retry-after": "9"})) == "9"


def test_the_errors_of_known_libraries_are_read():
    response = httpx.Response(429, headers={"Retry-After": "30"}, request=httpx.Request("GET", "https://partner.test"))
    with pytest.raises(httpx.HTTPStatusError) as raised:
        response.raise_for_status()
    assert find_wish(raised.value) == "30"
    headers = Message()
    headers["Retry-After"] = "31"
    assert find_wish(HTTPError("https://partner.test", 503, "Busy", headers, None)) == "31"
    botocore = Exception()
    botocore.response = {"ResponseMetadata": {"HTTPHeaders": {"retry-after": "32"}}}
    assert find_wish(botocore) == "32"


@pytest.mark.parametrize("headers", [None, 5, "Retry-After", [("Retry-After", "9")], {5: "9"}, {"Retry-After": None}])
def test_an_error_without_a_wish_has_none(headers):
    assert find_wish(Refused(headers)) is None
    assert find_wish(ValueError()) is None


def test_an_error_that_breaks_when_it_is_checked_has_none():
    assert find_wish(Tricky()) is None


def test_headers_without_end_are_checked_for_a_while():
    assert find_wish(hostile.Answered(hostile.Endless())) is None


def test_it_is_known_without_querying_whether_only_code_of_others_can_report():
    at_hand = (
        ValueError("plain"),
        hostile.WithRetryAfter(5),
        hostile.Answered({"Retry-After": "5"}),
        httpx.HTTPStatusError("no", request=None, response=httpx.Response(429)),
        HTTPError("http://a", 429, "no", {"retry-after": "3"}, None),
        RateLimited(),
        HasRetryAfterBesideItsResponse(),
        Forwards(5),
    )
    others = (
        hostile.RetryAfterSleeps(),
        Tricky(),
        hostile.GetattrRaises(),
        hostile.GetattributeRaises(),
        hostile.Answered(hostile.Endless()),
        hostile.Answered(hostile.GetattributeRaises()),
    )
    assert [retry_after.is_at_hand(error) for error in at_hand] == [True] * 8
    assert [find_wish(error) for error in at_hand] == [None, 5, "5", None, "3", 17, 5, 5]
    assert [retry_after.is_at_hand(error) for error in others] == [False] * 6
