from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.utils import timezone

from jobs_admin.management.commands.token import create
from jobs_admin.models import Alert, AuditEvent, DepthSample, Release, Rule, Source
from tests.kit.depths import create_samples, roll

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]


def depth(call_api, source="shop", queue="emails", token=None, **query):
    return call_api("GET", f"depth?{urlencode({'source': source, 'queue': queue, **query})}", token=token)


@pytest.fixture
def now():
    return timezone.now().replace(microsecond=0)


def test_depth_is_a_series_with_its_step_gaps_and_marks(call_api, now):
    create_samples(now - timedelta(minutes=30), 180)
    rule = Rule.objects.create(name="Growing", metric="dead", threshold=1)
    at = now - timedelta(minutes=3)
    row = {"severity": "warning", "value": 5, "threshold": 1, "opened_at": at, "fired_at": at, "state": "firing"}
    alert = Alert.objects.create(rule=rule, source="shop", subject="emails", **row)
    Release.objects.create(source="shop", version="v2", at=at)
    answer = depth(call_api, since=(now - timedelta(hours=1)).isoformat()).json()
    assert answer["step_s"] == 10 and answer["extremes"] is None and answer["source_dead"] is None
    time, waiting, active, delayed, dead, age, failed, succeeded = answer["series"][0]
    assert time.endswith("Z") and (waiting, dead, failed, succeeded) == (0, 0, 1.0, 2.0)
    assert active is delayed is age is None and len(answer["series"]) == 180
    assert [gap["reason"] for gap in answer["gaps"]] == ["before"]
    assert [(mark["kind"], mark["ref"]) for mark in answer["marks"]] == [("alert", str(alert.pk)), ("release", "v2")]


def test_where_a_point_covers_many_checks_the_least_and_the_most_stand_beside_it(call_api, now):
    create_samples(now - timedelta(hours=5), 1800)
    roll(now)
    answer = depth(call_api).json()
    assert answer["step_s"] == 300 and len(answer["extremes"]) == len(answer["series"])
    least, most = answer["extremes"][5][6:]
    assert 0 <= least < answer["series"][5][4] <= most <= 96


@pytest.mark.parametrize("hours", [1, 6, 24, 7 * 24, 14 * 24, 90 * 24, 400 * 24, 4000 * 24])
def test_no_span_has_more_than_a_thousand_points(call_api, now, hours):
    create_samples(now - timedelta(hours=1), 6)
    since = (now - timedelta(hours=hours)).isoformat()
    message = depth(call_api, since=since)
    assert message.status_code == 200 and len(message.json()["series"]) <= 1000


def test_what_is_wrong_with_a_question_is_shown_with_its_field(call_api, now):
    create_samples(now - timedelta(hours=1), 6)
    later = (now + timedelta(hours=1)).isoformat()
    for query, field in (({"since": later}, "since"), ({"points": 1001}, "points"), ({"since": "x"}, "since")):
        message = depth(call_api, **query)
        assert message.status_code == 422 and message.json()["error"]["field"] == field
    assert call_api("GET", "depth?source=shop").status_code == 422


def test_a_queue_out_of_sight_is_answered_like_one_that_is_not_there(call_api, now):
    create_samples(now - timedelta(hours=1), 6)
    answers = [
        depth(call_api, source="shop", queue=queue, token=create(f"of {source} for {queue}", "viewer", source))
        for source, queue in (("shop", "emails"), ("bank", "emails"), ("shop", "nothing"))
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 404]
    assert answers[1].json() == answers[2].json()


def test_a_release_is_shown_once_and_is_in_the_audit(call_api, now):
    at = (now - timedelta(hours=1)).isoformat()
    first = call_api("POST", "releases", {"source": "shop", "version": "v2", "at": at}, role="operator")
    again = call_api("POST", "releases", {"source": "shop", "version": "v2"}, role="operator")
    assert (first.status_code, again.status_code) == (201, 200) and first.json() == again.json()
    reported = Release.objects.get()
    assert reported.at == now - timedelta(hours=1)
    assert reported.told_by == AuditEvent.objects.get(act="release.tell", allowed=True).actor != ""
    assert AuditEvent.objects.filter(act="release.tell", source="shop", allowed=True).count() == 1


def test_a_viewer_may_not_report_a_release_and_the_attempt_is_audited(call_api):
    Source.objects.create(name="bank")
    assert call_api("POST", "releases", {"source": "shop", "version": "v2"}, role="viewer").status_code == 403
    assert not Release.objects.exists()


def test_a_release_of_another_source_is_refused(call_api):
    elsewhere = create("elsewhere", "admin", "bank")
    for source, token in (("shop", elsewhere), ("nothing", None)):
        assert call_api("POST", "releases", {"source": source, "version": "v2"}, token=token).status_code == 404
    assert not Release.objects.exists()


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"version": ""}, "version"), ({"version": " "}, "version"), ({"version": "x" * 101}, "version"), ({"at": "2001-01-01T00:00:00Z"}, "at"), ({"at": "2101-01-01T00:00:00Z"}, "at"), ({"extra": 1}, "extra")],
)  # fmt: skip
def test_an_absurd_release_is_refused_with_its_field(call_api, changes, field):
    message = call_api("POST", "releases", {"source": "shop", "version": "v2"} | changes, role="operator")
    assert message.status_code == 422 and message.json()["error"]["field"] == field and not Release.objects.exists()


def test_a_read_only_desk_takes_no_release(call_api, settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert call_api("POST", "releases", {"source": "shop", "version": "v2"}).status_code == 403
    assert not Release.objects.exists() and not DepthSample.objects.exists()
