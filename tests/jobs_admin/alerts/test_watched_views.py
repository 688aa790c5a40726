"""A rule that watches a saved view goes on with it, and only who may change the rule changes what it watches."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model

from jobs_admin import alerts
from jobs_admin.alerts import judging
from jobs_admin.alerts.measuring import Measured
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.failures import saved_views
from jobs_admin.models import Alert, AuditEvent, Failure, Notice, Role, Rule
from jobs_admin.models.access import viewer_of
from tests.kit.alerts import NOW, S, judged
from tests.kit.counts import bury
from tests.kit.people import SAM

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("desk")]

WATCHES = {"name": "sams", "metric": "view", "source": "shop", "threshold": 1, "for_s": 0, "keep_firing_s": 0}


def person(name, **roles):
    user = get_user_model().objects.create(username=name)
    for source, role in roles.items():
        Role.objects.create(user=user, source=source, role=role)
    return viewer_of(user)


@pytest.fixture
def lou():
    """Viewer of the shop, operator of the bank: may share views."""
    return person("lou", shop="viewer", bank="operator")


@pytest.fixture
def view(lou):
    bury(9)
    made = saved_views.save(lou, name="dead emails", query="state:dead queue:emails", is_shared=True)
    alerts.save_rule(SAM, WATCHES | {"view": made.pk})
    judged(0)
    return made


def states():
    return dict(Alert.objects.values_list("subject", "state"))


def test_a_view_that_is_renamed_keeps_its_alert_under_its_new_name(view, lou):
    saved_views.change(lou, view, {"name": "mails"})
    judged(5)
    assert states() == {"mails": "firing"}
    Failure.objects.update(state="recovered")
    judged(10, 15)
    assert states() == {"mails": "resolved"}
    assert list(Notice.objects.values_list("type", flat=True)) == ["alert.firing", "alert.resolved"]


def test_its_query_is_not_changed_by_who_may_not_change_the_rule(view, lou):
    with pytest.raises(Refused, match=r"“sams” uses this view.* operator on shop") as refused:
        saved_views.change(lou, view, {"query": "queue:nothing"})
    assert (refused.value.code, refused.value.field) == ("forbidden", "query")
    judged(5)
    view.refresh_from_db()
    assert (view.query, states()) == ("state:dead queue:emails", {"dead emails": "firing"})
    noted = AuditEvent.objects.filter(act="view.change", allowed=False)
    assert set(noted.values_list("actor", "source")) == {("lou", "shop"), ("lou", "")}


def test_a_rule_that_they_do_not_see_is_not_named(view, lou):
    Rule.objects.update(source="hidden")
    with pytest.raises(Refused, match="of a source that you cannot see") as refused:
        saved_views.change(lou, view, {"query": "queue:nothing"})
    assert "sams" not in refused.value.message


def test_nor_does_one_on_a_pattern_let_operators_of_one_source(view, lou):
    Rule.objects.update(source="sh*")
    Role.objects.filter(user_id=lou.user_id).update(role="operator")
    with pytest.raises(Refused, match="operator on every source"):
        saved_views.change(person_again(lou), view, {"query": "queue:nothing"})


def person_again(viewer):
    return viewer_of(get_user_model().objects.get(pk=viewer.user_id))


def test_who_may_change_the_rule_changes_it_and_the_audit_of_its_source_reports_it(view, lou):
    Role.objects.filter(user_id=lou.user_id).update(role="operator")
    saved_views.change(person_again(lou), view, {"query": "state:dead queue:nothing"})
    judged(5, 10)
    assert states() == {"dead emails": "resolved"}
    row = AuditEvent.objects.get(act="rule.change")
    assert (row.source, row.actor, row.object) == ("shop", "lou", f"alert-rule:{Rule.objects.get().pk}")
    assert row.before == {"name": "sams", "view_query": "state:dead queue:emails"}
    assert row.after == {"name": "sams", "view_query": "state:dead queue:nothing"}
    assert Rule.objects.get().changed_by == "lou"


def test_a_rule_that_is_off_and_the_same_query_hold_no_one_back(view, lou):
    saved_views.change(lou, view, {"query": view.query})
    Rule.objects.update(enabled=False)
    saved_views.change(lou, view, {"query": "queue:other"})


def test_a_round_that_read_the_view_before_it_was_renamed_makes_no_alert_of_the_old_name(view, lou):
    Alert.objects.all().delete()
    rule = Rule.objects.select_related("view__owner").get()
    at = NOW + 5 * S
    moment = judging.Moment(at, [], lambda: None)
    measured = Measured(at)
    rounds, _ = judging._plan_rounds(rule, measured.read(rule), {}, measured, moment)
    saved_views.change(lou, view, {"name": "mails"})
    for one in rounds:
        judging._settle(one, moment)
    assert states() == {}


@pytest.mark.parametrize(("is_shared", "seen_by_others"), [(True, 1), (False, 0)])
def test_the_alert_of_a_view_that_is_not_shared_is_its_owners_alone(view, lou, is_shared, seen_by_others):
    type(view).objects.update(is_shared=is_shared)
    colleague = person("eve", shop="operator")
    for who, seen in ((lou, 1), (colleague, seen_by_others)):
        assert len(alerts.listing(who).rows) == len(alerts.firing(who)) == seen
    if not is_shared:
        with pytest.raises(NotFound):
            alerts.get(colleague, Alert.objects.get().pk)
