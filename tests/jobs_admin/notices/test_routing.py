"""A notice goes where its rule says, else to the channels that want its kind; what is too old, or too much, says so."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin.models import Channel, Delivery, Notice
from jobs_admin.notices import routing, sealing
from tests.jobs_admin.notices.conftest import notice

pytestmark = pytest.mark.django_db


def channel(name: str, *events: str, **more) -> Channel:
    return Channel.objects.create(
        name=name, kind="webhook", url="http://127.0.0.1:9/", events=list(events), secrets=[sealing.seal(sealing.make())], **more
    )  # fmt: skip


def told() -> list[tuple[str, str, str]]:
    rows = Delivery.objects.order_by("notice__pk", "channel__pk")
    return list(rows.values_list("notice__key", "channel__name", "state"))


def test_a_rules_notice_goes_to_its_channels_and_others_to_those_that_want_them():
    one, two, three = channel("one"), channel("two", "job.escalated", "replay.held"), channel("three", "replay.done")
    notice(one, three, key="a")
    notice(key="b", type="job.escalated")
    notice(key="c", type="poison.quarantined")
    assert routing.route(timezone.now())
    assert told() == [("a", "one", "waiting"), ("a", "three", "waiting"), ("b", "two", "waiting")]
    assert not Notice.objects.filter(routed_at=None).exists() and not routing.route(timezone.now())
    assert two.deliveries.count() == 1


def test_of_two_that_route_at_once_one_makes_the_rows():
    one = channel("one", "replay.done")
    made = notice(key="a", type="replay.done")
    routing.route(timezone.now())
    Notice.objects.filter(pk=made.pk).update(routed_at=None)  # as if the other had read it before
    routing.route(timezone.now())
    assert one.deliveries.count() == 1


def test_what_a_disabled_channel_misses_stands_in_its_log():
    one = channel("one", disabled_at=timezone.now(), why_disabled="It answered 410 (gone).")
    notice(one)
    routing.route(timezone.now())
    row = Delivery.objects.get()
    assert (row.state, row.error) == ("parked", "The channel is disabled: It answered 410 (gone).")


def test_what_could_not_be_told_for_a_day_is_not_told_by_itself():
    one = channel("one")
    notice(one)
    routing.route(timezone.now() + timedelta(hours=30))
    row = Delivery.objects.get()
    assert row.state == "parked" and row.error.startswith("It was 30 hours old")


def test_a_thousand_jobs_that_need_a_person_are_not_a_thousand_calls():
    one = channel("one", "job.escalated")
    for n in range(150):
        notice(key=f"k{n}", type="job.escalated")
    while routing.route(timezone.now()):
        continue
    assert one.deliveries.filter(state="waiting").count() == routing.MOST_A_MINUTE
    assert one.deliveries.filter(state="parked", error__startswith="More than 60").count() == 90
    notice(key="later", type="job.escalated")
    routing.route(timezone.now() + timedelta(minutes=2))
    assert one.deliveries.get(notice__key="later").state == "waiting"


def test_notices_of_rules_are_never_too_many():
    one = channel("one")
    for n in range(100):
        notice(one, key=f"k{n}")
    while routing.route(timezone.now()):
        continue
    assert one.deliveries.filter(state="waiting").count() == 100


def test_an_alert_does_not_wait_behind_a_thousand_jobs():
    one = channel("one", "job.escalated")
    for n in range(1_200):
        Notice.objects.create(key=f"k{n}", type="job.escalated", body={})
    notice(one, key="alert")
    routing.route(timezone.now())
    assert one.deliveries.filter(notice__key="alert", state="waiting").exists()
    assert Notice.objects.filter(routed_at=None).count() == 700


def test_a_batch_is_routed_in_few_statements(django_assert_max_num_queries):
    one = channel("one")
    for n in range(100):
        notice(one, key=f"k{n}")
    with django_assert_max_num_queries(12):
        routing.route(timezone.now())
    assert one.deliveries.count() == 100
