"""Groups of a replay: which are off before it starts and why, and that its canary is drawn over them."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs_admin import policies, replays
from jobs_admin.models import (
    Attempt,
    AuditEvent,
    Failure,
    FailureCount,
    Group,
    GroupCounter,
    Replay,
    ReplayItem,
    Worker,
)
from jobs_admin.models.access import ADMIN as ADMINISTRATOR
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.replays import Options, prognosis
from tests.kit.people import ANN
from tests.kit.replays import refusal

ADMIN = Viewer("root", {"*": ADMINISTRATOR})

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def group(name, error_type="shop.PartnerDown", ago=timedelta(hours=1), **more):
    at = timezone.now() - ago
    return Group.objects.create(
        fingerprint=f"v1-{name}", error_type=error_type, message=name, first_seen=at, last_seen=at, **more
    )


@pytest.fixture
def mixed(shop, bury):
    """name -> (group, its failures)."""

    def bury_groups(**groups):
        found = {}
        for name, (count, changes) in groups.items():
            one = group(name, **changes)
            found[name] = one, bury(count, group=one)
        return found

    return bury_groups


def off(query="queue:emails", viewer=ANN, **options):
    seen = replays.preview(viewer, query=query, options=Options.parse(options))
    return {one.fingerprint.removeprefix("v1-"): one.reason for one in seen.choices if not one.is_on}, seen


def test_groups_that_are_likely_to_fail_again_are_off_with_their_reasons(mixed):
    made = mixed(
        down=(5, {}),
        bug=(3, {"error_type": "KeyError"}),
        known=(2, {"state": "muted", "state_by": "bob"}),
        poison=(2, {}),
    )
    FailureCount.objects.create(
        source="shop", queue="emails", task="shop.send", group_id=made["poison"][0].pk, state="quarantined", count=3
    )
    warnings, seen = off()
    assert warnings == {
        "bug": "permanent: KeyError is an error of code or data",
        "known": "muted by bob",
        "poison": "poison: 3 of its jobs are in quarantine for crashing their workers",
    }
    assert (seen.matched, seen.replayable) == (15, 5)
    assert [row for row in seen.blocked if row["code"] == "group"] == [
        {"code": "group", "reason": "in 3 excluded groups", "count": 7}
    ]
    # On first, then the fullest.
    assert [(one.fingerprint, one.count, one.is_on) for one in seen.choices] == [
        ("v1-down", 5, True), ("v1-bug", 3, False), ("v1-known", 2, False), ("v1-poison", 2, False),
    ]  # fmt: skip


def test_what_is_off_is_not_sent_and_is_named_on_the_replay(mixed):
    made = mixed(down=(5, {}), bug=(3, {"error_type": "KeyError"}))
    replay = replays.launch(ANN, query="queue:emails", reason="the partner is back")
    assert (replay.total, replay.without_groups) == (5, [made["bug"][0].pk])
    assert set(replay.items.values_list("failure", flat=True)) == set(made["down"][1])
    (aside,) = replays.groups_aside(ANN, replay)
    assert (aside.group, aside.phase, aside.code, aside.jobs) == (made["bug"][0], "start", "permanent", 3)
    assert set(Failure.objects.filter(group=made["bug"][0]).values_list("state", flat=True)) == {"dead"}


def test_a_person_decides(mixed):
    mixed(down=(5, {}), bug=(3, {"error_type": "KeyError"}))
    assert off(without_groups=[])[1].replayable == 8
    warnings, seen = off(without_groups=["v1-down"])
    assert (warnings, seen.replayable) == ({"down": ""}, 3)
    assert refusal(lambda: off(without_groups=["v1-none"])).field == "without_groups"
    replay = replays.launch(
        ANN, query="queue:emails", reason="x", options=Options.parse({"without_groups": ["v1-down"]})
    )
    assert [one.reason for one in replays.groups_aside(ANN, replay)] == ["excluded by ann"]


def test_who_names_jobs_or_a_group_means_them(mixed):
    made = mixed(down=(5, {}), bug=(3, {"error_type": "KeyError"}))
    assert off("group:v1-bug,v1-down")[0] == {}
    seen = replays.preview(ANN, selection=[*made["bug"][1], *made["down"][1]])
    assert seen.replayable == 8 and [one.reason for one in seen.choices] == [
        "",
        "permanent: KeyError is an error of code or data",
    ]
    assert off("group:v1-bug")[1].replayable == 3


def test_all_off_is_refused_with_the_way_out(mixed):
    mixed(one=(2, {"error_type": "TypeError"}), two=(3, {"error_type": "KeyError"}))
    refused = refusal(lambda: replays.launch(ANN, query="queue:emails", reason="x"))
    assert refused.message == (
        "All 5 jobs are excluded: 5 in 2 excluded groups. Nothing was changed. "
        "Name the groups to exclude (without_groups); an empty list sends all."
    )
    assert not Replay.objects.exists()


def test_a_policy_reports_what_is_permanent(mixed):
    errors = {"gone": "shop.EndpointGone", "known": "builtins.ValueError", "bug": "decimal.InvalidOperation"}
    made = mixed(down=(5, {}), **{name: (3, {"error_type": error}) for name, error in errors.items()})
    policies.publish(
        ADMIN,
        "mail",
        {
            "match": {"source": "*", "queue": "emails", "task": "*"},
            "backoff": {"kind": "fixed", "first_delay_s": 1},
            "max_attempts": 3,
            "classes": [{"error": "EndpointGone", "as": "permanent"}, {"error": "ValueError", "as": "transient"}],
        },
        expected_version=0,
    )
    # One that names no error says nothing about them.
    policies.publish(
        ADMIN, "others", {"match": {"source": "*", "queue": "*", "task": "*"}, "max_attempts": 2}, expected_version=0
    )
    FailureCount.objects.create(
        source="shop", queue="other", task="shop.send", group_id=made["gone"][0].pk, state="dead", count=1
    )
    # It decides on the errors that it names, whatever they are.
    assert off()[0] == {
        "gone": "permanent by policy mail",
        "bug": "permanent: decimal.InvalidOperation is an error of code or data",
    }


def test_an_error_of_code_is_on_again_once_it_is_resolved_or_another_release_runs(mixed):
    bug, ids = mixed(bug=(3, {"error_type": "KeyError"}))["bug"]
    now = timezone.now()

    def is_permanent():
        return bug.pk in prognosis.predict_groups(ANN, [bug.pk], now)

    assert is_permanent()
    Failure.objects.filter(pk__in=ids).update(release="1.0")
    Worker.objects.create(source="shop", name="w1", release="1.0", seen_at=now, boot="b", queues=["emails"])
    assert is_permanent()
    Worker.objects.update(release="1.1")
    assert not is_permanent()
    Worker.objects.update(seen_at=now - timedelta(hours=1))
    assert is_permanent()
    Group.objects.update(state="resolved", resolved_at=now)
    assert not is_permanent()


def test_a_group_that_is_failing_now_is_off(mixed):
    made = mixed(down=(5, {}), storm=(5, {"ago": timedelta(seconds=4)}), calm=(5, {"ago": timedelta(seconds=40)}))
    minute = timezone.now().replace(second=0, microsecond=0)
    for name in ("storm", "calm"):
        GroupCounter.objects.create(group=made[name][0], step=60, at=minute, failed=9)
    assert list(off()[0]) == ["storm"] and "still failing: last failure" in off()[0]["storm"]


def replayed(again, fine, **changes):
    """An ended replay, with six jobs of each of these (group, its failures)."""
    now = timezone.now()
    earlier = Replay.objects.create(
        scope_max_id=0, state="done", started_at=now, ended_at=now, actor="ann", failed_again=6, **changes
    )
    rows = [(pk, False, one) for one, ids in again for pk in ids[:6]]
    rows += [(pk, True, None) for _, ids in fine for pk in ids[:6]]
    for n, (pk, ok, failed_in) in enumerate(rows, 1):
        ReplayItem.objects.create(
            replay=earlier, n=n, failure_id=pk, run=2, state="succeeded" if ok else "failed_again", sent_at=now,
            first_at=now, first_ok=ok, first_group=failed_in,
        )  # fmt: skip


def test_groups_that_failed_together_are_on_again_after_minutes_and_one_that_failed_alone_is_not(mixed):
    ago = {"ago": timedelta(minutes=6)}
    made = mixed(fine=(6, ago), one=(6, ago), two=(6, ago), alone=(6, ago))
    replayed([made["one"], made["two"]], [made["fine"]], succeeded=6)
    assert off()[0] == {}, "most groups failed together: the outage may be over"
    replayed([made["alone"]], [made["fine"]], succeeded=6)
    assert off()[0] == {"alone": "6 of 6 replayed in the last hour failed again; last failure 6 min ago"}
    replayed([made["one"]], [made["fine"], made["two"]], succeeded=12)
    assert set(off()[0]) == {"alone", "one"}


def test_single_jobs_that_an_operator_tried_do_not_end_an_outage_for_their_group(mixed):
    made = mixed(**{f"g{n}": (6, {"ago": timedelta(minutes=6)}) for n in range(4)})
    replayed(made.values(), [])
    one, ids = made["g0"]
    replayed([(one, ids[:1])], [])
    assert off()[0] == {}
    replayed([(one, ids[:5])], [])
    assert set(off()[0]) == {"g0"}, "five jobs of a replay are evidence"


def test_a_group_is_not_alone_in_a_replay_that_excluded_others(mixed):
    made = mixed(one=(6, {"ago": timedelta(minutes=6)}), two=(6, {"ago": timedelta(minutes=6)}))
    replayed([made["one"]], [], without_groups=[made["two"][0].pk])
    assert off()[0] == {}


def test_a_success_at_a_native_retry_is_one(mixed):
    """Although the first attempt after sending failed."""
    ago = {"ago": timedelta(minutes=6)}
    made = mixed(one=(6, ago), two=(6, ago), third=(6, ago))
    replayed([made["one"], made["two"]], [])
    assert off()[0] == {}, "an outage"
    ReplayItem.objects.filter(failure__group=made["two"][0]).update(state="succeeded")
    assert list(off()[0]) == ["one"], "one of two groups is no outage"
    ReplayItem.objects.update(state="succeeded")
    Group.objects.update(last_seen=timezone.now() - timedelta(minutes=1))
    assert off()[0] == {}


def test_an_operator_of_one_source_has_the_prognosis_of_an_admin(mixed, bury):
    one, ids = mixed(one=(6, {"ago": timedelta(minutes=6)}))["one"]
    two = group("two", ago=timedelta(minutes=6))
    replayed([(one, ids), (two, bury(6, source="web", group=two))], [])
    for viewer in (ADMIN, Viewer("bob", {"shop": OPERATOR})):
        assert prognosis.predict_groups(viewer, [one.pk], timezone.now()) == {}, viewer
    Group.objects.update(last_seen=timezone.now() - timedelta(minutes=1))
    found = prognosis.predict_groups(Viewer("bob", {"shop": OPERATOR}), [one.pk, two.pk], timezone.now())
    assert [one.reason for one in found.values()] == [
        "6 of 6 replayed in the last hour failed again; last failure 1 min ago"
    ], "the counts are of visible jobs"


@pytest.mark.parametrize(
    ("message", "is_off"),
    [
        ("404 Client Error: Not Found for url: <url>", True),
        ("Client error '422 Unprocessable Entity' for url <url>", True),
        ("HTTP Error 410: Gone", True),
        ("429 Client Error: Too Many Requests for url: <url>", False),
        ("the partner returned 408", False),
        ("the partner returned 503", False),
        ("timed out after 404 ms", False),
    ],
)
def test_a_group_that_was_refused_for_good_stays_off_also_after_an_outage(mixed, message, is_off):
    ago = {"ago": timedelta(minutes=6)}
    made = mixed(fine=(6, ago), one=(6, ago), two=(6, ago))
    Group.objects.filter(pk=made["one"][0].pk).update(message=message)
    replayed([made["one"], made["two"]], [made["fine"]], succeeded=6)
    assert list(off()[0]) == (["one"] if is_off else [])


def test_what_was_replayed_lately_and_failed_again_is_off_unless_that_was_an_outage(mixed):
    made = mixed(down=(20, {}), again=(20, {"ago": timedelta(minutes=2)}))
    now = timezone.now()
    replayed([made["again"]], [made["down"]], succeeded=6)
    assert off()[0] == {"again": "6 of 6 replayed in the last hour failed again; last failure 2 min ago"}
    ReplayItem.objects.update(first_at=now - timedelta(hours=2))
    assert off()[0] == {}


def test_a_group_that_was_replayed_alone_and_failed_again_stays_off(mixed):
    """Retries may fail with another error first: the group of the final error counts."""
    made = mixed(down=(20, {}), again=(20, {"ago": timedelta(minutes=13)}), other=(1, {}))
    replayed([made["again"]], [])
    assert off()[0] == {"again": "6 of 6 replayed in the last hour failed again; last failure 13 min ago"}
    ReplayItem.objects.filter(n__lte=3).update(first_group=made["other"][0])
    assert off()[0] == {}, "three of each, as far as is known"
    ReplayItem.objects.update(failed_group=made["again"][0])
    assert list(off()[0]) == ["again"]
    Group.objects.filter(pk=made["again"][0].pk).update(state="resolved", resolved_at=timezone.now())
    assert off()[0] == {}


def test_the_prognosis_of_many_groups_takes_no_more_queries_than_that_of_few(mixed):
    made = mixed(**{f"g{n}": (6, {"ago": timedelta(minutes=2)}) for n in range(12)})
    now = timezone.now()
    earlier = Replay.objects.create(
        scope_max_id=0, state="done", started_at=now, ended_at=now, actor="ann", succeeded=1, failed_again=72
    )
    rows = [(pk, one) for one, ids in made.values() for pk in ids]
    for n, (pk, one) in enumerate(rows, 1):
        ReplayItem.objects.create(
            replay=earlier, n=n, failure_id=pk, run=2, state="failed_again", sent_at=now, first_at=now, first_ok=False,
            first_group=one,
        )  # fmt: skip
    ids = [one.pk for one, _ in made.values()]
    taken = []
    for few in (ids[:2], ids):
        with CaptureQueriesContext(connection) as queries:
            found = prognosis.predict_groups(ANN, few, now)
        assert [one.code for one in found.values()] == [prognosis.FAILED_AGAIN] * len(few)
        taken.append(len(queries))
    assert taken[0] == taken[1]


def test_a_group_of_another_source_reports_nothing(mixed, bury):
    mixed(down=(5, {}), bug=(3, {"error_type": "KeyError"}))
    secret = group("secret", error_type="KeyError")
    bury(4, source="web", group=secret)
    _, seen = off(viewer=Viewer("bob", {"shop": OPERATOR}))
    assert {one.fingerprint for one in seen.choices} == {"v1-down", "v1-bug"}


def test_the_canary_is_drawn_over_the_groups(mixed):
    """Oldest first, it would be 300 jobs of one group."""
    made = mixed(old=(300, {}), middle=(80, {}), small=(20, {}), one=(1, {}))
    replay = replays.launch(ANN, query="queue:emails", reason="x", pace={"style": "careful"})
    drawn = list(replay.items.order_by("n").values_list("failure__group__message", flat=True)[:50])
    assert drawn[:4] == ["old", "middle", "small", "one"]
    share = Counter(drawn)
    assert share["old"] == pytest.approx(37, abs=2) and share["middle"] == pytest.approx(10, abs=2)
    # Within a group the oldest goes first, and no job is there twice or missing.
    of_old = list(replay.items.filter(failure__group=made["old"][0]).order_by("n").values_list("failure", flat=True))
    while replays.create_items():
        pass
    assert of_old == sorted(of_old) and replay.items.count() == 401


def test_a_steady_replay_goes_oldest_first(mixed):
    made = mixed(old=(6, {}), new=(6, {}))
    replay = replays.launch(ANN, query="queue:emails", reason="x", pace={"rate": 5})
    order = list(replay.items.order_by("n").values_list("failure", flat=True))
    assert order == made["old"][1] + made["new"][1]


# -- drafts ---------------------------------------------------------------------------------------------------------


def test_a_refused_start_leaves_nothing(shop, bury, monkeypatch):
    ids = bury(20)
    seen = replays.preview(ANN, query="queue:emails")
    Failure.objects.filter(pk__in=ids[:10]).update(state="recovered")
    refused = refusal(lambda: replays.launch(ANN, query=seen.query, reason="x", snapshot=seen.snapshot))
    assert refused.code == "changed" and not Replay.objects.exists()


def test_a_refused_start_leaves_the_draft_that_its_key_had_made_before(shop, bury):
    ids = bury(20)
    seen = replays.preview(ANN, query="queue:emails")
    options = {"query": seen.query, "reason": "x", "snapshot": seen.snapshot, "idempotency_key": "k"}
    draft = replays.draft(ANN, **options)
    Failure.objects.filter(pk__in=ids[:10]).update(state="recovered")
    assert refusal(lambda: replays.launch(ANN, **options)).code == "changed"
    assert Replay.objects.get().pk == draft.pk
    assert refusal(lambda: replays.launch(ANN, **options | {"idempotency_key": "another"})).code == "changed"
    assert Replay.objects.get().pk == draft.pk


def test_a_start_without_what_the_preview_accepted_reports_it(shop, bury):
    bury(2, expires_at=timezone.now() - timedelta(hours=1), caveats=8)
    bury(17)
    accepting = Options(accept=("expired",))
    seen = replays.preview(ANN, query="queue:emails", options=accepting)
    assert seen.replayable == 19
    refused = refusal(lambda: replays.launch(ANN, query=seen.query, reason="x", snapshot=seen.snapshot))
    assert (refused.field, refused.details["accept"]) == ("accept", ["expired"])
    assert refused.message == (
        "The preview accepted expired, but this start does not: name it in accept, or preview without it. "
        "The preview had 19 jobs, this start has 17. Nothing was changed."
    )
    assert not Replay.objects.exists()
    assert replays.launch(ANN, query=seen.query, reason="x", snapshot=seen.snapshot, options=accepting).total == 19


def test_a_start_with_other_groups_than_the_preview_reports_it(mixed):
    mixed(down=(5, {}), bug=(3, {"error_type": "KeyError"}))
    seen = replays.preview(ANN, query="queue:emails", options=Options.parse({"without_groups": []}))
    refused = refusal(lambda: replays.launch(ANN, query=seen.query, reason="x", snapshot=seen.snapshot))
    assert refused.field == "without_groups" and "The preview had 8 jobs, this start has 5." in refused.message


def test_a_draft_is_discarded_and_the_audit_keeps_what_it_was(shop, bury):
    bury(3)
    draft = replays.draft(ANN, query="queue:emails", reason="later")
    replays.discard(ANN, draft)
    assert not Replay.objects.exists() and not Attempt.objects.filter(run=2).exists()
    started = replays.launch(ANN, query="queue:emails", reason="now")
    assert refusal(lambda: replays.discard(ANN, started)).code == "wrong_state"


def test_a_draft_is_discarded_and_given_another_pace_by_operators_of_its_sources_alone(shop, bury):
    bury(3)
    draft = replays.draft(ANN, query="queue:emails", reason="later")
    other = Viewer("otto", {"*": VIEWER, "mails": OPERATOR})
    for act in (replays.discard, lambda viewer, replay: replays.change_pace(viewer, replay, {"style": "at_once"})):
        refused = refusal(lambda act=act: act(other, replays.find(other, draft.pk)))
        assert refused.code == "forbidden" and "shop" in refused.message
    assert Replay.objects.get().pace == draft.pace
    replays.discard(Viewer("olga", {"shop": OPERATOR}), draft, reason="not needed")
    assert AuditEvent.objects.get(act="replay.discard", allowed=True).source == "shop"
