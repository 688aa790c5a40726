from __future__ import annotations

import json
import time
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.db.models import Sum

from jobs_admin import failures, groups
from jobs_admin.core.fingerprint import NO_RULES
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.db import grouping_rules
from jobs_admin.failures import exporting, triage
from jobs_admin.groups import group_detail, group_history, group_rules, regrouping
from jobs_admin.models import Attempt, Failure, Group, GroupAlias, GroupCounter, GroupRule, Traceback
from tests.kit.counts import list_counts, recount
from tests.kit.desks import Desk
from tests.kit.failures import forget
from tests.kit.grouping import ANN, TRACE, bury
from tests.kit.reports import NOW, file, report

pytestmark = [pytest.mark.django_db, pytest.mark.databases, pytest.mark.usefixtures("fresh")]

CORPUS = Path(__file__).parents[1] / "fingerprints" / "pairs.jsonl"


def all_of_it(**more):
    """Everything there is to do, slice by slice; the counts of failures are right after each."""
    GroupRule.objects.update(since=NOW - timedelta(hours=1))
    slices = 0
    while regrouping.regroup(NOW):
        assert list_counts() == recount()
        slices += 1
        assert slices < 500
    return slices


def save(kind, *names, **fields):
    return group_rules.save(ANN, kind, groups=[g.fingerprint for g in names], **fields)


def where():
    """Failures of each group, by its fingerprint."""
    return {g.fingerprint: g.failures.count() for g in Group.objects.all()}


def count_attempts():
    """Counters of each group: attempts, and those in its minutes and hours."""
    sums = GroupCounter.objects.values_list("group__fingerprint", "step").annotate(n=Sum("failed") + Sum("retried"))
    by_step = {(name, step): n for name, step, n in sums if n}
    return {
        g.fingerprint: (g.count, by_step.get((g.fingerprint, 60), 0), by_step.get((g.fingerprint, 3600), 0))
        for g in Group.objects.all()
    }


def is_consistent():
    """Groups count their attempts, and each attempt is where its failure is."""
    counted = count_attempts()
    for group in Group.objects.all():
        n = Attempt.objects.filter(group=group).count()
        assert counted[group.fingerprint] == (n, n, n)
        failures = set(Attempt.objects.filter(group=group).values_list("failure__group_id", flat=True))
        assert failures <= {group.pk}
        if n:
            assert group.representative.group_id == group.pk
    assert list_counts() == recount()
    return True


# -- one and the same fingerprint ---------------------------------------------------------------------------------


def test_a_known_failure_has_the_fingerprint_that_it_arrived_with():
    rows = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    texts = [pair[side] for pair in rows[::3] for side in ("left", "right")]
    file(*(report(f"c{n}", **one) for n, one in enumerate(texts)))
    for failure in Failure.objects.select_related("traceback", "group"):
        assert group_rules.printed(failure, NO_RULES).value == failure.group.fingerprint


# -- older versions -----------------------------------------------------------------------------------------------


def old(group, name="v1-old"):
    """The group as an older version would have named it."""
    Group.objects.filter(pk=group.pk).update(fingerprint=name, note="ask Bob", state="resolved")
    group.refresh_from_db()
    return group


def test_a_group_of_an_older_version_is_renamed_and_its_old_link_leads_to_it():
    group = bury(2)
    name = group.fingerprint
    old(group)
    all_of_it()
    group.refresh_from_db()
    assert (group.fingerprint, group.note, group.state) == (name, "ask Bob", "resolved")
    assert group_detail.group(ANN, "v1-old").group == group


def test_a_group_of_an_older_version_joins_the_one_that_has_its_name_by_now():
    group = old(bury(2))
    bury(1, message="order 99 refused")
    assert len(where()) == 2
    all_of_it()
    (now,) = Group.objects.all()
    assert (now.failures.count(), now.note) == (3, "ask Bob") and now.pk != group.pk
    assert group_detail.group(ANN, "v1-old").group == now and is_consistent()


def test_two_old_groups_that_are_one_by_now_become_one_and_both_links_live():
    old(bury(1), "v1-a")
    Group.objects.filter(pk=bury(1, message="order 5 refused").pk).update(fingerprint="v1-b")
    all_of_it()
    assert len(where()) == 1 and is_consistent()
    assert group_detail.group(ANN, "v1-a").group == group_detail.group(ANN, "v1-b").group


LIMIT = {
    "kind": "hard_limit",
    "error_type": "billiard.exceptions.TimeLimitExceeded",
    "message": "hard time limit of 3 s exceeded",
    "trace": "",
}


def kill(number, task, start=0, **fields):
    """Jobs of a task end at the hard time limit; returns their group."""
    file(*(report(f"{task}-{n}", task=task, **{**LIMIT, **fields}) for n in range(start, start + number)))
    return Failure.objects.latest("pk").group


def as_one_old_group(*groups, name="v2-old"):
    """These groups as an older version would have put them together."""
    first, *others = groups
    for other in others:
        Failure.objects.filter(group=other).update(group=first)
        Attempt.objects.filter(group=other).update(group=first)
        GroupCounter.objects.filter(group=other).delete()
        count = Group.objects.get(pk=other.pk).count
        Group.objects.filter(pk=first.pk).update(count=Group.objects.get(pk=first.pk).count + count)
        for counter in GroupCounter.objects.filter(group=first):
            GroupCounter.objects.filter(pk=counter.pk).update(failed=counter.failed + count)
        Group.objects.filter(pk=other.pk).delete()
    Group.objects.filter(pk=first.pk).update(representative=Failure.objects.filter(group=first).first())
    return old(first, name)


@pytest.mark.parametrize("rows", [1, 1000])
def test_an_older_group_of_several_tasks_parts_and_its_link_leads_to_the_task_it_showed(rows, monkeypatch):
    monkeypatch.setattr(regrouping, "_MOST_SEEN", rows)
    send, bill = kill(4, "shop.send"), kill(3, "shop.bill")
    names = send.fingerprint, bill.fingerprint
    as_one_old_group(send, bill)
    all_of_it()
    assert where() == {names[0]: 4, names[1]: 3} and is_consistent()
    assert group_detail.group(ANN, "v2-old").group.fingerprint == names[0]
    assert {g.note for g in Group.objects.all()} == {"ask Bob"}
    kill(1, "shop.bill", start=9)
    assert where() == {names[0]: 4, names[1]: 4}


def test_an_older_group_that_people_merged_stays_together_until_the_merge_is_taken_back():
    send, bill = kill(2, "shop.send"), kill(1, "shop.bill", error_type="E", message="gone")
    names = send.fingerprint, bill.fingerprint
    Group.objects.filter(pk=bill.pk).update(fingerprint="v2-bill")
    bill.refresh_from_db()
    rule = save("merge", old(send, "v2-send"), bill)
    all_of_it()
    assert where() == {names[0]: 3} and is_consistent()
    kill(1, "shop.bill", start=9, error_type="E", message="gone")
    assert where() == {names[0]: 4}, "a newer version does not end a merge"
    group_rules.withdraw(ANN, GroupRule.objects.get(pk=rule.pk))
    all_of_it()
    assert where() == {names[0]: 2, names[1]: 2} and is_consistent()
    assert group_detail.group(ANN, "v2-bill").group.fingerprint == names[1]


def test_doing_it_twice_changes_nothing():
    old(bury(2))
    all_of_it()
    assert all_of_it() == 0


def test_a_group_without_failures_keeps_its_name():
    group = old(bury(1))
    Attempt.objects.all().delete()
    Failure.objects.all().delete()
    assert all_of_it() == 0 and groups_named("v1-old") == group


def groups_named(name):
    return Group.objects.get(fingerprint=name)


# -- merging ------------------------------------------------------------------------------------------------------


def test_a_merge_moves_failures_attempts_and_counters():
    one, other = bury(2), bury(3, task="refund", kind="retry")
    rule = save("merge", one, other)
    all_of_it()
    assert where() == {one.fingerprint: 5} and is_consistent()
    rule.refresh_from_db()
    assert rule.is_applied and group_detail.group(ANN, other.fingerprint).group == one


def test_what_arrives_while_a_merge_goes_on_is_not_left_behind():
    one, other = bury(1), bury(1, task="refund")
    save("merge", one, other)
    bury(2, task="refund", message="order 3 refused")
    all_of_it()
    assert where() == {one.fingerprint: 4} and is_consistent()


def test_a_merge_that_is_taken_back_gives_groups_back_with_state_and_note():
    one, other = bury(2), bury(3, task="refund")
    Group.objects.filter(pk=other.pk).update(note="Bob looks", state="muted", muted_until_count=70)
    rule = save("merge", one, other)
    all_of_it()
    group_rules.withdraw(ANN, rule)
    all_of_it()
    assert where() == {one.fingerprint: 2, other.fingerprint: 3} and is_consistent()
    back = Group.objects.get(fingerprint=other.fingerprint)
    assert (back.note, back.state, back.muted_until_count) == ("Bob looks", "muted", 70)
    assert Group.objects.get(fingerprint=one.fingerprint).note == ""
    assert not GroupAlias.objects.exists()


def test_a_merge_that_is_taken_back_half_way_is_taken_back_in_full():
    one, other = bury(2), bury(3, task="refund")
    regrouping._paces = defaultdict(lambda: regrouping._Pace(1))
    rule = save("merge", one, other)
    while where()[one.fingerprint] == 2:  # what it counted goes first
        regrouping.regroup(NOW)
    assert where() == {one.fingerprint: 3, f"was-{other.fingerprint}": 2}
    group_rules.withdraw(ANN, rule)
    all_of_it()
    assert where() == {one.fingerprint: 2, other.fingerprint: 3} and list_counts() == recount()


def pruned(group, most):
    """Failures of the group are pruned, with their attempts; what it counted stays."""
    forget(group.failures.order_by("pk").values_list("pk", flat=True)[:most])


def numbers():
    """Counters of each group, also of what it has no longer."""
    return {name: (count, hour) for name, (count, _, hour) in count_attempts().items()}


def test_a_merge_that_is_taken_back_gives_each_its_count_also_of_pruned_failures():
    one, other = bury(3), bury(4, task="refund")
    pruned(one, 1), pruned(other, 2)
    before = numbers()
    assert before == {one.fingerprint: (3, 3), other.fingerprint: (4, 4)}
    rule = save("merge", one, other)
    all_of_it()
    assert numbers() == {one.fingerprint: (7, 7)}
    group_rules.withdraw(ANN, rule)
    all_of_it()
    assert numbers() == before and where() == {one.fingerprint: 2, other.fingerprint: 2}


@pytest.mark.parametrize("left", [0, 1])
def test_what_was_pruned_or_came_while_two_were_merged_is_where_it_belongs_afterwards(left):
    one, other = bury(3), bury(4, task="refund")
    rule = save("merge", one, other)
    all_of_it()
    bury(2, task="refund", message="order 77 refused")
    forget(Failure.objects.order_by("pk").values_list("pk", flat=True)[: 7 - left])
    group_rules.withdraw(ANN, rule)
    all_of_it()
    assert numbers() == {one.fingerprint: (3, 3), other.fingerprint: (6, 6)}
    assert where() == {one.fingerprint: 0, other.fingerprint: 2 + left}


@pytest.mark.parametrize("slices", range(1, 9))
def test_a_merge_that_is_taken_back_at_any_point_gives_each_its_count(slices):
    one, other = bury(1), bury(3, task="refund")
    pruned(other, 1)
    regrouping._paces = defaultdict(lambda: regrouping._Pace(1))
    rule = save("merge", one, other)
    for _ in range(slices):
        regrouping.regroup(NOW)
    group_rules.withdraw(ANN, rule)
    all_of_it()
    assert numbers() == {one.fingerprint: (1, 1), other.fingerprint: (3, 3)} and list_counts() == recount()


@pytest.mark.parametrize("slices", range(1, 9))
def test_a_merge_that_is_taken_back_at_any_point_gives_each_its_minutes_too(slices):
    """Numbers of the merged group move first, and its failures may never have left it."""
    bury(1), bury(3, task="refund")
    minutes = set(GroupCounter.objects.filter(step=60, failed__gt=0).values_list("group__fingerprint", "failed"))
    one, other = Group.objects.order_by("pk")
    regrouping._paces = defaultdict(lambda: regrouping._Pace(1))
    rule = save("merge", one, other)
    for _ in range(slices):
        regrouping.regroup(NOW)
    group_rules.withdraw(ANN, rule)
    all_of_it()
    now = set(GroupCounter.objects.filter(step=60, failed__gt=0).values_list("group__fingerprint", "failed"))
    assert now == minutes == {(one.fingerprint, 1), (other.fingerprint, 3)}


@pytest.mark.parametrize("slices", range(1, 9))
def test_attempts_of_a_job_that_fails_again_while_a_merge_is_taken_back_return_to_its_group(slices):
    one, other = bury(1), bury(2, task="refund")
    regrouping._paces = defaultdict(lambda: regrouping._Pace(1))
    rule = save("merge", one, other)
    for _ in range(slices):
        regrouping.regroup(NOW)
    group_rules.withdraw(ANN, rule)
    message = "order 17 refused"
    trace = TRACE.format(task="refund", message=message)
    file(*(report(f"refund-{message}-{n}", attempt=2, task="refund", message=message, trace=trace) for n in range(2)))
    all_of_it()
    assert where() == {one.fingerprint: 1, other.fingerprint: 2} and is_consistent()
    assert numbers() == {one.fingerprint: (1, 1), other.fingerprint: (4, 4)}


def test_a_merge_the_other_way_round_is_refused_until_the_one_being_withdrawn_is_complete():
    one, other = bury(1), bury(2, task="refund")
    rule = save("merge", one, other)
    group_rules.withdraw(ANN, rule)
    with pytest.raises(Refused) as refused:
        save("merge", other, one)
    assert refused.value.code == "conflict"
    all_of_it()
    merged = save("merge", other, one)
    all_of_it()
    assert where() == {other.fingerprint: 3} and is_consistent()
    group_rules.withdraw(ANN, merged)
    all_of_it()
    assert where() == {one.fingerprint: 1, other.fingerprint: 2} and is_consistent()


def test_groups_are_not_split_while_a_merge_of_them_is_being_withdrawn():
    """Their failures in the other group would stay there, or be in a part that is not theirs."""
    one, other = bury(1), bury(3, task="refund")
    rule = save("merge", one, other)
    regrouping.regroup(NOW)
    group_rules.withdraw(ANN, rule)
    bury(1, task="refund")
    for group in (one, other):
        with pytest.raises(Refused) as refused:
            save("split", group, by="task")
        assert refused.value.code == "conflict"
    all_of_it()
    split = save("split", other, by="task")
    all_of_it()
    group_rules.withdraw(ANN, split)
    all_of_it()
    assert where() == {one.fingerprint: 1, other.fingerprint: 3} and is_consistent()


def test_an_attempt_that_failed_otherwise_stays_in_its_group_when_a_merge_is_taken_back():
    one, other = bury(1), bury(1, task="refund")
    message = "order 17 refused"
    trace = TRACE.format(task="refund", message=message)
    rule = save("merge", one, other)
    all_of_it()
    group_rules.withdraw(ANN, rule)
    file(report(f"charge-{message}-0", attempt=2, task="charge", message=message, trace=trace))
    all_of_it()
    assert where() == {one.fingerprint: 0, other.fingerprint: 2}
    assert numbers() == {one.fingerprint: (1, 1), other.fingerprint: (2, 2)}
    assert Attempt.objects.filter(group=one).count() == 1


def test_groups_that_fell_silent_long_ago_part_with_their_counts_too():
    one, other = bury(1, ago=60 * 86400.0), bury(3, task="refund", ago=60 * 86400.0)
    pruned(other, 1)
    rule = save("merge", one, other)
    all_of_it()
    group_rules.withdraw(ANN, rule)
    all_of_it()
    assert numbers() == {one.fingerprint: (1, 1), other.fingerprint: (3, 3)}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_merges_of_merges_give_each_its_count_in_whatever_order_they_are_taken_back(order):
    a, b, c = bury(2), bury(3, task="refund"), bury(4, task="ship")
    pruned(a, 1), pruned(b, 1), pruned(c, 1)
    before, rules = numbers(), []
    for names in ((b, c), (a, b)):
        rules.append(save("merge", *names))
        all_of_it()
    bury(1, task="ship", message="order 9 refused")
    for n in order:
        group_rules.withdraw(ANN, GroupRule.objects.get(pk=rules[n].pk))
        all_of_it()
    assert numbers() == before | {c.fingerprint: (5, 5)}
    assert not GroupAlias.objects.exists()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("slices", [0, 2])
def test_a_group_that_is_merged_while_it_takes_another_in_gets_both_counts_back(order, slices):
    a, b, c = bury(2), bury(3, task="refund"), bury(4, task="ship")
    pruned(a, 1), pruned(b, 1), pruned(c, 1)
    before, minutes, rules = numbers(), count_attempts(), []
    regrouping._paces = defaultdict(lambda: regrouping._Pace(1))
    for names in ((b, c), (a, b)):
        rules.append(save("merge", *names))
        for _ in range(slices):
            regrouping.regroup(NOW)
    for n in order:
        group_rules.withdraw(ANN, GroupRule.objects.get(pk=rules[n].pk))
        all_of_it()
    assert (numbers(), count_attempts()) == (before, minutes)


def test_a_group_that_a_withdrawn_merge_gives_back_is_merged_when_it_has_its_counts():
    one, other, third = bury(2), bury(3, task="refund"), bury(4, task="ship")
    before, rule = numbers(), save("merge", one, other)
    regrouping.regroup(NOW)
    group_rules.withdraw(ANN, rule)
    for names in ((other, third), (third, other), (one, third), (third, one)):
        with pytest.raises(Refused) as refused:
            save("merge", *names)
        assert refused.value.code == "conflict"
    all_of_it()
    assert numbers() == before
    rule = save("merge", other, third)
    all_of_it()
    group_rules.withdraw(ANN, rule)
    all_of_it()
    assert numbers() == before and is_consistent()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_merges_one_inside_the_other_the_second_is_withdrawn_when_the_first_is_complete(order):
    a, b, c = bury(2), bury(3, task="refund"), bury(4, task="ship")
    before, rules = numbers(), []
    for names in ((b, c), (a, b)):
        rules.append(save("merge", *names))
        all_of_it()
    first, second = (rules[n] for n in order)
    group_rules.withdraw(ANN, GroupRule.objects.get(pk=first.pk))
    assert not group_rules.row(ANN, second.pk).may_withdraw
    with pytest.raises(Refused) as refused:
        group_rules.withdraw(ANN, GroupRule.objects.get(pk=second.pk))
    assert refused.value.code == "conflict"
    all_of_it()
    assert group_rules.row(ANN, second.pk).may_withdraw
    group_rules.withdraw(ANN, GroupRule.objects.get(pk=second.pk))
    all_of_it()
    assert numbers() == before and is_consistent()


def test_two_merges_into_one_group_are_withdrawn_at_once():
    a, b, c = bury(2), bury(3, task="refund"), bury(4, task="ship")
    pruned(b, 1), pruned(c, 2)
    before, rules = numbers(), []
    for other in (b, c):
        rules.append(save("merge", a, other))
        all_of_it()
    for rule in rules:
        group_rules.withdraw(ANN, rule)
    all_of_it()
    assert numbers() == before


def test_a_frame_that_is_counted_again_gives_groups_the_count_of_what_was_pruned():
    charge, _ = bury(3), bury(3, task="refund")
    pruned(charge, 1)
    before = numbers()
    rule = save("ignore", frame="*/tasks.py in *")
    all_of_it()
    rule.refresh_from_db()
    group_rules.withdraw(ANN, rule)
    all_of_it()
    assert {name: n for name, n in numbers().items() if any(n)} == before


def test_no_one_meets_the_name_that_a_group_has_while_it_is_taken_in():
    one, other = bury(2), bury(3, task="refund")
    regrouping._paces = defaultdict(lambda: regrouping._Pace(1))
    save("merge", one, other)
    regrouping.regroup(NOW)
    for text in ("", "refused", "queue:*"):
        page = groups.groups(ANN, text, now=NOW)
        assert [row.group.fingerprint for row in page.rows] == [one.fingerprint] and page.count == 1
    for name in (other.fingerprint, f"was-{other.fingerprint}"):
        assert group_detail.group(ANN, name).group == one
    rows = failures.search(ANN, f"group:{one.fingerprint}", now=NOW).rows
    assert {row.group.name for row in rows} == {one.fingerprint, other.fingerprint} and len(rows) == 5
    assert triage.fingerprints_of(ANN, query="state:*") == [one.fingerprint]
    assert b"was-" not in b"".join(exporting.stream(ANN, "", "jsonl"))


def test_rules_stand_in_the_story_of_the_groups_that_they_are_about():
    one, other = bury(2), bury(3, task="refund")
    rule = save("merge", one, other, note="one outage")
    all_of_it()
    events = [
        (e.what, e.why, e.details["is_about_it"]) for e in group_history.read_history(ANN, one)[0] if e.kind == "rule"
    ]
    assert events == [("rule.save", "one outage", True)]
    group_rules.withdraw(ANN, rule)
    all_of_it()
    back = Group.objects.get(fingerprint=other.fingerprint)
    events = [(e.what, e.details["is_about_it"]) for e in group_history.read_history(ANN, back)[0] if e.kind == "rule"]
    assert events == [("rule.withdraw", False), ("rule.save", False)]


def test_the_parts_of_a_split_report_where_they_come_from():
    bury(2, queue="emails")
    group = bury(3, queue="webhooks")
    save("split", group, by="queue")
    all_of_it()
    for part in Group.objects.exclude(pk=group.pk):
        assert [e.details["by"] for e in group_history.read_history(ANN, part)[0] if e.kind == "rule"] == ["queue"]


def test_merges_of_merges_are_taken_back_in_any_order():
    a, b, c = bury(1), bury(1, task="refund"), bury(1, task="ship")
    first = save("merge", b, c)
    all_of_it()
    second = save("merge", a, b)
    all_of_it()
    assert where() == {a.fingerprint: 3}
    group_rules.withdraw(ANN, second)
    all_of_it()
    first.refresh_from_db()
    group_rules.withdraw(ANN, first)
    all_of_it()
    assert where() == {a.fingerprint: 1, b.fingerprint: 1, c.fingerprint: 1} and is_consistent()


# -- splitting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by", "parts"), [("queue", [3, 2]), ("tenant", [5]), ("message", [3, 2])])
def test_a_split_makes_a_group_of_each(by, parts):
    group = bury(2, queue="emails")
    bury(3, message="order 18 refused", queue="webhooks")
    save("split", group, by=by)
    all_of_it()
    made = where()
    assert made.pop(group.fingerprint) == 0
    assert sorted(made.values(), reverse=True) == parts
    assert is_consistent()


def test_what_arrives_after_a_split_joins_its_part():
    group = bury(1, queue="emails")
    save("split", group, by="queue")
    all_of_it()
    bury(1, message="order 18 refused", queue="emails")
    bury(1, message="order 19 refused", queue="webhooks")
    assert sorted(where().values()) == [0, 1, 2]
    assert Group.objects.filter(message__endswith="(queue: webhooks)").count() == 1


def test_a_split_that_is_taken_back_brings_all_together_and_every_link_leads_there():
    group = bury(2, queue="emails")
    bury(3, message="order 18 refused", queue="webhooks")
    rule = save("split", group, by="queue")
    all_of_it()
    parts = [name for name, n in where().items() if n]
    group_rules.withdraw(ANN, rule)
    all_of_it()
    assert where() == {group.fingerprint: 5} and is_consistent()
    assert all(group_detail.group(ANN, name).group == group for name in parts)


def test_a_part_is_checked_after_by_the_same_people():
    group = bury(1)
    Group.objects.filter(pk=group.pk).update(note="ask Bob", state="ongoing")
    save("split", group, by="queue")
    all_of_it()
    part = Group.objects.exclude(pk=group.pk).get()
    assert (part.note, part.state) == ("ask Bob", "ongoing")


def test_a_group_that_is_split_gets_its_new_name_and_its_parts_stay_apart():
    group = bury(2, queue="emails")
    bury(3, message="order 18 refused", queue="webhooks")
    name = group.fingerprint
    old(group)
    save("split", group, by="queue")
    GroupRule.objects.update(since=NOW - timedelta(hours=1))
    all_of_it()
    assert sorted(where().values()) == [0, 2, 3] and name in where()


# -- ignoring -----------------------------------------------------------------------------------------------------


def test_only_failures_whose_stack_has_the_words_of_an_ignored_frame_are_checked():
    bury(2), bury(3, task="refund")
    tables = {
        frame: regrouping._concerned(GroupRule(kind="ignore", frame=frame)).count()
        for frame in ("*/tasks.py in refund", "shop/tasks.py in charge", "*/tasks.py in *", "*/other.py in *", "*asks*")
    }
    assert list(tables.values()) == [3, 2, 5, 0, 5]


def test_an_ignored_frame_makes_one_group_of_two_and_their_links_lead_to_it():
    charge, refund = bury(2), bury(1, task="refund")
    save("ignore", frame="*/tasks.py in *")
    all_of_it()
    (one,) = Group.objects.all()
    assert (one.failures.count(), one.culprit) == (3, "shop/retry.py in again") and is_consistent()
    assert all(group_detail.group(ANN, g.fingerprint).group == one for g in (charge, refund))


def test_a_frame_that_is_counted_again_gives_both_groups_back_with_their_notes():
    charge, refund = bury(2), bury(1, task="refund")
    Group.objects.filter(pk=refund.pk).update(note="ask Bob", state="resolved")
    rule = save("ignore", frame="*/tasks.py in *")
    all_of_it()
    rule.refresh_from_db()
    group_rules.withdraw(ANN, rule)
    all_of_it()
    # The one that they had become stays, empty, for its link.
    assert {name: n for name, n in where().items() if n} == {charge.fingerprint: 2, refund.fingerprint: 1}
    assert Group.objects.get(fingerprint=refund.fingerprint).state == "resolved"
    assert is_consistent()


def test_groups_without_the_frame_are_left_alone():
    group = bury(1)
    save("ignore", frame="*/other.py in *")
    all_of_it()
    assert where() == {group.fingerprint: 1}


# -- crashes --------------------------------------------------------------------------------------------------------

BEGIN = """
from datetime import timedelta
from jobs_admin.groups import group_rules, regrouping; from jobs_admin import ingest
from tests.kit.reports import NOW, entries, report
from tests.kit.grouping import TRACE
for task, count in (("charge", 20), ("refund", 400)):
    said = "order 17 refused"
    trace = TRACE.format(task=task, message=said)
    ingest.file(entries(*(report(f"{task}-{n}", message=said, trace=trace, task=task, ago=n) for n in range(count))), NOW)
one, other = Group.objects.order_by("pk").values_list("fingerprint", flat=True)
group_rules.save(ANN, "merge", groups=[one, other])
say([one, other])
"""
GO_ON = """
from jobs_admin.groups import regrouping
regrouping._MOST = 10
regrouping._paces.default_factory = lambda: regrouping._Pace(10)
while regrouping.regroup(timezone.now()): pass
"""
REPORT = """
from django.db.models import Sum
sums = GroupCounter.objects.values_list("group__fingerprint", "step").annotate(n=Sum("failed"))
say({"failures": {g.fingerprint: g.failures.count() for g in Group.objects.all()},
     "count": {g.fingerprint: g.count for g in Group.objects.all()},
     "counted": sorted([name, step, n] for name, step, n in sums if n),
     "alias": dict(GroupAlias.objects.values_list("fingerprint", "group__fingerprint"))})
"""


@pytest.mark.long("Kills a process again and again while it moves failures.")
@pytest.mark.server
@pytest.mark.django_db(transaction=True)
def test_killed_again_and_again_the_next_process_goes_on_and_loses_nothing(tmp_path, engine):
    desk = Desk(tmp_path, engine.url)
    one, other = desk.run(BEGIN)
    for delay_s in (0.1, 0.2, 0.3):
        process = desk.start(GO_ON)
        ends = time.monotonic() + 90
        while (
            process.poll() is None
            and desk.run(REPORT)["failures"][one] < 20 + 1000 * delay_s
            and time.monotonic() < ends
        ):
            pass
        process.kill()
        process.wait()
    assert desk.start(GO_ON).wait(180) == 0
    lines = desk.run(REPORT)
    assert lines["failures"] == lines["count"] == {one: 420} and lines["alias"] == {other: one}
    assert lines["counted"] == [[one, 60, 420], [one, 3600, 420]]


def test_rules_and_stacks_are_requested_in_few_queries(django_assert_max_num_queries):
    bury(50)
    save("ignore", frame="*/tasks.py in *")
    GroupRule.objects.update(since=NOW - timedelta(hours=1))
    with django_assert_max_num_queries(60):
        regrouping.regroup(NOW)
    assert Traceback.objects.count() == 1 and connection.vendor and TRACE


def test_a_slice_takes_as_many_rows_as_were_written_in_its_time():
    pace = regrouping._Pace(100)
    pace.took(0.4, 100)
    assert pace.rows == 20
    pace.took(0.01, 20)
    assert pace.rows == 30  # one quick slice is no reason to leap
    pace.took(0.01, 3)
    assert pace.rows == 30
    pace.took(5, 30)
    assert pace.rows == regrouping._FEWEST


def test_a_slice_that_makes_many_groups_moves_fewer_failures(monkeypatch):
    monkeypatch.setattr(regrouping, "_READ_S", 60)  # a busy machine reads fewer at a time
    for n in range(8):
        bury(3, message=f"order {n} refused", tenant=f"t{n}")
    rule = save("split", Group.objects.get(), by="tenant")
    seen = regrouping._read_slice(rule)
    assert len(seen.goes) == 8 and seen.until == Failure.objects.latest("pk").pk
    regrouping._slice("rule", lambda most: regrouping._go_on(seen, 40))
    assert len(seen.goes) == 6 and not seen.is_done and is_consistent()
    all_of_it()
    assert sorted(where().values()) == [0, *[3] * 8] and is_consistent()


def test_what_was_seen_of_a_rule_that_was_taken_back_meanwhile_moves_nothing():
    bury(2), bury(3, task="refund")
    rule = save("ignore", frame="*/tasks.py in *")
    seen = regrouping._read_slice(rule)
    group_rules.withdraw(ANN, GroupRule.objects.get())
    before = where()
    assert seen.goes and regrouping._go_on(seen, 100) == 0 and where() == before


@pytest.mark.parametrize(("frame", "stacks"), [("*efund*", 1), ("*asks*", 2), ("*nowhere*", 0), ("*e*", None)])
def test_a_pattern_of_parts_of_words_is_searched_for_in_each_stack_once(frame, stacks):
    bury(2), bury(3, task="refund")
    found = regrouping._stacks_with(frame)
    assert (found if found is None else len(found)) == stacks
    bury(1, task="refunds")
    again = regrouping._stacks_with(frame)
    assert (again if again is None else len(again)) == (stacks and stacks + 1)


@pytest.fixture(autouse=True)
def pace(monkeypatch):
    grouping_rules.forget()
    regrouping._found.clear()
    monkeypatch.setattr(regrouping, "_paces", defaultdict(lambda: regrouping._Pace(100)))


def test_a_group_that_is_split_reports_where_its_failures_went():
    bury(2, queue="emails")
    group = bury(3, queue="webhooks")
    rule = save("split", group, by="queue")
    all_of_it()
    by, parts = group_history.parts_of(ANN, group.fingerprint)
    assert by == "queue" and {name for name, n in where().items() if n} == set(parts)
    with pytest.raises(NotFound):
        group_detail.group(ANN, group.fingerprint)
    group_rules.withdraw(ANN, rule)
    all_of_it()
    assert group_history.parts_of(ANN, group.fingerprint) is None
    assert group_detail.group(ANN, group.fingerprint).group == group


def test_what_was_pruned_after_it_was_checked_is_neither_counted_nor_shown_for_the_group():
    group = bury(3)
    rule = save("split", group, by="task")
    seen = regrouping._read_slice(rule)
    group.failures.latest("pk").delete()
    regrouping._slice("rules", lambda most: regrouping._go_on(seen, 500))
    (part,) = Group.objects.exclude(pk=group.pk)
    rule.refresh_from_db()
    assert rule.before["into"] == {group.fingerprint: {part.fingerprint: 2}}
    assert part.failures.filter(pk=part.representative_id).exists() and list_counts() == recount()


def test_a_part_of_which_all_was_pruned_meanwhile_is_not_made():
    group = bury(2)
    seen = regrouping._read_slice(save("split", group, by="task"))
    group.failures.all().delete()
    regrouping._slice("rules", lambda most: regrouping._go_on(seen, 500))
    assert Group.objects.get() == group
