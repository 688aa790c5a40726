"""Automations: conditions, acts, cap, breaker, rights, and what a watch that dies leaves."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs_admin import automations, config
from jobs_admin.automations import acting, deciding
from jobs_admin.core import keys
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.models import (
    ApiToken,
    AuditEvent,
    Automation,
    AutomationDecision,
    Channel,
    Failure,
    Notice,
    Pause,
    RefusedReports,
    Replay,
    Role,
    Rule,
    Worker,
)
from jobs_admin.models.access import viewer_of_token
from jobs_admin.retries import awaiting
from tests.kit import breakers as kit_breakers
from tests.kit.alerts import create_alert
from tests.kit.automations import AT_ONCE, document, fail, finish, live, minutes_ago, person
from tests.kit.groups import group
from tests.kit.people import BEA, EVE, LOU

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("store", "shop")]


@pytest.fixture
def ann():
    return person("ann", shop="operator")


@pytest.fixture
def zoe():
    return person("zoe", shop="operator")


def step(now=None) -> bool:
    return automations.step(now or timezone.now())


def decisions(*states: str) -> list[AutomationDecision]:
    return list(AutomationDecision.objects.filter(state__in=states).order_by("n"))


def refusal(act, *args, **more) -> Refused:
    with pytest.raises(Refused) as refused:
        act(*args, **more)
    return refused.value


def test_a_new_one_does_nothing_until_it_is_enabled(ann):
    fail(minutes_ago(20), 3)
    automations.create(ann, "back", document())
    assert not step() and not Replay.objects.exists()
    automations.enable(ann, "back")
    assert step()
    (replay,) = Replay.objects.all()
    (done,) = decisions("done")
    assert (replay.total, replay.actor, replay.reason) == (3, "ann", "Automation back.")
    assert (done.replay, done.jobs, done.selection, done.text) == (
        replay,
        3,
        [],
        f"Replay #{replay.pk} of 3 jobs started.",
    )
    assert automations.find_starter(ann, replay.pk).name == "back"


@pytest.mark.parametrize("hold", ["queue", "task", "tenant", "dependency", "breaker"])
def test_it_waits_while_a_pause_or_a_breaker_holds_such_jobs(ann, store, hold):
    one = Failure.objects.get(pk=fail(minutes_ago(20), 3)[0])
    live(ann)
    if hold == "breaker":
        kit_breakers.create_policy(task=one.task)
        kit_breakers.store(store, kit_breakers.opened(on_hold=1))
        why = "Breaker partner is open."
    else:
        kit_breakers.create_policy(mode="observe", dependency="smtp", task=one.task)
        Failure.objects.update(tenant="acme")
        name = "smtp" if hold == "dependency" else "acme" if hold == "tenant" else getattr(one, hold)
        pause = Pause.objects.create(
            source="shop", **{hold: name}, reason="migration", created_at=timezone.now(), created_by="ann"
        )
        why = f"{pause} is paused."
    assert not step() and Automation.objects.get().why_not == why
    if hold == "breaker":
        store.delete(keys.breakers("shop"))
    else:
        pause.delete()
    assert step() and Replay.objects.get().total == 3


def pause_queue(queue: str) -> Pause:
    return Pause.objects.create(source="shop", queue=queue, reason="x", created_at=timezone.now(), created_by="ann")


def test_an_open_breaker_without_a_job_to_probe_with_gets_one(ann, store):
    fail(minutes_ago(20), 3)
    kit_breakers.create_policy()
    forced = kit_breakers.opened()
    forced.force("open", time.time())
    kit_breakers.store(store, forced)
    live(ann)
    assert not step() and Automation.objects.get().why_not == "Breaker partner is open."
    kit_breakers.store(store, kit_breakers.opened())
    assert step() and Replay.objects.get().total == 3


def test_jobs_of_places_that_nothing_holds_are_replayed_however_many_others_wait(ann):
    fail(minutes_ago(20), 5, queue="paused")
    fail(minutes_ago(20), 2, queue="free")
    live(ann, cap_per_hour=3)
    pause = pause_queue("paused")
    assert step() and set(Replay.objects.get().items.values_list("failure__queue", flat=True)) == {"free"}
    finish(Replay.objects.get())
    assert not step(timezone.now() + timedelta(hours=2)) and Automation.objects.get().why_not == f"{pause} is paused."


def test_a_job_that_is_held_is_left_also_where_no_more_are_read(ann):
    for n in range(7):
        fail(minutes_ago(20), 1, queue=f"paused {n}")
        pause_queue(f"paused {n}")
    live(ann, cap_per_hour=1)
    assert not step() and not Replay.objects.exists()


def test_it_waits_until_no_job_has_failed_for_so_long(ann):
    fail(minutes_ago(5))
    live(ann, quiet_s=600)
    assert not step() and "failed within the last 10 min" in decisions("waited")[0].text
    now = timezone.now() + timedelta(minutes=6)
    fail(now - timedelta(minutes=1))
    assert not step(now)
    assert step(now + timedelta(minutes=10)) and Replay.objects.get().total == 2


def test_a_job_that_is_being_retried_is_no_quiet(ann):
    fail(minutes_ago(20))
    fail(minutes_ago(1), state="retrying")
    live(ann, quiet_s=600)
    assert not step() and not Replay.objects.exists()


def test_too_few_jobs_and_jobs_out_of_its_search_and_source_are_left(ann):
    fail(minutes_ago(20), 2)
    fail(minutes_ago(20), 5, queue="reports")
    fail(minutes_ago(20), 5, source="web")
    live(ann, q="queue:emails", min_jobs=3)
    assert not step() and decisions("waited")[0].text == "2 of at least 3 jobs match."


def test_the_diary_has_a_reason_once(ann):
    live(ann)
    for n in range(5):
        step(timezone.now() + timedelta(seconds=10 * n))
    assert [one.text for one in decisions("waited")] == ["No job matches."]


def test_it_acts_again_only_after_its_cooldown_and_the_end_of_its_replay(ann):
    fail(minutes_ago(20))
    live(ann, cooldown_s=300)
    assert step()
    fail(minutes_ago(20))
    now = timezone.now()
    assert not step(now + timedelta(seconds=310)) and "has not ended" in decisions("waited")[-1].text
    finish(Replay.objects.get())
    assert not step(now + timedelta(seconds=200)) and "ago" in decisions("waited")[-1].text
    assert step(now + timedelta(seconds=310)) and Replay.objects.count() == 2


def test_its_cap_bounds_the_jobs_of_an_hour(ann):
    ids = fail(minutes_ago(20), 8)
    live(ann, cap_per_hour=5)
    now = timezone.now()
    assert step(now)
    finish(Replay.objects.get())
    assert Failure.objects.filter(state="recovered").count() == 5
    assert set(Failure.objects.filter(state="dead").values_list("pk", flat=True)) == set(ids[5:])
    assert not step(now + timedelta(minutes=30)) and "cap of 5 jobs" in decisions("waited")[-1].text
    assert step(now + timedelta(minutes=61)) and Replay.objects.order_by("-pk")[0].total == 3


def test_a_job_that_always_fails_is_not_replayed_for_ever(ann):
    fail(minutes_ago(20), 1)
    fail(minutes_ago(20), 9, queue="reports")
    live(ann, q="queue:emails")
    now = timezone.now()
    for n in range(1, 8):
        step(now + timedelta(hours=2 * n))
        Replay.objects.exclude(state="done").update(state="done", failed_again=0)
        finish_items()
    assert Replay.objects.count() == 3


def finish_items() -> None:
    from jobs_admin.models import ReplayItem

    ReplayItem.objects.exclude(state="failed_again").update(state="failed_again", sent_at=timezone.now())
    Failure.objects.update(state="dead")


# -- breaker ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["held", "cancelled", "stopped"])
def test_it_trips_when_its_replay_is_held_or_cancelled_and_a_person_resets_it(ann, zoe, state):
    fail(minutes_ago(20), 2)
    live(ann)
    step()
    later = timezone.now() + timedelta(seconds=1)
    Replay.objects.update(state=state, state_since=later, held_because="6 of 10 failed again.")
    assert step()
    one = Automation.objects.get()
    assert automations.state(one) == "tripped" and "6 of 10 failed again." in one.why_tripped
    assert Notice.objects.get(type="automation.tripped").body["automation"] == "back"
    fail(minutes_ago(20), 2)
    for n in range(3):
        assert not step(later + timedelta(hours=n))
    assert refusal(automations.reset, EVE, "back").code == "forbidden"
    automations.reset(zoe, "back")
    Automation.objects.update(reset_at=later + timedelta(seconds=1))
    step(later + timedelta(hours=3))
    assert automations.state(Automation.objects.get()) == "live"


def test_it_trips_when_most_jobs_of_its_replay_failed_again(ann):
    fail(minutes_ago(20), 3)
    live(ann)
    step()
    finish(Replay.objects.get(), "exception")
    assert step() and "3 of 3 jobs" in Automation.objects.get().why_tripped


def test_it_trips_after_three_acts_that_failed(ann):
    fail(minutes_ago(20))
    Channel.objects.create(name="pager", kind="webhook", url="https://example.com/")
    live(ann, act={"kind": "notify", "channels": ["pager"]})
    Channel.objects.all().delete()
    for n in range(4):
        step(timezone.now() + timedelta(minutes=2 * n))
    assert len(decisions("failed")) == 3 and "3 actions failed in a row" in Automation.objects.get().why_tripped


def test_it_does_nothing_while_its_source_is_not_read(ann):
    from jobs_admin.models import Source

    fail(minutes_ago(20))
    Source.objects.create(name="shop", is_configured=True, is_reachable=True, sampled_at=minutes_ago(5))
    live(ann)
    assert not step() and decisions("waited")[0].text == "shop is not being read, so failures may be missing."


def test_a_report_without_room_in_the_shared_stream_stops_no_automation(ann, store):
    fail(minutes_ago(20))
    live(ann)
    store.xadd(keys.shared("failures"), {"v": "1"}, id=f"{round(minutes_ago(20).timestamp() * 1000)}-0")
    assert not step() and decisions("waited")[0].text == "A source is not being read, so failures may be missing."
    now = timezone.now()
    assert awaiting.delays(now).is_blind
    RefusedReports.objects.create(source="", cause="", first_at=now, last_at=now, why="", refused=1)
    assert step() and not awaiting.delays(now).is_blind


# -- rights -------------------------------------------------------------------------------------------------------


def test_an_owner_who_lost_the_role_stops_it_with_a_sentence(ann):
    fail(minutes_ago(20))
    live(ann)
    Role.objects.all().delete()
    step()
    assert Automation.objects.get().why_tripped == (
        "ann is no longer operator of shop. Another operator must enable the automation."
    )
    assert not Replay.objects.exists()


def test_a_token_that_is_revoked_stops_it(ann):
    token = ApiToken.objects.create(name="ci", sha256="x", role="operator", source="shop")
    live(viewer_of_token(token))
    fail(minutes_ago(20))
    token.revoked_at = timezone.now()
    token.save()
    step()
    assert "token ci is no longer operator of shop" in Automation.objects.get().why_tripped


def test_its_acts_have_the_rights_of_its_source_alone(ann):
    person("ann", web="operator")
    fail(minutes_ago(20), 1)
    (elsewhere,) = fail(minutes_ago(20), 1, source="web")
    live(ann)
    step()
    assert Replay.objects.get().total == 1 and Failure.objects.get(pk=elsewhere).state == "dead"


def test_who_may_not_act_may_not_create_enable_or_stop_it(ann):
    assert refusal(automations.create, LOU, "back", document()).code == "forbidden"
    live(ann)
    for act in (automations.enable, automations.disable, automations.reset, automations.delete):
        assert refusal(act, LOU, "back").code == "forbidden"
        with pytest.raises(NotFound):
            act(BEA, "back")
    assert automations.listing(BEA) == [] and automations.stop_all(BEA) == []
    assert refusal(automations.stop_all, LOU).code == "forbidden"
    assert Automation.objects.get().mode == "live"


def test_a_terminal_can_create_it_and_not_let_it_act():
    from jobs_admin.management import terminal

    automations.create(terminal.viewer(), "back", document())
    assert "a terminal has neither" in refusal(automations.enable, terminal.viewer(), "back").message


def test_who_changes_it_owns_it_and_it_is_back_in_dry_run(ann, zoe):
    live(ann)
    made = automations.change(zoe, "back", document(min_jobs=9), expected_version=1)
    assert (made.owner_name, made.version, made.mode) == ("zoe", 2, "dry_run")
    assert refusal(automations.change, ann, "back", document(), expected_version=1).code == "stale"


def test_discarding_needs_a_second_person(ann, zoe):
    fail(minutes_ago(20), 3)
    live(ann, act="discard")
    assert not step() and refusal(automations.approve, ann, "back", expected_version=1).code == "forbidden"
    automations.approve(zoe, "back", expected_version=1)
    assert step()
    assert [one.text for one in decisions("done")] == ["3 jobs discarded."]
    assert Failure.objects.filter(state="discarded").count() == 3
    assert AuditEvent.objects.filter(act="failure.discard", actor="ann").exists()


@pytest.mark.parametrize("stop", ["refusal", "disable", "late"])
def test_a_discard_that_stops_half_way_counts_what_it_did(ann, zoe, monkeypatch, stop):
    fail(minutes_ago(20), 5)
    row = live(ann, act="discard", cap_per_hour=6)
    automations.approve(zoe, "back", expected_version=1)
    act_on, done = acting.triage.act_on, []

    def act_twice(*args, **more):
        if len(done) == 2:
            raise Refused("forbidden", "The role is gone.") if stop == "refusal" else KeyboardInterrupt
        done.append(act_on(*args, **more))
        return done[-1]

    with monkeypatch.context() as dying:
        dying.setattr(acting, "_AT_ONCE", 2)
        dying.setattr(acting.triage, "act_on", act_twice)
        if stop == "refusal":
            step()
        else:
            with pytest.raises(KeyboardInterrupt):
                step()
    if stop == "disable":
        automations.disable(ann, "back")
    if stop == "late":
        step(timezone.now() + timedelta(minutes=11))
    (one,) = AutomationDecision.objects.all()
    assert (one.state, one.jobs, one.selection) == ("done", 4, [])
    assert (
        one.text.startswith(f"4 of 5 jobs discarded{', then refused: ' if stop == 'refusal' else '. '}")
        and "Nothing was done" not in one.text
    )
    assert deciding.count_spent(row, timezone.now()) == 4
    assert Failure.objects.filter(state="discarded").count() == 4


def test_it_trips_after_three_acts_that_were_refused_half_way(ann, zoe, monkeypatch):
    fail(minutes_ago(20), 8)
    live(ann, act="discard", cap_per_hour=100)
    automations.approve(zoe, "back", expected_version=1)
    act_on = acting.triage.act_on

    def act_once(viewer, act, ids, **more):
        if not act_once.is_first:
            raise Refused("forbidden", "The role is gone.")
        act_once.is_first = False
        return act_on(viewer, act, ids, **more)

    monkeypatch.setattr(acting, "_AT_ONCE", 2)
    monkeypatch.setattr(acting.triage, "act_on", act_once)
    for n in range(4):
        act_once.is_first = True
        step(timezone.now() + timedelta(minutes=2 * n))
    assert len(decisions("done")) == 3 and Failure.objects.filter(state="discarded").count() == 6
    assert (
        "3 actions failed in a row. Latest: 2 of 4 jobs discarded, then refused" in Automation.objects.get().why_tripped
    )


def test_the_diary_keeps_what_bounds_the_next_act(ann, zoe, monkeypatch):
    monkeypatch.setattr(deciding, "DIARY", 3)
    ids, now = fail(minutes_ago(20), 3), timezone.now()
    row = live(ann, act="discard", cap_per_hour=3)
    automations.approve(zoe, "back", expected_version=1)
    step(now)

    def wait(at, times=6):
        for n in range(times):
            row.refresh_from_db()
            deciding._note_reason(row, "Reason " + "ab"[n % 2], at)

    wait(now)
    assert [one.n for one in decisions("done")] == [1] and len(decisions("waited")) == 3
    assert deciding.count_spent(row, now) == len(ids)
    wait(now + timedelta(hours=2))
    assert [one.n for one in decisions("done")] == [1], "its cooldown begins with its latest act, however old"
    fail(minutes_ago(20), 1)
    step(now + timedelta(hours=2))
    wait(now + timedelta(hours=4))
    assert [one.jobs for one in decisions("done")] == [1], "of the acts before it only what still counts is left"


def test_what_a_person_restored_is_not_discarded_again(ann, zoe):
    from jobs_admin.failures import triage

    ids = fail(minutes_ago(20), 1)
    live(ann, act="discard")
    automations.approve(zoe, "back", expected_version=1)
    step()
    triage.restore(zoe, selection=ids, reason="still needed")
    step(timezone.now() + timedelta(hours=2))
    assert Failure.objects.get().state == "dead"


def test_stopping_all_puts_them_back_to_dry_run_and_cancels_what_is_planned(ann, zoe):
    fail(minutes_ago(20))
    live(ann, act=AT_ONCE | {"delay_s": 300})
    live(zoe, "other", q="queue:none")
    step()
    assert len(decisions("planned")) == 1
    assert automations.stop_all(zoe, reason="night") == ["back", "other"]
    assert not decisions("planned") and not step(timezone.now() + timedelta(seconds=301))
    assert not Replay.objects.exists() and set(Automation.objects.values_list("mode", flat=True)) == {"dry_run"}
    assert AuditEvent.objects.filter(act="automation.stop", reason="night").count() == 2


def test_it_expires(ann):
    fail(minutes_ago(20))
    live(ann, expires_at=(timezone.now() + timedelta(hours=1)).isoformat())
    step(timezone.now() + timedelta(hours=2))
    assert Automation.objects.get().mode == "dry_run" and not Replay.objects.exists()


def test_a_read_only_desk_does_nothing(ann, settings):
    fail(minutes_ago(20))
    live(ann)
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": "1"}
    assert not step() and not Replay.objects.exists()


# -- other acts ---------------------------------------------------------------------------------------------------


def test_a_replay_can_start_later(ann):
    fail(minutes_ago(20))
    live(ann, act=AT_ONCE | {"delay_s": 300})
    now = timezone.now()
    assert step(now) and not step(now + timedelta(seconds=299))
    pause = pause_queue("emails")
    assert step(now + timedelta(seconds=301)) and not Replay.objects.exists()
    assert decisions("cancelled")[0].text == f"{pause} is paused. Nothing was done."
    pause.delete()
    assert step(now + timedelta(seconds=310)) and not Replay.objects.exists()  # planned again
    assert step(now + timedelta(seconds=611)) and Replay.objects.get().total == 1


def test_what_was_due_while_the_desk_was_down_is_not_done_later(ann):
    fail(minutes_ago(20))
    live(ann, act=AT_ONCE | {"delay_s": 300})
    now = timezone.now()
    step(now)
    step(now + timedelta(hours=5))
    assert len(decisions("cancelled")) == 1 and not Replay.objects.exists()


def test_it_assigns_groups_without_an_assignee(ann):
    broken = group()
    fail(minutes_ago(20), 2, group=broken)
    live(ann, act={"kind": "assign", "assignee": "ann"})
    assert step()
    broken.refresh_from_db()
    assert broken.assignee.username == "ann" and decisions("done")[0].text == "1 groups assigned to ann."
    assert not step(timezone.now() + timedelta(hours=1))


def test_it_notifies_a_channel_once_a_decision(ann):
    channel = Channel.objects.create(name="pager", kind="webhook", url="https://example.com/")
    fail(minutes_ago(20), 2)
    live(ann, act={"kind": "notify", "channels": ["pager"]})
    assert step()
    (notice,) = Notice.objects.all()
    assert notice.body["title"] == "2 jobs match back" and list(notice.channels.all()) == [channel]
    assert not notice.is_routed_by_event


def test_it_pauses_a_queue(ann, settings, tmp_path, store, monkeypatch):
    from tests.kit.sources import forget_configuration

    path = tmp_path / "celery.toml"
    path.write_text('[sources.shop]\nbackend = "celery"\nurl = "redis://127.0.0.1:1/0"\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(path)}
    forget_configuration(config)
    Worker.objects.create(source="shop", name="w", boot="1", seen_at=timezone.now(), host="h")
    fail(minutes_ago(20))
    row = live(ann, act={"kind": "pause", "queue": "emails", "for_s": 600})
    assert step() and Pause.objects.get().created_by == "ann"
    Pause.objects.update(resumed_at=timezone.now(), resumed_by="otto")
    for hours in (1, 2):  # the dead job has asked for it once: who resumed the queue does not resume it against this
        step(timezone.now() + timedelta(hours=hours))
    assert Pause.objects.count() == 1 and len(decisions("done")) == 1
    monkeypatch.setattr(deciding, "DIARY", 1)
    for hours, state in ((3, "refused"), (30, "waited")):
        row.refresh_from_db()
        later = timezone.now() + timedelta(hours=hours)
        deciding._note_reason(row, f"Reason {state}", later)
        AutomationDecision.objects.filter(n=row.last_n).update(state=state)
    assert len(decisions("done")) == 1, "what it acted on stays known, also behind a later act that was refused"


def test_a_store_that_does_not_answer_trips_nothing(ann, settings):
    fail(minutes_ago(20))
    row = live(ann)
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    config.store.cache_clear()
    step()
    row.refresh_from_db()
    assert row.tripped_at is None and row.why_not == "The store does not answer."
    config.store.cache_clear()


def test_a_rule_that_is_disabled_or_deleted_is_no_rule_that_resolved(ann):
    fail(minutes_ago(20))
    row = live(ann)
    rule = Rule.objects.create(name="r", metric="dead", threshold=1)
    now = timezone.now()
    create_alert(rule, "resolved", fired_at=now - timedelta(hours=1), resolved_at=now)
    type(row).objects.filter(pk=row.pk).update(rule=rule)
    for change in ({"enabled": False}, {"enabled": True, "deleted_at": now}):
        Rule.objects.filter(pk=rule.pk).update(**change)
        step()
        row.refresh_from_db()
        assert row.why_not == "The alert rule is disabled or deleted." and not decisions("done")


def test_a_replay_that_was_started_before_a_crash_counts_also_where_it_is_disabled(ann, monkeypatch):
    fail(minutes_ago(20))
    row = live(ann)

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(acting, "end", die)
        with pytest.raises(KeyboardInterrupt):
            step()
    assert Replay.objects.count() == 1 and len(decisions("planned")) == 1
    automations.disable(ann, row.name)
    assert [one.replay for one in decisions("done")] == [Replay.objects.get()] and not decisions("cancelled")


# -- documents ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"source": "nowhere"}, "source"),
        ({"source": 7}, "source"),
        ({"q": "state:retrying"}, "q"),
        ({"q": "age:>1h"}, "q"),
        ({"q": "x" * 3000}, "q"),
        ({"q": "*\x00"}, "q"),
        ({"rule": "none"}, "rule"),
        ({"min_jobs": 0}, "min_jobs"),
        ({"min_jobs": True}, "min_jobs"),
        ({"quiet_s": -1}, "quiet_s"),
        ({"cooldown_s": 1}, "cooldown_s"),
        ({"cap_per_hour": 10**9}, "cap_per_hour"),
        ({"act": "delete"}, "act"),
        ({"act": {"kind": "discard", "pace": {}}}, "act"),
        ({"act": {"kind": "replay", "pace": {"style": "fast"}}}, "pace.style"),
        ({"act": {"kind": "replay", "delay_s": "1"}}, "delay_s"),
        ({"act": {"kind": "assign", "assignee": "nobody"}}, "assignee"),
        ({"act": {"kind": "notify", "channels": []}}, "channels"),
        ({"act": {"kind": "notify", "channels": ["\x00"]}}, "channels"),
        ({"act": {"kind": "pause", "queue": ""}}, "queue"),
        ({"note": "x" * 501}, "note"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "yesterday"}, "expires_at"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_cannot_be_is_refused_beside_its_field(ann, changes, field):
    refused = refusal(automations.create, ann, "back", document(**changes))
    assert refused.field == field and not Automation.objects.exists()


@pytest.mark.parametrize("name", ["", "new", "stop-all", "Back", "a b", "../x", "x" * 64, "\x00", None])
def test_a_name_is_an_address(ann, name):
    with pytest.raises(Refused):
        automations.create(ann, name, document())


def test_a_document_goes_round(ann):
    made = automations.create(ann, "back", document(q="error:Timeout state:dead", note="why"))
    again = automations.change(ann, "back", automations.render(made), expected_version=1)
    assert automations.render(again) == automations.render(made)


# -- a watch that dies --------------------------------------------------------------------------------------------


class Died(BaseException):
    pass


@pytest.mark.parametrize("place", ["before", "draft", "started", "recorded"])
def test_a_replay_is_started_once_wherever_the_watch_dies(ann, monkeypatch, place):
    fail(minutes_ago(20), 4)
    live(ann)

    def die(*args, **more):
        raise Died

    with monkeypatch.context() as patched:
        if place == "before":
            patched.setattr(acting, "carry_out", die)
        elif place == "draft":
            patched.setattr("jobs_admin.replays.drafting._start_once", die)
        elif place == "started":
            patched.setattr(acting, "end", die)
        else:
            end = acting.end
            patched.setattr(acting, "end", lambda *args, **more: (end(*args, **more), die()))
        with pytest.raises(Died):
            step()
    for n in range(3):
        step(timezone.now() + timedelta(seconds=10 * n))
    (done,) = decisions("done")
    assert done.replay == Replay.objects.get() and done.jobs == 4
    assert not decisions("planned")


def test_of_two_watches_one_decides(ann):
    fail(minutes_ago(20), 4)
    one = live(ann)
    other = Automation.objects.get(pk=one.pk)
    now = timezone.now()
    assert deciding._plan(one, [1], now) is not None and deciding._plan(other, [1], now) is None
