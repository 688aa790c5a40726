from __future__ import annotations

import pytest
from django.db import connection
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.failures import triage
from jobs_admin.models import AuditEvent, Failure, Group, Replay
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, Viewer
from tests.kit.people import ANN, EVE

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def states():
    return list(Failure.objects.order_by("pk").values_list("state", flat=True))


def refusal(act, *args, **more):
    with pytest.raises(Refused) as refused:
        act(*args, **more)
    return refused.value


def test_what_was_discarded_can_be_restored(shop, bury):
    ids = bury(3)
    done = triage.discard(ANN, selection=ids[:2], reason="spam")
    assert (done.count, states()) == (2, ["discarded", "discarded", "dead"])
    assert triage.restore(ANN, selection=done.ids).count == 2
    assert states() == ["dead"] * 3


def test_the_reason_reports_in_plain_words_who_did_it(shop, bury):
    done = triage.discard(ANN, selection=bury(1))
    assert Failure.objects.get().reason == "discarded by ann"
    triage.restore(ANN, selection=done.ids)
    assert Failure.objects.get().reason == "restored by ann"


def test_all_that_match_are_discarded_and_nothing_else(shop, bury):
    bury(2, queue="webhooks")
    bury(1)
    assert triage.discard(ANN, query="queue:webhooks", reason="gone").count == 2
    assert states() == ["discarded", "discarded", "dead"]


def test_only_what_is_dead_is_discarded(shop, bury):
    for state in ("retrying", "replaying", "recovered", "discarded"):
        bury(state=state)
    assert triage.discard(ANN, query="state:*", reason="all").count == 0


def test_a_job_in_an_open_replay_stays(shop, bury):
    ids = bury(2)
    replays.start(ANN, replays.draft(ANN, selection=ids[:1]))
    assert triage.discard(ANN, selection=ids, reason="x").ids == ids[1:]


def test_discarding_twice_changes_once(shop, bury):
    ids = bury()
    assert [triage.discard(ANN, selection=ids).count for _ in range(2)] == [1, 0]
    assert AuditEvent.objects.count() == 1


def test_every_act_and_every_refusal_is_written_down(shop, bury):
    ids = bury(2)
    triage.discard(ANN, selection=ids, reason="spam")
    refusal(triage.restore, EVE, selection=ids)
    events = AuditEvent.objects.order_by("pk").values_list("actor", "act", "reason", "allowed")
    assert events[0] == ("ann", "failure.discard", "spam", True)
    assert events[1][0::3] == ("eve", False)
    assert AuditEvent.objects.first().after["ids"] == ids


def test_many_at_once_need_a_reason(shop, bury):
    assert refusal(triage.discard, ANN, selection=bury(2)).field == "reason"


def test_sources_without_the_right_are_left_alone(shop, bury):
    ids = bury() + bury(source="web")
    bob = Viewer("bob", {"shop": OPERATOR, "web": VIEWER})
    assert triage.discard(bob, selection=ids).ids == ids[:1]
    assert refusal(triage.discard, bob, selection=ids[1:]).code == "forbidden"


def test_nothing_is_discarded_in_a_read_only_desk(shop, bury, settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert refusal(triage.discard, ANN, selection=bury()).code == "read_only"
    assert states() == ["dead"]


def test_the_admin_of_a_source_sees_what_was_set_aside_there(shop, bury):
    here, there = bury(2), bury(1, source="web")
    triage.discard(ANN, selection=here + there, reason="spam")
    (row,) = audit.list_events(Viewer("amy", {"shop": ADMIN})).rows
    assert (row.source, row.after["ids"]) == ("shop", here)
    refusal(triage.restore, EVE, selection=there)
    assert [row.allowed for row in audit.list_events(Viewer("amy", {"web": ADMIN})).rows] == [False, True]


def test_what_may_not_be_seen_is_answered_like_what_is_not_there(shop, bury):
    (foreign,) = bury(source="web")
    bob = Viewer("bob", {"shop": OPERATOR})
    assert triage.discard(bob, selection=[foreign]) == triage.discard(bob, selection=[foreign + 1000])
    assert states() == ["dead"]
    assert [row.allowed for row in audit.list_events(Viewer("amy", {"web": ADMIN})).rows] == [False]


# ---------- large acts ----------


def test_a_large_act_can_be_left_off_and_gone_on_with(shop, bury, monkeypatch):
    bury(25)
    monkeypatch.setattr(triage, "_AT_ONCE", 10)
    sweep = triage.begin(ANN, "discard", query="queue:emails", reason="spam")
    checked = []
    while not sweep.is_done:
        sweep = triage.go_on(ANN, sweep, within_s=0)
        checked.append(sweep.looked)
    assert (sweep.matched, sweep.changed, states()) == (25, 25, ["discarded"] * 25)
    assert len(checked) > 1 and checked == sorted(set(checked))


def test_what_came_after_the_scope_was_frozen_is_not_caught(shop, bury):
    ids = bury(3)
    sweep = triage.begin(ANN, "discard", query="age:<1h", reason="spam", highest=ids[1])
    bury(2)
    assert triage.go_on(ANN, sweep).changed == 2
    assert states() == ["discarded", "discarded", "dead", "dead", "dead"]


def test_a_relative_time_means_what_it_meant_when_the_act_began(shop, bury):
    assert "age" not in triage.begin(ANN, "discard", query="age:<1h", reason="x").query


def test_the_groups_behind_all_that_match_are_found_as_any_scope_of_an_act_is(shop, bury):
    now = timezone.now()
    group = Group.objects.create(fingerprint="v2-1", error_type="TimeoutError", first_seen=now, last_seen=now)
    (pk,) = bury(group=group)
    assert triage.fingerprints_of(ANN, query="queue:emails") == ["v2-1"]
    assert triage.fingerprints_of(ANN, query="queue:emails", highest=pk - 1) == []
    assert triage.fingerprints_of(EVE, query="queue:emails") == []
    for text in ("*imeout", " ".join(["timeout"] * 101)):
        assert refusal(triage.fingerprints_of, ANN, query=text).code == "bad_scope"


def test_begin_changes_nothing(shop, bury):
    bury(3)
    triage.begin(ANN, "discard", query="queue:emails", reason="x")
    assert states() == ["dead"] * 3 and not AuditEvent.objects.exists()


def test_undo_brings_back_exactly_what_was_changed_in_the_state_it_had(shop, bury):
    bury(2)
    bury(1, state="quarantined", reason="killed 3 workers")
    bury(1, state="discarded", reason="discarded by bob")
    done = triage.discard(ANN, query="queue:emails", reason="spam")
    assert states() == ["discarded"] * 4
    assert triage.undo(ANN, done.key).count == 3
    assert states() == ["dead", "dead", "quarantined", "discarded"]
    assert list(Failure.objects.order_by("pk").values_list("reason", flat=True)) == [
        "",
        "",
        "killed 3 workers",
        "discarded by bob",
    ]


def test_undo_leaves_what_a_person_changed_since(shop, bury):
    ids = bury(3)
    done = triage.discard(ANN, selection=ids, reason="spam")
    bob = Viewer("bob", {"shop": OPERATOR})
    triage.restore(bob, selection=ids[:1])
    triage.discard(bob, selection=ids[:1])
    assert triage.undo(ANN, done.key).count == 2
    assert states() == ["discarded", "dead", "dead"]


def test_undo_never_takes_back_a_later_act_of_the_same_person(shop, bury):
    ids = bury(3)
    first = triage.discard(ANN, selection=ids, reason="first")
    triage.restore(Viewer("bob", {"shop": OPERATOR}), selection=ids)
    triage.discard(ANN, selection=ids[:2], reason="second")
    assert triage.undo(ANN, first.key).count == 0
    assert states() == ["discarded", "discarded", "dead"]


def test_undo_of_an_act_on_one_job_leaves_a_later_act_on_it(shop, bury):
    ids = bury(1)
    first = triage.discard(ANN, selection=ids)
    triage.restore(ANN, selection=ids)
    second = triage.discard(ANN, selection=ids)
    assert triage.undo(ANN, first.key).count == 0 and states() == ["discarded"]
    assert triage.undo(ANN, second.key).count == 1 and states() == ["dead"]


def test_undo_does_not_report_what_was_done_to_jobs_out_of_sight(shop, bury):
    (acted,), (idle,) = bury(source="web"), bury(source="web")
    done = triage.discard(ANN, selection=[acted])
    bob = Viewer("bob", {"shop": OPERATOR})
    messages = {refusal(triage.undo, bob, key).message for key in (done.key, f"failure:{acted}", f"failure:{idle}")}
    assert len(messages) == 1 and "Nothing to undo" in messages.pop()


def test_undo_of_one_job_takes_back_what_was_done_last(shop, bury):
    (pk,) = bury(1, state="quarantined")
    triage.readmit(ANN, selection=[pk])
    assert states() == ["dead"]
    done = triage.discard(ANN, selection=[pk])
    triage.undo(ANN, done.key)
    assert states() == ["dead"]


def test_a_viewer_undoes_nothing_and_an_unknown_key_is_refused(shop, bury):
    done = triage.discard(ANN, selection=bury(2), reason="spam")
    assert refusal(triage.undo, EVE, done.key).code == "forbidden"
    assert refusal(triage.undo, ANN, "failures:0").code == "not_found"
    assert states() == ["discarded"] * 2


def test_an_operator_of_one_source_undoes_only_there(shop, bury):
    bury(1)
    bury(1, source="web")
    done = triage.discard(ANN, query="queue:emails", reason="spam")
    assert triage.undo(Viewer("bob", {"shop": OPERATOR}), done.key).count == 1
    assert states() == ["dead", "discarded"]


def test_what_is_quarantined_is_readmitted_as_dead(shop, bury):
    ids = bury(1, state="quarantined") + bury(1)
    assert triage.readmit(ANN, selection=ids).ids == ids[:1]
    assert states() == ["dead", "dead"]
    assert AuditEvent.objects.get().act == "failure.readmit"


def test_every_transaction_of_a_large_act_is_audited_with_what_it_changed(shop, bury, monkeypatch):
    ids = bury(25)
    monkeypatch.setattr(triage, "_AT_ONCE", 10)
    done = triage.discard(ANN, query="queue:emails", reason="spam")
    rows = AuditEvent.objects.filter(object=done.key)
    assert rows.count() == 3 and sorted(pk for row in rows for pk in row.after["ids"]) == ids


def test_undoing_can_be_left_off_too_and_each_step_gets_on(shop, bury, monkeypatch):
    bury(25)
    monkeypatch.setattr(triage, "_AT_ONCE", 10)
    done = triage.discard(ANN, query="queue:emails", reason="spam")
    sweep, checked = triage.begin_undo(ANN, done.key), []
    while not sweep.is_done:
        sweep = triage.go_on(ANN, sweep, within_s=0)
        checked.append(sweep.looked)
    assert checked == [5, 15, 25] and states() == ["dead"] * 25


@pytest.mark.parametrize("text", ["*oo", "host:*-3 queue:emails", '"->"', "x " * 200])
def test_what_only_a_part_was_checked_for_is_no_scope_of_any_act(shop, bury, text):
    bury(1)
    for begin in (
        lambda: triage.begin(ANN, "discard", query=text, reason="x"),
        lambda: triage.fingerprints_of(ANN, query=text),
        lambda: replays.preview(ANN, query=text),
        lambda: replays.draft(ANN, query=text),
    ):
        with pytest.raises((Refused, Refused)) as refused:
            begin()
        assert refused.value.code == "bad_scope" and refused.value.field == "query"
    assert states() == ["dead"] and not Replay.objects.exists()


def test_later_acts_are_read_once_and_not_by_each_step_of_an_undoing(shop, bury, monkeypatch):
    monkeypatch.setattr(triage, "_AT_ONCE", 10)
    ids = bury(60)
    done = triage.discard(ANN, query="", selection=ids, reason="first")
    triage.restore(ANN, selection=ids[:5])
    triage.discard(ANN, selection=ids[:5], reason="once more")
    later = AuditEvent.objects.latest("pk").pk
    bounds = []

    def note(execute, sql, params, *rest):
        if "jobs_admin_auditevent" in sql and "failure.quarantine" in (params or ()):
            bounds.append(min(param for param in params if type(param) is int))
        return execute(sql, params, *rest)

    with connection.execute_wrapper(note):
        assert triage.undo(ANN, done.key).count == 55
    assert sum(bound < later for bound in bounds) == 1 and len(bounds) == 7
    assert Failure.objects.filter(pk__in=ids[:5], state="discarded").count() == 5


def test_an_undoing_leaves_what_was_acted_on_after_it_had_checked(shop, bury):
    ids = bury(2)
    done = triage.discard(ANN, selection=ids, reason="first")
    event = AuditEvent.objects.get(object=done.key)
    sweep = triage.begin_undo(ANN, done.key)
    seen = triage._taken_up([event.pk], sweep)
    triage.restore(ANN, selection=ids[:1])
    triage.discard(ANN, selection=ids[:1])
    assert triage._undo_event(ANN, event, sweep, seen) == 1
    assert states() == ["discarded", "dead"]


def test_an_undoing_leaves_what_was_acted_on_meanwhile_in_each_of_its_sources(shop, bury):
    ids = bury(1) + bury(1, source="web")
    done = triage.discard(ANN, selection=ids, reason="first")
    events = list(AuditEvent.objects.filter(object=done.key).order_by("-source"))  # web, shop
    sweep = triage.begin_undo(ANN, done.key)
    seen = triage._taken_up([event.pk for event in events], sweep)
    for pk in ids:  # the later acts on the job of `shop` come before those on the job of `web`
        triage.restore(ANN, selection=[pk])
        triage.discard(ANN, selection=[pk])
    assert [triage._undo_event(ANN, event, sweep, seen) for event in events] == [0, 0]
    assert states() == ["discarded", "discarded"]


def test_acts_are_taken_back_one_after_the_other_down_to_the_first(shop, bury):
    """Failures of a later act belong to the earlier one again once the later one is undone."""
    ids = bury(3)
    first = triage.discard(ANN, selection=ids, reason="spam")
    second = triage.restore(ANN, selection=ids[:2])
    third = triage.discard(ANN, selection=ids[:1], reason="spam")
    assert triage.undoable(ANN, first.key) == 3 and triage.undo(ANN, first.key).ids == ids[2:]
    for done, left in ((third, ids[:1]), (second, ids[:2]), (first, ids[:2])):
        assert triage.undoable(ANN, done.key) and triage.undo(ANN, done.key).ids == left
    assert states() == ["dead"] * 3 and not triage.undoable(ANN, first.key)


def test_what_a_later_act_of_the_same_kind_has_in_hand_is_not_offered_to_be_undone(shop, bury):
    (pk,) = bury(1)
    first = triage.discard(ANN, selection=[pk])
    triage.restore(ANN, selection=[pk])
    triage.discard(ANN, selection=[pk])
    assert triage.undoable(ANN, first.key) == 0 and triage.undo(ANN, first.key).count == 0
