from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from jobs_admin.core.refused import Refused
from jobs_admin.db import grouping_rules
from jobs_admin.groups import group_rules, regrouping
from jobs_admin.models import AuditEvent, Failure, Group, GroupAlias, GroupRule
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from tests.kit.grouping import ANN, TRACE, bury
from tests.kit.reports import file, report

pytestmark = [pytest.mark.django_db, pytest.mark.databases, pytest.mark.usefixtures("fresh")]

EVE = Viewer("eve", {"shop": VIEWER})


def refusal(act, *args, **more):
    with pytest.raises(Refused) as refused:
        act(*args, **more)
    assert not GroupRule.objects.exists() and refused.value.message.rstrip().endswith((".", "`"))
    return refused.value.code


# -- merging ----------------------------------------------------------------------------------------------------


def test_a_preview_of_a_merge_reports_how_many_go_where_and_changes_nothing():
    one, other = bury(2), bury(3, task="refund")
    seen = group_rules.preview(ANN, "merge", groups=[one.fingerprint, other.fingerprint])
    (row,) = seen.rows
    assert (row.fingerprint, row.becomes, row.failures) == (other.fingerprint, one.fingerprint, 3)
    assert "3 failures of 1 group join the 2 of" in seen.sentence and not GroupRule.objects.exists()
    assert set(row.sample) <= set(other.failures.values_list("pk", flat=True))


def test_what_arrives_after_a_merge_goes_to_the_group_that_took_the_others_in():
    one, other = bury(1), bury(1, task="refund")
    group_rules.save(ANN, "merge", groups=[one.fingerprint, other.fingerprint], note="one partner")
    file(report("later", message="order 9 refused", trace=TRACE.format(task="refund", message="order 9 refused")))
    assert Failure.objects.get(job_id="later").group == one
    assert GroupAlias.objects.get(fingerprint=other.fingerprint).group == one


def test_a_merge_gives_note_and_assignee_to_a_group_that_has_none():
    one, other = bury(1), bury(1, task="refund")
    Group.objects.filter(pk=other.pk).update(
        note="ask Bob", runbook_url="https://x.example/", issue_url="https://x.example/1"
    )
    group_rules.save(ANN, "merge", groups=[one.fingerprint, other.fingerprint])
    one.refresh_from_db()
    assert (one.note, one.runbook_url, one.issue_url) == ("ask Bob", "https://x.example/", "https://x.example/1")


def test_what_cannot_be_merged_is_refused_with_a_sentence():
    one = bury(1)
    assert refusal(group_rules.save, ANN, "merge", groups=[one.fingerprint]) == "invalid"
    assert refusal(group_rules.save, ANN, "merge", groups=[one.fingerprint, one.fingerprint]) == "invalid"
    assert refusal(group_rules.save, ANN, "merge", groups=[one.fingerprint, "v2-nobody"]) == "invalid"
    assert refusal(group_rules.save, ANN, "merge", groups=[]) == "invalid"
    assert refusal(group_rules.save, ANN, "burn", groups=[one.fingerprint]) == "invalid"


def test_a_merge_in_a_circle_is_refused():
    one, other = bury(1), bury(1, task="refund")
    group_rules.save(ANN, "merge", groups=[one.fingerprint, other.fingerprint])
    with pytest.raises(Refused, match="already merged"):
        group_rules.save(ANN, "merge", groups=[other.fingerprint, one.fingerprint])


# -- splitting --------------------------------------------------------------------------------------------------


def test_a_preview_of_a_split_reports_what_it_makes():
    group = bury(2, queue="emails")
    bury(3, message="order 18 refused", queue="webhooks")
    seen = group_rules.preview(ANN, "split", groups=[group.fingerprint], by="queue")
    assert [(row.failures, row.becomes_title[-16:]) for row in seen.rows] == [
        (3, "queue: webhooks)"),
        (2, " (queue: emails)"),
    ]
    assert (seen.looked_at, seen.of, seen.is_partial) == (5, 5, False)


def test_what_arrives_after_a_split_is_distinguished():
    group = bury(1, queue="emails")
    group_rules.save(ANN, "split", groups=[group.fingerprint], by="queue")
    rules = grouping_rules.current()
    assert rules.splits[group.fingerprint].by == "queue"


def test_a_group_is_split_once():
    group = bury(1)
    group_rules.save(ANN, "split", groups=[group.fingerprint], by="queue")
    with pytest.raises(Refused, match="already split by queue"):
        group_rules.save(ANN, "split", groups=[group.fingerprint], by="tenant")


def test_a_group_is_split_by_nothing_else_than_is_known():
    group = bury(1)
    assert refusal(group_rules.save, ANN, "split", groups=[group.fingerprint], by="colour") == "invalid"


# -- ignoring ---------------------------------------------------------------------------------------------------


def test_a_preview_of_an_ignored_frame_reports_which_groups_become_one():
    charge, refund = bury(2), bury(1, task="refund")
    seen = group_rules.preview(ANN, "ignore", frame="*/tasks.py in *")
    assert {row.fingerprint for row in seen.rows} == {charge.fingerprint, refund.fingerprint}
    assert len({row.becomes for row in seen.rows}) == 1 and seen.sentence.startswith(
        "2 groups with the frame */tasks.py in * become 1"
    )


@pytest.mark.parametrize("frame", ["", "*", " ** ", "* in *", "*.py in *"])
def test_a_pattern_that_matches_everything_is_refused(frame):
    bury(1)
    assert refusal(group_rules.save, ANN, "ignore", frame=frame) == "invalid"


# -- rights -----------------------------------------------------------------------------------------------------


def test_a_rule_takes_an_operator_of_every_source_and_a_refusal_is_written_down():
    one, other = bury(1), bury(1, task="refund")
    assert refusal(group_rules.save, EVE, "merge", groups=[one.fingerprint, other.fingerprint]) == "forbidden"
    assert refusal(group_rules.save, EVE, "ignore", frame="*/retry.py in *") == "forbidden"
    assert [(e.act, e.allowed, e.source) for e in AuditEvent.objects.exclude(act="source.accept")] == [
        ("rule.save", False, "shop")
    ] * 2


def carry_out():
    while regrouping.regroup(timezone.now() + timedelta(minutes=1)):
        pass


@pytest.mark.parametrize("is_old", [False, True])
def test_a_split_that_was_carried_out_belongs_to_the_sources_that_its_group_had(is_old):
    group = bury(2, source="bank")
    rule = group_rules.save(ANN, "split", groups=[group.fingerprint], by="task")
    carry_out()
    if is_old:  # saved before rules kept their sources
        rule.refresh_from_db()
        GroupRule.objects.filter(pk=rule.pk).update(before={"moved": rule.before["moved"]})
    rule.refresh_from_db()
    eve = Viewer("eve", {"shop": OPERATOR})
    assert rule.is_applied and not group.failures.exists() and not group_rules.listing(eve)
    with pytest.raises(Refused, match="role operator"):
        group_rules.withdraw(eve, rule)
    (row,) = group_rules.listing(Viewer("bob", {"bank": OPERATOR}))
    assert row.may_withdraw


def test_a_merge_is_about_the_sources_of_all_its_groups_also_while_they_are_moved():
    one, other = bury(2, source="bank"), bury(2, task="refund", source="shop")
    rule = group_rules.save(ANN, "merge", groups=[one.fingerprint, other.fingerprint])
    with pytest.raises(Refused, match="role operator on every source"):
        group_rules.withdraw(Viewer("bob", {"bank": OPERATOR}), rule)
    GroupRule.objects.update(before={})
    (row,) = group_rules.listing(Viewer("bob", {"bank": OPERATOR}))
    assert not row.may_withdraw


def test_a_rule_of_which_no_source_is_known_takes_the_role_on_all():
    rule = GroupRule.objects.create(kind="ignore", frame="a.py in b", author="x")
    assert not group_rules.listing(Viewer("eve", {"shop": OPERATOR}))
    with pytest.raises(Refused):
        group_rules.withdraw(Viewer("eve", {"shop": OPERATOR}), rule)
    assert group_rules.withdraw(ANN, rule).is_withdrawn


def test_a_read_only_desk_saves_and_withdraws_no_rule(settings):
    one, other = bury(1), bury(1, task="refund")
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert refusal(group_rules.save, ANN, "merge", groups=[one.fingerprint, other.fingerprint]) == "read_only"


def test_rules_are_listed_with_what_they_report_and_how_far_they_are():
    one, other = bury(1), bury(1, task="refund")
    rule = group_rules.save(ANN, "merge", groups=[one.fingerprint, other.fingerprint], note="one partner")
    (row,) = group_rules.listing(ANN)
    assert (row.rule, row.may_withdraw, row.progress) == (rule, True, 0.0)
    assert row.summary.startswith("merge 1 group into shop.Refused: order")
    assert not group_rules.listing(EVE)[0].may_withdraw


# -- two at once ------------------------------------------------------------------------------------------------


def at_once(*merges):
    """The result of each merge, all of them drafted before the first is let through."""
    results = []

    def save(groups):
        try:
            group_rules.save(ANN, "merge", groups=groups)
            results.append("saved")
        except Exception as error:
            results.append(getattr(error, "code", repr(error)))
        connection.close()

    threads = [threading.Thread(target=save, args=(groups,)) for groups in merges]
    with transaction.atomic():
        list(Group.objects.select_for_update(of=("self",)).order_by("pk"))
        [t.start() for t in threads]
        time.sleep(0.5)
    [t.join(90) for t in threads]
    return sorted(results)


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_of_two_merges_that_take_each_other_in_one_is_refused():
    one, other = bury(1).fingerprint, bury(1, task="refund").fingerprint
    assert at_once([one, other], [other, one]) == ["conflict", "saved"]
    assert GroupRule.objects.count() == GroupAlias.objects.count() == 1


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_merge_into_a_group_that_is_just_being_merged_is_refused_or_goes_along():
    one, two, three = (bury(1, task=task).fingerprint for task in ("charge", "refund", "deliver"))
    results = at_once([two, one], [three, two])
    assert results in (["conflict", "saved"], ["saved", "saved"])
    while regrouping.regroup(timezone.now() + timedelta(seconds=10)):
        pass
    assert GroupRule.objects.count() == results.count("saved") == GroupAlias.objects.count()
    assert set(GroupAlias.objects.values_list("group__fingerprint", flat=True)) == {three}


def test_what_is_split_and_its_parts_are_not_merged():
    """The end of the one could not report which failures are the other's: they stayed mixed for good."""
    group, other = bury(1, queue="emails"), bury(1, task="refund")
    rule = group_rules.save(ANN, "split", groups=[group.fingerprint], by="queue")
    while regrouping.regroup(timezone.now() + timedelta(seconds=10)):
        pass
    part = Failure.objects.get(task="charge").group
    for one in (group, part):
        for groups in ([other.fingerprint, one.fingerprint], [one.fingerprint, other.fingerprint]):
            with pytest.raises(Refused):
                group_rules.save(ANN, "merge", groups=groups)
    group_rules.withdraw(ANN, rule)
    assert not GroupRule.objects.filter(kind="merge").exists()


def test_a_merge_is_taken_back_after_the_split_of_the_merged_group():
    group, other = bury(1, queue="emails"), bury(1, task="refund")
    merge = group_rules.save(ANN, "merge", groups=[group.fingerprint, other.fingerprint])
    split = group_rules.save(ANN, "split", groups=[group.fingerprint], by="queue")
    while regrouping.regroup(timezone.now() + timedelta(seconds=10)):
        pass
    assert not group_rules.row(ANN, merge.pk).may_withdraw
    with pytest.raises(Refused, match="Withdraw that rule first"):
        group_rules.withdraw(ANN, merge)
    group_rules.withdraw(ANN, split)
    group_rules.withdraw(ANN, merge)
    while regrouping.regroup(timezone.now() + timedelta(seconds=10)):
        pass
    assert Failure.objects.get(task="charge").group == group
    assert Failure.objects.get(task="refund").group.fingerprint == other.fingerprint


def test_neither_a_part_of_a_split_nor_its_group_is_merged_while_the_split_is_being_withdrawn():
    """The part's failures would look for a group that is none any more, and stay."""
    group, other = bury(3, queue="emails"), bury(1, task="refund")
    Failure.objects.filter(job_id__endswith="-2").update(queue="web")
    rule = group_rules.save(ANN, "split", groups=[group.fingerprint], by="queue")
    while regrouping.regroup(timezone.now() + timedelta(seconds=10)):
        pass
    part = Failure.objects.filter(task="charge").first().group
    group_rules.withdraw(ANN, rule)
    message = "order 9 refused"
    file(
        report(
            "later", message=message, trace=TRACE.format(task="charge", message=message), task="charge", queue="emails"
        )
    )
    assert Failure.objects.get(job_id="later").group == group
    for one in (group, part):
        for names in ([other.fingerprint, one.fingerprint], [one.fingerprint, other.fingerprint]):
            with pytest.raises(Refused) as refused:
                group_rules.save(ANN, "merge", groups=names)
            assert refused.value.message == (
                "A split of one of these groups is being withdrawn. Merge the groups afterwards. Nothing was changed."
            )
    with pytest.raises(Refused, match="The split that created this group is being withdrawn"):
        group_rules.save(ANN, "split", groups=[part.fingerprint], by="task")
    while regrouping.regroup(timezone.now() + timedelta(seconds=10)):
        pass
    group_rules.save(ANN, "merge", groups=[other.fingerprint, group.fingerprint])
    while regrouping.regroup(timezone.now() + timedelta(seconds=10)):
        pass
    assert set(Failure.objects.values_list("group", flat=True)) == {other.pk}
