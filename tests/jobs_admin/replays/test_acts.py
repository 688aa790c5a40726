from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.db import audit
from jobs_admin.models import AuditEvent, Failure, Replay, ReplayItem
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, Viewer
from jobs_admin.replays import progress, target
from jobs_admin.replays import rights as replay_rights
from jobs_admin.replays.options import Options
from tests.kit.fleet import reports
from tests.kit.people import ANN, BOB, EVE
from tests.kit.replays import AT_ONCE, came_home, counts, refusal, sent_all, start_replay

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def audited():
    return list(AuditEvent.objects.order_by("pk").values_list("actor", "act", "allowed"))


def test_a_started_replay_is_frozen(shop, bury):
    bury(3)
    replay = replays.start(ANN, replays.draft(ANN, query="queue:emails", reason="fixed"))
    bury(2)
    assert (replay.total, replay.planned, replay.state) == (3, 3, "running")
    assert [(i.n, i.run) for i in replay.items.order_by("n")] == [(1, 2), (2, 2), (3, 2)]


def test_what_came_after_the_preview_is_not_in_it(shop, bury):
    bury(3)
    seen = replays.preview(ANN, query="queue:emails")
    bury(2)
    assert replays.start(ANN, replays.draft(ANN, query=seen.query, snapshot=seen.snapshot, reason="x")).total == 3


def test_a_failure_is_dead_while_it_is_only_planned(shop, bury):
    start_replay(bury(2))
    assert set(Failure.objects.values_list("state", flat=True)) == {"dead"}


def test_the_second_of_two_is_shown_who_and_when(shop, bury):
    (pk,) = bury()
    first = start_replay([pk])
    refused = refusal(replays.draft, BOB, selection=[pk])
    assert refused.code == "already_open"
    assert tuple(refused.details[name] for name in ("replay", "by", "since")) == (first.pk, "ann", first.started_at)
    assert "ann is already replaying this job" in refused.message


def test_a_draft_that_lost_the_race_is_reported_as_over_too(shop, bury):
    (pk,) = bury()
    draft = replays.draft(BOB, selection=[pk])
    start_replay([pk])
    assert refusal(replays.start, BOB, draft).code == "already_open"
    assert Replay.objects.get(pk=draft.pk).state == "draft"


def test_of_a_bulk_only_what_is_free_is_taken(shop, bury):
    ids = bury(10)
    start_replay(ids[:4])
    replay = start_replay(ids)
    assert replay.total == 6 and replay.matched == 10
    assert [row["count"] for row in replay.blocked] == [4]


def test_more_than_one_percent_changed_since_the_preview_is_refused(shop, bury):
    ids = bury(200)
    seen = replays.preview(ANN, query="queue:emails")
    first = replays.draft(ANN, query=seen.query, snapshot=seen.snapshot, reason="x")
    Failure.objects.filter(pk__in=ids[:3]).update(state="recovered")
    assert refusal(replays.start, ANN, first).code == "changed"
    assert not ReplayItem.objects.exists()
    Failure.objects.filter(pk=ids[0]).update(state="dead")
    assert replays.start(ANN, first).total == 198


def test_a_snapshot_of_another_search_is_refused(shop, bury):
    bury(2)
    seen = replays.preview(ANN, query="queue:emails")
    for snapshot in (seen.snapshot, "nonsense"):
        refused = refusal(replays.draft, ANN, query="queue:webhooks", snapshot=snapshot, reason="x")
        assert (refused.code, refused.field) == ("changed", "snapshot")


@pytest.mark.parametrize(
    "changed", ["{0}.x.{2}.{3}.{4}", "{0}.{1}.{2}.{3}.", "{0}.{1}.x.{3}.{4}", "{0}.{1}.{2}.{3}.{4}.5"]
)
def test_a_snapshot_that_no_preview_gave_is_refused_not_a_crash(shop, bury, changed):
    bury(2)
    seen = replays.preview(ANN, query="queue:emails")
    snapshot = changed.format(*seen.snapshot.split("."))
    refused = refusal(
        replays.draft,
        ANN,
        query=seen.query,
        snapshot=snapshot,
        reason="x",
        options=replays.Options(accept=("unguarded",)),
    )
    assert (refused.code, refused.field) == ("changed", "snapshot")


def test_starting_twice_starts_once(shop, bury):
    replay = start_replay(bury(2))
    assert refusal(replays.start, ANN, replay).code == "wrong_state"
    assert replay.items.count() == 2


def test_the_same_idempotency_key_gives_the_same_replay(shop, bury):
    ids = bury(2)
    one = replays.draft(ANN, selection=ids, reason="x", idempotency_key="k")
    assert replays.draft(ANN, selection=ids, reason="x", idempotency_key="k").pk == one.pk
    assert refusal(replays.draft, BOB, selection=ids, reason="x", idempotency_key="k").code == "key_reused"


@pytest.mark.parametrize(
    "other",
    [
        {"query": "queue:webhooks age:<2d"},
        {"query": "queue:emails age:<3d"},
        {"query": "queue:emails"},
        {"query": "queue:emails age:<2d", "options": replays.Options(attempts=3)},
        {"selection": [1]},
        {"query": "queue:emails age:<2d", "pace": {"style": "steady", "rate": 7}},
        {"query": "queue:emails age:<2d", "pace": {"style": "at_once"}},
    ],
)
def test_a_key_that_is_used_again_for_something_else_is_refused(shop, bury, other):
    bury(2)
    one = replays.draft(ANN, query="queue:emails age:<2d", reason="x", idempotency_key="k")
    again = replays.draft(ANN, query="queue:emails age:<2d", reason="x", idempotency_key="k")
    assert again.pk == one.pk
    refused = refusal(replays.draft, ANN, reason="x", idempotency_key="k", **other)
    assert (
        refused.code == "key_reused"
        and f"replay #{one.pk}" in refused.message
        and "Nothing was changed" in refused.message
    )


def test_the_pace_that_a_key_requested_stays_its_own_also_when_the_replay_has_another_by_now(shop, bury):
    ids = bury(2)
    options = {"selection": ids, "reason": "x", "idempotency_key": "k", "pace": {"style": "steady", "rate": 50}}
    one = replays.draft(ANN, **options)
    replays.change_pace(ANN, one, {"style": "steady", "rate": 5})
    assert replays.draft(ANN, **options | {"pace": {"every": 0.02}}).pk == one.pk  # which says the same
    assert refusal(replays.draft, ANN, **options | {"pace": {"rate": 5}}).code == "key_reused"
    assert refusal(replays.draft, ANN, **options | {"pace": None}).code == "key_reused"


def test_an_absolute_time_is_another_search_to_the_second(shop, bury):
    bury(2)
    early, late = "queue:emails since:2026-01-01T10:00:00Z", "queue:emails since:2026-01-01T10:00:01Z"
    one = replays.draft(ANN, query=early, reason="x", idempotency_key="k")
    assert replays.draft(ANN, query=early, reason="x", idempotency_key="k").pk == one.pk
    assert refusal(replays.draft, ANN, query=late, reason="x", idempotency_key="k").code == "key_reused"


def test_starting_again_with_the_same_key_gives_what_was_started(shop, bury):
    ids = bury(2)
    one, two = (replays.draft(ANN, selection=ids, reason="x", idempotency_key="k") for _ in range(2))
    assert replays.start(ANN, one).state == "running"
    assert replays.start(ANN, two).started_at == one.started_at and one.items.count() == 2
    assert refusal(replays.start, BOB, two).code == "wrong_state"


def test_more_than_one_job_needs_a_reason(shop, bury):
    ids = bury(2)
    assert refusal(replays.draft, ANN, selection=ids).field == "reason"
    assert replays.draft(ANN, selection=ids[:1]).pk


def test_who_may_only_view_is_refused_and_that_is_written_down(shop, bury):
    (pk,) = bury()
    assert refusal(replays.draft, EVE, selection=[pk]).code == "forbidden"
    mixed = Viewer("mia", {"web": OPERATOR, "shop": VIEWER})
    assert refusal(replays.draft, mixed, selection=[pk]).code == "forbidden"
    assert audited() == [("eve", "replay.draft", False), ("mia", "replay.draft", False)]


def test_acting_needs_the_right_on_every_source_of_the_replay(shop, bury):
    replay = start_replay(bury(1) + bury(1, source="web"))
    for act in (replays.pause, replays.cancel):
        assert refusal(act, BOB, replay).code == "forbidden"
    assert refusal(replays.change_pace, BOB, replay, {"rate": 1}).code == "forbidden"
    assert Replay.objects.get().state == "running"


def test_nothing_is_replayed_in_a_read_only_desk(shop, bury, settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert refusal(replays.draft, ANN, selection=bury()).code == "read_only"


def test_every_act_is_written_down(shop, bury):
    replay = start_replay(bury(2))
    replays.pause(ANN, replay, "lunch")
    replays.resume(BOB, replay)
    replays.change_pace(ANN, replay, {"rate": 5})
    replays.cancel(ANN, replay)
    acts = [act for _, act, allowed in audited() if allowed]
    assert acts == [f"replay.{a}" for a in ("draft", "start", "pause", "resume", "pace", "cancel")]
    assert AuditEvent.objects.get(act="replay.pause").reason == "lunch"


def test_every_act_is_seen_by_the_admin_of_each_source_it_touched(shop, bury):
    replay = start_replay(bury(1) + bury(1, source="web"))
    replays.pause(ANN, replay), replays.resume(ANN, replay), replays.change_pace(ANN, replay, {"rate": 5})
    replays.cancel(ANN, replay)
    for source in ("shop", "web"):
        seen = audit.list_events(Viewer("amy", {source: ADMIN})).rows
        assert [row.act.removeprefix("replay.") for row in seen] == [
            "cancel",
            "pace",
            "resume",
            "pause",
            "start",
            "draft",
        ]
    assert not audit.list_events(Viewer("amy", {"other": ADMIN})).rows and audit.verify() is None


def test_the_words_of_an_act_on_several_sources_are_in_no_entry_of_one_of_them(shop, bury):
    bury(2), bury(3, source="web")
    replay = replays.start(ANN, replays.draft(ANN, query="queue:emails -task:web.secret", reason="web.secret is fixed"))
    replays.pause(ANN, replay, "web.secret fails")
    replays.cancel(ANN, replay, "enough of web.secret")
    for source in ("shop", "web"):
        rows = audit.list_events(Viewer("amy", {source: ADMIN})).rows
        assert [row.actor for row in rows] == [ANN.name] * 4 and {row.source for row in rows} == {source}
        assert "secret" not in str([(row.reason, row.before, row.after) for row in rows])
        assert rows[1].reason == replay_rights.OF_SEVERAL and rows[1].after == {"state": "paused"}
        assert rows[2].after.keys() == {"state", "pace"} and rows[2].before == {"state": "draft"}
    events = {row.act: row for row in audit.list_events(Viewer("root", {"*": ADMIN})).rows if not row.source}
    assert events["replay.draft"].after["query"] == "queue:emails -task:web.secret"
    assert events["replay.start"].reason == "web.secret is fixed" and events["replay.start"].after["total"] == 5
    assert events["replay.pause"].reason == "web.secret fails" and audit.verify() is None
    assert replay_rights.sources_of(replay) == ["shop", "web"]


def test_what_was_refused_is_seen_by_the_admin_of_the_source(shop, bury):
    replay = start_replay(bury())
    refusal(replays.draft, EVE, selection=bury(), reason="x"), refusal(replays.pause, EVE, replay)
    seen = audit.list_events(Viewer("amy", {"shop": ADMIN})).rows
    assert [(row.act, row.allowed) for row in seen][:2] == [("replay.pause", False), ("replay.draft", False)]


def test_an_act_in_the_wrong_state_changes_nothing(shop, bury):
    replay = start_replay(bury(2))
    assert refusal(replays.resume, ANN, replay).code == "wrong_state"
    replays.cancel(ANN, replay)
    for act in (replays.pause, replays.resume, replays.cancel):
        assert "is cancelled, so it cannot be" in refusal(act, ANN, replay).message
    assert refusal(replays.change_pace, ANN, replay, {"rate": 5}).code == "wrong_state"


def test_cancelling_frees_what_was_not_sent(shop, bury):
    ids = bury(3)
    replay = start_replay(ids)
    replays.cancel(ANN, replay)
    assert counts(replay) == {"cancelled": 3} and replay.ended_at
    assert start_replay(ids).total == 3


def test_many_items_are_cancelled_in_short_transactions_after_the_state_has_turned(shop, bury):
    replay = start_replay(bury(2_100))
    with CaptureQueriesContext(connection) as seen:
        replays.cancel(ANN, replay)
    updates = [q["sql"] for q in seen if q["sql"].startswith("UPDATE")]
    tables = [sql.split('"')[1].removeprefix("jobs_admin_") for sql in updates]
    assert counts(replay) == {"cancelled": 2_100}
    # The second marks items that a sender had claimed before and may still send; here there are none.
    assert tables == ["replay", "replayitem", *["replayitem", "replay"] * 5]


def test_an_edit_is_for_one_job(shop, bury):
    assert refusal(replays.draft, ANN, selection=bury(2), reason="x", edit={"args": []}).code == "bad_edit"


@pytest.mark.parametrize(
    "edit, field",
    [
        ({"args": {}}, "args"),
        ({"kwargs": []}, "kwargs"),
        ({"kwargs": {"other": "[redacted]"}}, "kwargs"),
        ({"queue": "x"}, "args"),
    ],
)
def test_an_edit_that_cannot_be_is_refused_beside_its_field(shop, bury, edit, field):
    (pk,) = bury(raw=json.dumps({"args": [1], "kwargs": {"token": "s"}}).encode(), kwargs='{"token": "[redacted]"}')
    refused = refusal(replays.draft, ANN, selection=[pk], edit=edit)
    assert (refused.code, refused.field) == ("bad_edit", field)


@pytest.mark.server
def test_an_edit_that_the_task_does_not_take_is_refused_before_it_is_sent(store, shop, bury):
    (pk,) = bury()
    reports(store, "number, to=")
    refused = refusal(replays.draft, ANN, selection=[pk], edit={"kwargs": {"too": "bob"}})
    assert (refused.code, refused.field) == ("bad_edit", "kwargs")
    assert refused.message == "shop.send takes no argument 'too'. Arguments: (number, to=…)."
    assert replays.draft(ANN, selection=[pk], edit={"kwargs": {"to": "bob"}}).edit == {"kwargs": {"to": "bob"}}


@pytest.mark.server
@pytest.mark.parametrize("signatures", [(), (None,), ("number, to=", None), ("number, to=", "number, **more")])
def test_an_edit_is_not_held_up_where_some_worker_may_take_it(store, shop, bury, signatures):
    (pk,) = bury()
    reports(store, *signatures)
    assert replays.draft(ANN, selection=[pk], edit={"kwargs": {"too": "bob"}}).edit


@pytest.mark.server
def test_a_preview_reports_where_a_patch_cannot_be_checked(store, shop, bury):
    bury()
    options = Options.parse({"patch": {"kwargs": {"too": "bob"}}})
    caution = "Live workers of shop report no signature of shop.send: the changed arguments are checked only when the job runs."
    assert caution in replays.preview(ANN, options=options).warnings
    assert caution not in replays.preview(ANN).warnings
    reports(store, "number, to=")
    assert caution not in replays.preview(ANN, options=options).warnings


@pytest.mark.server
def test_a_patch_that_the_task_does_not_take_is_refused_job_by_job(store, shop, bury):
    (pk,) = bury()
    reports(store, "number, to=")
    (row,) = replays.list_patched_jobs(
        ANN, target.build_target("", (pk,), timezone.now()), {"kwargs": {"too": "bob"}}
    ).rows
    assert row.after is None and row.why == "shop.send takes no argument 'too'. Arguments: (number, to=…)."
    replay = start_replay([pk], options=Options.parse({"patch": {"kwargs": {"too": "bob"}}}))
    sent_all()
    (item,) = replay.items.all()
    assert not shop.queues.get("emails") and "takes no argument 'too'" in item.outcome


def test_too_many_chosen_by_hand_are_refused(shop):
    assert refusal(replays.draft, ANN, selection=range(1, 10_002), reason="x").code == "too_many"


def test_nothing_to_replay_reports_why(shop, bury):
    ids = bury(2, state="retrying")

    def refuse(viewer=ANN, **scope):
        refused = refusal(replays.draft, viewer, **scope, reason="x")
        assert refused.code == "nothing_to_replay"
        return refused.message.removesuffix(" Nothing was changed.")

    why = "retrying automatically: they will run again"
    assert refuse(query="") == f"All 2 jobs are excluded: 2 {why}."
    assert refuse(selection=ids[:1]) == f"The job is excluded: {why}."
    assert refuse(query="queue:none") == "No job matches."
    elsewhere = Viewer("bob", {"shop": VIEWER, "web": OPERATOR})
    assert refuse(elsewhere, query="") == "You may replay none of the matching jobs."
    Failure.objects.update(state="recovered")
    assert refuse(query="state:any") == "All 2 jobs recovered."
    assert refuse(selection=ids[:1]) == "The job recovered."


def test_a_replay_is_shown_to_who_may_see_its_source(shop, bury):
    replay = start_replay(bury())
    assert replays.find(EVE, replay.pk) == replay
    with pytest.raises(Replay.DoesNotExist):
        replays.find(Viewer("x", {"web": VIEWER}), replay.pk)
    assert replays.listing(Viewer("x", {"web": VIEWER})).rows == []


def test_a_token_sees_nothing_of_what_its_owner_replayed_at_a_source_that_is_not_the_tokens(
    shop, bury, django_user_model
):
    user = django_user_model.objects.create_user("ann")
    ann = Viewer("ann", {"*": OPERATOR}, user_id=user.pk)
    draft = replays.draft(ann, selection=bury(), reason="a customer's name")
    with pytest.raises(Replay.DoesNotExist):
        replays.find(Viewer("token web", {"web": VIEWER}, token_id=1, owner_id=user.pk), draft.pk)
    assert replays.find(Viewer("ann", {"web": VIEWER}, user_id=user.pk), draft.pk) == draft  # her own


def test_replays_and_items_come_in_pages(shop, bury):
    for pk in bury(3):
        replay = start_replay([pk])
    page = replays.listing(ANN, limit=2)
    assert len(page.rows) == 2 and len(replays.listing(ANN, after=page.next).rows) == 1
    replay = start_replay(bury(5))
    page = replays.items(ANN, replay, limit=3)
    assert [i.n for i in page.rows] == [1, 2, 3]
    assert [i.n for i in replays.items(ANN, replay, after=page.next).rows] == [4, 5]


def test_what_waits_reports_when_it_is_due(shop, bury):
    replay, now = start_replay(bury(10), {"rate": 2}), timezone.now()
    replay.items.filter(n__in=(1, 2)).update(state="sent")
    page = replays.items(ANN, replay, after="1", limit=4, now=now)
    assert [page.due.get(row.pk) for row in page.rows] == [None, *(now + timedelta(seconds=n / 2) for n in range(3))]
    later = replays.items(ANN, replay, after="8", now=now)
    assert later.due[later.rows[0].pk] == now + timedelta(seconds=3)


@pytest.mark.parametrize("change", [{"state": "paused"}, {"rate": None}])
def test_nothing_is_due_while_it_is_paused_or_goes_at_once(shop, bury, change):
    replay = start_replay(bury(2), {"rate": 2})
    Replay.objects.update(**change)
    replay.refresh_from_db()
    assert replays.items(ANN, replay).due == {}


@pytest.mark.parametrize("as_, item, failure", [("ran", "succeeded", "recovered"), ("lost", "failed_again", "dead")])
def test_a_person_settles_what_is_uncertain(shop, bury, as_, item, failure):
    replay = start_replay(bury())
    sent_all()
    ReplayItem.objects.update(state="uncertain")
    Replay.objects.update(sent=0, uncertain=1)
    settled = replays.resolve_item(ANN, replay, 1, as_)
    assert (settled.state, Failure.objects.get().state) == (item, failure)
    assert counts(replay) == {item: 1}
    assert refusal(replays.resolve_item, ANN, replay, 1, as_).code == "wrong_state"


def test_a_job_that_failed_again_can_be_replayed_again(shop, bury):
    (pk,) = bury()
    first = start_replay([pk])
    sent_all()
    came_home(first.items.get(), "exception")
    replays.settle()
    second = start_replay([pk])
    assert (counts(first), second.items.get().run) == ({"failed_again": 1}, 3)


def test_the_constraint_has_the_last_word(shop, bury):
    replay = start_replay(bury())
    item = replay.items.get()
    with pytest.raises(Exception, match=r"(?i)unique"), transaction.atomic():
        ReplayItem.objects.create(replay=replay, n=9, failure_id=item.failure_id, run=2)


def test_what_may_not_be_seen_is_answered_like_what_is_not_there(shop, bury):
    (foreign,) = bury(source="web")
    unknown = refusal(replays.draft, BOB, selection=[foreign + 1000])
    refused = refusal(replays.draft, BOB, selection=[foreign])
    start_replay([foreign])  # now somebody else's replay holds it
    again = refusal(replays.draft, BOB, selection=[foreign])
    assert (refused.code, refused.message) == (again.code, again.message) == (unknown.code, unknown.message)
    assert [row.allowed for row in audit.list_events(Viewer("amy", {"web": ADMIN})).rows].count(False) == 2


def test_a_source_that_may_not_be_seen_is_not_named_by_a_refusal(shop, bury):
    replay = start_replay(bury(1) + bury(1, source="web"))
    assert "web" not in refusal(replays.pause, BOB, replay).message


LIMITED = AT_ONCE | {"per_key": {"key": "tenant", "concurrency": 3}}


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_pace_at_all_does_not_make_a_careful_replay_a_fast_one(shop, bury, nothing):
    replay = start_replay(bury(2), {"style": "careful"})
    assert refusal(replays.change_pace, ANN, replay, nothing).code == "bad_pace"
    assert Replay.objects.get().pace["style"] == "careful"


def test_a_pace_that_names_no_style_is_careful_where_there_are_many(shop, bury):
    replay = start_replay(bury(101), {"style": "careful"})
    assert replays.change_pace(ANN, replay, {"in_flight": 5}).pace["style"] == "careful"


def test_a_pace_that_was_changed_while_it_started_is_not_lost(shop, bury):
    draft = replays.draft(ANN, selection=bury(2), pace=LIMITED, reason="x")
    replays.change_pace(BOB, Replay.objects.get(), {"rate": 1})
    assert refusal(replays.start, ANN, draft).code == "changed"
    assert (Replay.objects.get().state, Replay.objects.get().rate) == ("draft", 1.0) and not ReplayItem.objects.exists()
    assert replays.start(ANN, Replay.objects.get()).pace["rate"] == 1


def test_its_phases_are_reported_in_their_order_to_the_end(shop, bury):
    replay = start_replay(bury(2))
    for act in (replays.pause, replays.resume, replays.cancel):
        replay = act(ANN, replay)
    assert [state for _, state in progress.phases(replay)] == ["running", "paused", "running", "cancelled"]


def test_why_it_is_held_is_reported_to_those_who_may_see_all_of_it(shop, bury):
    start_replay(bury(1) + bury(1, source="web"))
    start_replay(bury(1))
    Replay.objects.update(state="held", held_because="boom in web", evidence={"kind": "failing"})
    wim, of_both = Viewer("wim", {"shop": VIEWER}), Viewer("wim", {"shop": VIEWER, "web": VIEWER})
    assert [row.evidence for row in replays.listing(wim).rows] == [{"kind": "failing"}, None]
    assert [row.held_because for row in replays.listing(of_both).rows] == ["boom in web"] * 2
    assert "boom" in replays.find(EVE, Replay.objects.earliest("pk").pk).held_because
