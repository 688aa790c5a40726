"""A group of several sources shows each viewer the text of their own sources alone: merged ones, split ones, shared ones."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import Q

from jobs_admin import failures, groups
from jobs_admin.alerts import affected_groups
from jobs_admin.core import query as language
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit, grouping_rules
from jobs_admin.failures import completing, nearest, saved_views
from jobs_admin.groups import group_changes, group_detail, group_finder, group_history, group_rules, regrouping
from jobs_admin.models import Alert, AuditEvent, Group, GroupRule, GroupSource, Role, Rule
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, Viewer
from jobs_admin.rights import group_sight, people, view_sight
from tests.kit.reports import NOW, file, report

pytestmark = pytest.mark.django_db

ANN = Viewer("ann", {"*": ADMIN})
SHOP, BANK = Viewer("sue", {"shop": ADMIN}), Viewer("bob", {"bank": ADMIN})
SECRET = "zircon"
LATER = timedelta(hours=1)


@pytest.fixture(autouse=True)
def fresh():
    grouping_rules.forget()
    yield
    grouping_rules.forget()


def bury(source: str, word: str, number: int = 1, *, ago: float = 0.0, **fields) -> Group:
    trace = f'Traceback (most recent call last):\n  File "/srv/{word}/app.py", line 1, in {word}_run\n{word}.Error: x'
    of_it = {"error_type": f"{word}.Error", "message": f"{word} is out", "trace": trace, "tenant": f"{word}-tenant"}
    of_it |= {"queue": f"{word}-queue", "task": f"{word}.send", "release": f"{word}-r1", "ago": ago} | fields
    file(*(report(f"{word}-{ago}-{n}", source=source, **of_it) for n in range(number)))
    return failures.search(ANN, "state:any", limit=1).rows[0].group


def carry_out() -> None:
    GroupRule.objects.update(since=NOW - LATER)
    while regrouping.regroup(NOW):
        pass


def merge(*merged: Group) -> Group:
    """The first takes the others in, and their failures have moved."""
    group_rules.save(ANN, "merge", groups=[group.fingerprint for group in merged])
    carry_out()
    return Group.objects.get(pk=merged[0].pk)


@pytest.fixture
def merged() -> Group:
    """A group of the bank that took one of the shop in: its own text is the bank's."""
    return merge(bury("bank", SECRET, 3, ago=50), bury("shop", "plain", 2, ago=20))


def texts(viewer: Viewer, group: Group) -> list[str]:
    """All that readers show this viewer of groups."""
    detail = group_detail.group(viewer, group.fingerprint)
    rows = groups.groups(viewer, order="last_seen").rows
    found = [rows, detail, group_history.read_history(viewer, group_detail.group_named(viewer, group.fingerprint))]
    found += [
        group_finder.find_groups(viewer, "", limit=9),
        failures.facets(viewer, ""),
        completing.words_of_errors(viewer),
    ]
    found += [list(completing.values(viewer, field, "")) for field in ("group", "error", "task", "queue", "release")]
    titles = [one.group for one in rows] + [one.group for one in group_finder.find_groups(viewer, "", limit=9)]
    return [*map(repr, found), *(f"{one.title} {one.culprit} {one.first_release}" for one in [*titles, detail.group])]


def test_a_merged_group_is_called_by_the_first_of_its_parts_that_the_viewer_sees(merged):
    assert merged.title == f"{SECRET}.Error: {SECRET} is out"
    seen = group_detail.group(SHOP, merged.fingerprint).group
    assert (seen.title, seen.culprit) == ("plain.Error: plain is out", "plain/app.py in plain_run")
    assert not [text for text in texts(SHOP, merged) if SECRET in text]
    assert group_detail.group(BANK, merged.fingerprint).group.title == merged.title
    assert not [text for text in texts(BANK, merged) if "plain" in text]
    assert group_detail.group(ANN, merged.fingerprint).group.title == merged.title


def test_when_it_was_first_and_last_seen_is_of_what_the_viewer_sees(merged):
    row = groups.groups(SHOP).rows[0].group
    assert row.first_seen == row.last_seen == NOW - timedelta(seconds=20)
    assert groups.groups(BANK).rows[0].group.last_seen == NOW - timedelta(seconds=50)
    assert groups.groups(ANN).rows[0].group.last_seen == NOW - timedelta(seconds=20)


def test_groups_are_in_the_order_in_which_the_viewer_saw_them_and_so_are_their_pages():
    merge(bury("bank", SECRET, ago=5), bury("shop", "early", ago=90))
    bury("shop", "middle", ago=40)
    page = groups.groups(SHOP, limit=1)
    assert [row.group.error_type for row in page.rows] == ["middle.Error"]
    rest = groups.groups(SHOP, limit=1, after=page.next)
    assert [row.group.error_type for row in rest.rows] == ["early.Error"]
    assert (NOW - timedelta(seconds=40)).isoformat() in page.next


def test_words_out_of_sight_find_no_group(merged):
    for text in (SECRET, f"error:{SECRET}.Error", f"message:{SECRET}"):
        assert groups.groups(SHOP, text).rows == []
        assert [row.group.pk for row in groups.groups(ANN, text).rows] == [merged.pk]
    assert [row.group.pk for row in groups.groups(SHOP, "plain").rows] == [merged.pk]
    assert [row.group.pk for row in groups.groups(SHOP, f"-message:{SECRET}").rows] == [merged.pk]
    assert group_finder.find_groups(SHOP, SECRET, limit=5) == []
    assert [row.group.pk for row in group_finder.find_groups(SHOP, "plain", limit=5)] == [merged.pk]
    title = f"{SECRET}.Error: {SECRET} is <number> out"
    assert not [
        one for one in nearest.near(SHOP, language.parse(title), title) if SECRET in one.text or "title" in one.why
    ]


def test_a_group_like_it_is_found_by_what_both_show_the_viewer(merged):
    other = bury("shop", "plain", message="plain is down", trace="", ago=1)
    found = group_history.find_similar(SHOP, group_detail.group_named(SHOP, other.fingerprint))
    assert [(one.title, why) for one, why in found] == [("plain.Error: plain is out", "type")]
    hidden = bury("shop", SECRET, message="another", trace="", ago=2)
    assert group_history.find_similar(SHOP, hidden) == []


def test_the_error_in_a_facet_is_that_of_the_source_where_it_is_counted(merged):
    assert failures.facets(SHOP, "")["error"] == [("plain.Error", 2)]
    assert failures.facets(BANK, "")["error"] == [(f"{SECRET}.Error", 3)]
    assert failures.facets(ANN, "")["error"] == [(f"{SECRET}.Error", 5)]


def test_parts_follow_failures_that_a_withdrawn_merge_gives_back(merged):
    group_rules.withdraw(ANN, GroupRule.objects.get())
    carry_out()
    assert [row.group.error_type for row in groups.groups(SHOP).rows] == ["plain.Error"]
    of = GroupSource.objects.values_list("group__error_type", "source", "error_type")
    assert set(of) == {(f"{SECRET}.Error", "bank", f"{SECRET}.Error"), ("plain.Error", "shop", "plain.Error")}


def test_a_part_of_a_split_group_is_called_by_its_own_text(merged):
    group_rules.save(ANN, "split", groups=[merged.fingerprint], by="tenant")
    carry_out()
    rows = groups.groups(SHOP).rows
    assert [row.group.title for row in rows] == ["plain.Error: plain is out (tenant: plain-tenant)"]


def test_a_rule_names_its_group_as_the_viewer_reads_it(merged):
    assert [row.summary for row in group_rules.listing(SHOP)] == ["merge 1 group into plain.Error: plain is out"]
    assert SECRET in group_rules.listing(ANN)[0].summary


def test_a_refused_rule_is_audited_without_a_title(merged):
    with pytest.raises(Refused):
        group_rules.save(SHOP, "split", groups=[merged.fingerprint], by="task")
    refused = AuditEvent.objects.filter(act="rule.save", allowed=False).get()
    assert refused.source == "bank" and "plain" not in refused.object and merged.fingerprint in refused.object


def test_who_has_one_of_two_sources_neither_merges_nor_withdraws(merged):
    with pytest.raises(Refused):
        group_rules.withdraw(SHOP, GroupRule.objects.get())
    assert not group_rules.listing(SHOP)[0].may_withdraw and group_rules.listing(ANN)[0].may_withdraw


# -- what people wrote --------------------------------------------------------------------------------------------


def test_a_note_is_read_by_viewers_of_the_sources_that_the_group_had_when_it_was_written(django_user_model):
    for name, source in (("ann", "*"), ("bob", "bank")):
        user = django_user_model.objects.create_user(name)
        Role.objects.create(user=user, source=source, role=OPERATOR)
    theirs, ours = bury("bank", SECRET), bury("shop", "plain")
    secret = {
        "note": f"{SECRET} note",
        "runbook_url": f"https://{SECRET}.example/",
        "issue_url": f"https://{SECRET}.example/1",
        "assignee": "bob",
        "state": "muted",
    }
    group_changes.change(Viewer("bob", {"bank": OPERATOR}), theirs, secret)
    group = merge(theirs, ours)
    for found in (group_detail.group(SHOP, group.fingerprint).group, groups.groups(SHOP).rows[0].group):
        assert (
            (found.note, found.runbook_url, found.issue_url) == ("", "", "")
            and not found.assignee
            and not found.state_by
        )
        assert found.state == "muted"
    assert group_detail.group(BANK, group.fingerprint).group.note == f"{SECRET} note"
    assert group_detail.group(ANN, group.fingerprint).group.assignee.username == "bob"
    assert groups.groups(SHOP, assignee="bob").rows == [] and len(groups.groups(BANK, assignee="bob").rows) == 1
    group_changes.change(ANN, group, {"note": "for both", "assignee": "ann"})
    for viewer in (SHOP, BANK):
        found = group_detail.group(viewer, group.fingerprint).group
        assert (found.note, found.assignee.username) == ("for both", "ann")
        assert len(groups.groups(viewer, assignee="ann").rows) == 1


def test_the_audit_of_one_source_has_no_note_that_another_wrote_and_undoing_still_gives_it_back():
    theirs, ours = bury("bank", SECRET), bury("shop", "plain")
    group_changes.change(BANK, theirs, {"note": f"{SECRET} note"})
    group = merge(theirs, ours)
    done = group_changes.change(ANN, group, {"note": "for both"})
    group_changes.undo(ANN, done.receipt)
    group.refresh_from_db()
    assert group.note == f"{SECRET} note"
    events = [audit.list_events(viewer).rows for viewer in (SHOP, BANK)]
    assert SECRET not in repr([(row.before, row.after, row.reason) for row in events[0]])
    assert SECRET in repr([(row.before, row.after) for row in events[1]])
    assert SECRET not in repr(group_history.read_history(SHOP, group_detail.group_named(SHOP, group.fingerprint)))
    assert group_detail.group(SHOP, group.fingerprint).group.note == ""
    assert group_detail.group(BANK, group.fingerprint).group.note == f"{SECRET} note"


def test_a_note_of_a_source_whose_jobs_are_gone_is_in_no_source_s_audit_and_can_be_undone():
    theirs, ours = bury("bank", SECRET), bury("shop", "plain")
    group_changes.change(BANK, theirs, {"note": f"{SECRET} note"})
    group = merge(theirs, ours)
    theirs.failures.filter(source="bank").delete()
    done = group_changes.change(ANN, group, {"note": "for both"})
    assert SECRET not in repr([(row.before, row.after) for row in audit.list_events(SHOP).rows])
    group_changes.undo(ANN, done.receipt)
    group.refresh_from_db()
    assert group.note == f"{SECRET} note"


def test_only_people_of_the_viewers_sources_are_offered(django_user_model):
    for name, source in (("root", "*"), ("sue", "shop"), (SECRET, "bank")):
        user = django_user_model.objects.create_user(name)
        Role.objects.create(user=user, source=source, role=VIEWER)
    assert people.names(SHOP) == ["root", "sue"]
    assert people.names(ANN) == ["root", "sue", SECRET]


def test_an_alert_names_its_groups_as_viewers_of_its_source_read_them(merged):
    rule = Rule.objects.create(name="r", metric="dead", source="shop", threshold=1)
    alert = Alert.objects.create(
        rule=rule, source="shop", subject="plain-queue", state="firing", severity="critical", value=2, threshold=1,
        opened_at=NOW, fired_at=NOW,
    )  # fmt: skip
    assert [one.title for one in affected_groups.groups_behind(alert)] == ["plain.Error: plain is out"]


def test_conditions_in_sql_agree_with_what_is_read(merged):
    for viewer in (ANN, SHOP, BANK):
        for group in Group.objects.all():
            shown = group_sight.read(viewer, [group.pk])[group.pk]
            same = group_sight.reads(
                viewer, Q(error_type=shown.error_type, message=shown.message, culprit=shown.culprit)
            )
            assert Group.objects.filter(same, pk=group.pk).exists()
            times = Group.objects.filter(pk=group.pk).values_list(
                group_sight.seen_at(viewer, "first_seen"), group_sight.seen_at(viewer, "last_seen")
            )
            assert times.get() == (shown.first_seen, shown.last_seen)


# -- saved views --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query", [f"source:{SECRET}", f"queue:{SECRET}-queue", f"task:{SECRET}.send", f"tenant:{SECRET}-tenant state:dead",
              f"-queue:{SECRET}-queue", f"(release:{SECRET}-r1 OR state:dead)", f"queue:{SECRET}*", f"tenant:{SECRET}*"],
)  # fmt: skip
def test_a_shared_view_that_names_what_is_out_of_sight_is_not_read(query, django_user_model):
    bury(SECRET, SECRET)
    bury("shop", "plain")
    olga = Viewer("olga", {"*": ADMIN}, user_id=_holding(django_user_model, "olga", "*"))
    view = saved_views.save(olga, name="Theirs", query=query, is_shared=True)
    assert saved_views.listing(SHOP) == [] and view_sight.readable(SHOP) == []
    assert saved_views.listing(ANN) == [view]
    with pytest.raises(view.DoesNotExist):
        saved_views.get(SHOP, view.pk)


def test_a_shared_view_is_read_by_who_sees_what_its_owner_sees_and_what_it_names(django_user_model):
    bury("bank", SECRET)
    bury("shop", "plain")
    olga = Viewer("olga", {"*": ADMIN}, user_id=_holding(django_user_model, "olga", "*"))
    bob = Viewer("bob", {"bank": OPERATOR}, user_id=_holding(django_user_model, "bob", "bank"))
    saved_views.save(olga, name="Ours", query="queue:plain-queue tenant:plain* state:dead", is_shared=True)
    saved_views.save(olga, name=f"Dead in {SECRET}-queue", query="state:dead", is_shared=True)
    saved_views.save(bob, name="Bob's words", query="state:dead", is_shared=True)
    assert [view.name for view in saved_views.listing(SHOP)] == ["Ours"]
    assert [view.name for view in saved_views.listing(BANK)] == ["Bob's words", f"Dead in {SECRET}-queue"]


def _holding(users, name: str, source: str) -> int:
    user = users.objects.create_user(name)
    Role.objects.create(user=user, source=source, role=OPERATOR)
    return user.pk
