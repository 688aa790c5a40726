"""A notice goes where its rule says, else to the channels that want its kind; what is too old, or too much, says so."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from django.utils import timezone

from jobs_admin import notices
from jobs_admin.models import Channel, Delivery, Notice
from jobs_admin.notices import routing, sealing
from tests.kit.notices import VERA, notice

pytestmark = pytest.mark.django_db


def channel(name: str, *events: str, **more) -> Channel:
    return Channel.objects.create(
        name=name, kind="webhook", url="http://127.0.0.1:9/", events=list(events), secrets=[sealing.seal(sealing.make())], **more
    )  # fmt: skip


def list_deliveries() -> list[tuple[str, str, str]]:
    rows = Delivery.objects.order_by("notice__pk", "channel__pk")
    return list(rows.values_list("notice__key", "channel__name", "state"))


def test_a_rules_notice_goes_to_its_channels_and_others_to_those_that_want_them():
    one, two, three = channel("one"), channel("two", "job.escalated", "replay.held"), channel("three", "replay.done")
    notice(one, three, key="a")
    notice(key="b", type="job.escalated")
    notice(key="c", type="poison.quarantined")
    assert routing.route(timezone.now())
    assert list_deliveries() == [("a", "one", "waiting"), ("a", "three", "waiting"), ("b", "two", "waiting")]
    assert not Notice.objects.filter(routed_at=None).exists() and not routing.route(timezone.now())
    assert two.deliveries.count() == 1


def test_of_two_that_route_at_once_one_makes_the_rows():
    one = channel("one", "replay.done")
    made = notice(key="a", type="replay.done")
    routing.route(timezone.now())
    Notice.objects.filter(pk=made.pk).update(routed_at=None)  # as if the other had read it before
    routing.route(timezone.now())
    assert one.deliveries.count() == 1


def test_what_a_disabled_channel_misses_is_in_its_log():
    one = channel("one", disabled_at=timezone.now(), why_disabled="The endpoint answered 410 (gone).")
    notice(one)
    routing.route(timezone.now())
    row = Delivery.objects.get()
    assert (row.state, row.error) == ("parked", "The channel is disabled: The endpoint answered 410 (gone).")


def test_what_could_not_be_reported_for_a_day_is_not_reported_by_itself():
    one = channel("one")
    notice(one)
    routing.route(timezone.now() + timedelta(hours=30))
    row = Delivery.objects.get()
    assert row.state == "parked" and row.error.startswith("The notice was 30 hours old")


def test_a_thousand_jobs_that_need_a_person_are_not_a_thousand_calls():
    one = channel("one", "job.escalated")
    for n in range(150):
        notice(key=f"k{n}", type="job.escalated")
    while routing.route(timezone.now()):
        continue
    assert one.deliveries.filter(state="waiting").count() == routing.MOST_A_MINUTE
    (others,) = one.deliveries.filter(state="parked")
    assert others.counts == 90 and others.error.startswith("More than 60")
    assert notices.delivery(VERA, others.pk).error.endswith("Notices not sent, including this one: 90.")
    notice(key="one more", type="job.escalated")
    routing.route(timezone.now())
    assert one.deliveries.get(state="parked").counts == 91
    notice(key="later", type="job.escalated")
    routing.route(timezone.now() + timedelta(minutes=2))
    assert one.deliveries.get(notice__key="later").state == "waiting"


def test_a_storm_at_a_disabled_channel_leaves_no_row_for_each_job_either():
    one = channel("one", "job.escalated", disabled_at=timezone.now(), why_disabled="The endpoint answered 410 (gone).")
    for n in range(150):
        notice(key=f"k{n}", type="job.escalated")
    while routing.route(timezone.now()):
        continue
    assert one.deliveries.count() == routing.MOST_A_MINUTE + 1 and one.deliveries.get(counts__gt=0).counts == 90


@pytest.mark.parametrize("is_of_a_rule", [True, False])
def test_with_many_channels_a_transaction_makes_few_rows(is_of_a_rule):
    """So that no one who writes meanwhile waits long for it."""
    channels = [channel(f"c{n}", "job.escalated") for n in range(40)]
    for n in range(50):
        if is_of_a_rule:
            notice(*channels, key=f"k{n}")
        else:
            notice(key=f"k{n}", type="job.escalated")
    made = [0]
    while routing.route(timezone.now()):
        made.append(Delivery.objects.count())
    rises = [later - before for before, later in pairwise(made)]
    assert made[-1] == 50 * 40 and max(rises) < routing._ROWS_AT_ONCE + len(channels)
    assert not Notice.objects.filter(routed_at=None).exists()


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
