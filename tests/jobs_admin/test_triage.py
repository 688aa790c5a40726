from __future__ import annotations

import pytest

from jobs_admin import audit, replays, triage
from jobs_admin.models import AuditEvent, Failure
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, Viewer
from tests.jobs_admin.replays.conftest import ANN, EVE, bury, shop  # noqa: F401

pytestmark = pytest.mark.django_db


def states():
    return list(Failure.objects.order_by("pk").values_list("state", flat=True))


def refusal(act, *args, **more):
    with pytest.raises(triage.TriageRefused) as refused:
        act(*args, **more)
    return refused.value


def test_what_was_discarded_can_be_restored(shop, bury):  # noqa: F811
    ids = bury(3)
    done = triage.discard(ANN, selection=ids[:2], reason="spam")
    assert (done.count, states()) == (2, ["discarded", "discarded", "dead"])
    assert triage.restore(ANN, selection=done.ids).count == 2
    assert states() == ["dead"] * 3


def test_the_reason_says_in_plain_words_who_did_it(shop, bury):  # noqa: F811
    done = triage.discard(ANN, selection=bury(1))
    assert Failure.objects.get().reason == "discarded by ann"
    triage.restore(ANN, selection=done.ids)
    assert Failure.objects.get().reason == "restored by ann"


def test_all_that_match_are_discarded_and_nothing_else(shop, bury):  # noqa: F811
    bury(2, queue="webhooks")
    bury(1)
    assert triage.discard(ANN, query="queue:webhooks", reason="gone").count == 2
    assert states() == ["discarded", "discarded", "dead"]


def test_only_what_is_dead_is_discarded(shop, bury):  # noqa: F811
    for state in ("retrying", "replaying", "recovered", "discarded"):
        bury(state=state)
    assert triage.discard(ANN, query="state:*", reason="all").count == 0


def test_a_job_in_an_open_replay_stays(shop, bury):  # noqa: F811
    ids = bury(2)
    replays.start(ANN, replays.draft(ANN, selection=ids[:1]))
    assert triage.discard(ANN, selection=ids, reason="x").ids == ids[1:]


def test_discarding_twice_changes_once(shop, bury):  # noqa: F811
    ids = bury()
    assert [triage.discard(ANN, selection=ids).count for _ in range(2)] == [1, 0]
    assert AuditEvent.objects.count() == 1


def test_every_act_and_every_refusal_is_written_down(shop, bury):  # noqa: F811
    ids = bury(2)
    triage.discard(ANN, selection=ids, reason="spam")
    refusal(triage.restore, EVE, selection=ids)
    events = AuditEvent.objects.order_by("pk").values_list("actor", "act", "reason", "allowed")
    assert events[0] == ("ann", "failure.discard", "spam", True)
    assert events[1][0::3] == ("eve", False)
    assert AuditEvent.objects.first().after["ids"] == ids


def test_many_at_once_need_a_reason(shop, bury):  # noqa: F811
    assert refusal(triage.discard, ANN, selection=bury(2)).field == "reason"


def test_sources_without_the_right_are_left_alone(shop, bury):  # noqa: F811
    ids = bury() + bury(source="web")
    bob = Viewer("bob", {"shop": OPERATOR, "web": VIEWER})
    assert triage.discard(bob, selection=ids).ids == ids[:1]
    assert refusal(triage.discard, bob, selection=ids[1:]).code == "forbidden"


def test_nothing_is_discarded_in_a_read_only_desk(shop, bury, settings):  # noqa: F811
    settings.REDRIVE_READ_ONLY = True
    assert refusal(triage.discard, ANN, selection=bury()).code == "read_only"
    assert states() == ["dead"]


def test_the_admin_of_a_source_sees_what_was_set_aside_there(shop, bury):  # noqa: F811
    here, there = bury(2), bury(1, source="web")
    triage.discard(ANN, selection=here + there, reason="spam")
    (row,) = audit.listing(Viewer("amy", {"shop": ADMIN})).rows
    assert (row.source, row.after["ids"]) == ("shop", here)
    refusal(triage.restore, EVE, selection=there)
    assert [row.allowed for row in audit.listing(Viewer("amy", {"web": ADMIN})).rows] == [False, True]


def test_what_may_not_be_seen_is_answered_like_what_is_not_there(shop, bury):  # noqa: F811
    (foreign,) = bury(source="web")
    bob = Viewer("bob", {"shop": OPERATOR})
    assert triage.discard(bob, selection=[foreign]) == triage.discard(bob, selection=[foreign + 1000])
    assert states() == ["dead"]
    assert [row.allowed for row in audit.listing(Viewer("amy", {"web": ADMIN})).rows] == [False]
