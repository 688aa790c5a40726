"""Times of other ages are refused in words, or looked past, wherever a time can be named."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from urllib.parse import quote

import pytest

from dashboard.web import moments
from tests.kit.failures import bury

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]

OTHER_AGES = [
    "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00Z", "1999-12-31T23:59:59Z", "3000-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00",
]  # fmt: skip


def refused(response) -> bool:
    assert response.status_code == 422, (response.status_code, response.content[:200])
    error = json.loads(response.content)["error"]
    return error["code"] == "invalid" and moments.BOUNDS in error["message"]


@pytest.mark.parametrize("at", OTHER_AGES)
def test_the_api_refuses_them(call_api, at):
    bury(1)
    silence = {"matchers": {"source": "shop"}, "comment": "c"}
    assert refused(call_api("POST", "silences", silence | {"starts_at": at, "for_s": 60}))
    assert refused(call_api("POST", "silences", silence | {"ends_at": at}))
    assert refused(call_api("POST", "releases", {"source": "shop", "version": "1", "at": at}, role="operator"))
    assert refused(call_api("POST", "policies/backtest", {"since": at}))
    for name in ("since", "until"):
        assert refused(call_api("GET", f"depth?source=shop&queue=emails&{name}={quote(at)}"))


@pytest.mark.parametrize("at", OTHER_AGES)
def test_pages_refuse_or_ignore_them(ann, at):
    bury(1)
    value = quote(at)
    for name in ("since", "until"):
        for path in (
            "/incidents/",
            "/incidents/as/markdown/",
            "/incidents/as/json/",
            "/queues/shop/emails/",
            "/audit/",
        ):
            page = ann.get(f"{path}?source=shop&{name}={value}")
            assert page.status_code in (200, 400, 404, 422), (path, page.status_code)
        assert ann.get(f"/queues/shop/emails/?since=2001-01-01T00:00Z&until={value}").status_code < 500
    for query in (f"seen:>{at}", f"failed:<{at}", f"first_seen:<{at}"):
        assert ann.get(f"/failures/?q={quote(query)}").status_code == 200
    form = {"source": "shop", "comment": "c"}
    for message in ({"for": "3600", "starts": at}, {"for": "until", "until": at}):
        assert ann.post("/alerts/silences/save/", form | message).status_code in (302, 422)


def test_a_moment_is_shown_in_utc():
    assert moments.sane(datetime.fromisoformat("2026-11-22T03:00:00+02:00")) == datetime(2026, 11, 22, 1, tzinfo=UTC)
    assert moments.sane(datetime(2026, 11, 22)).tzinfo is None  # noqa: DTZ001
