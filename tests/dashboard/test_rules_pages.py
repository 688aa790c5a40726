"""Rules of alerts in the browser: the list, the editor with its preview, what it refuses, runbooks."""

from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs_admin import alerts
from jobs_admin.desk import overview
from jobs_admin.models import Alert, AuditEvent, Channel, Rule, Runbook, SavedView
from jobs_admin.models.access import ENGINE
from tests.kit.alerts import typed
from tests.kit.pages import text_of
from tests.kit.people import log_in

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _clean(watched):
    """The store answers, and no rule stands but those of the test."""
    Rule.objects.all().delete()


def rule(name: str = "Webhooks die", **changes) -> Rule:
    document = {"name": name, "metric": "dead", "source": "shop", "queue": "webhooks", "threshold": 100} | changes
    return alerts.save_rule(ENGINE, document)


def channel(name: str = "ops-slack") -> Channel:
    return Channel.objects.create(name=name, kind="webhook", url="https://hooks.example/x")


def fired(rule: Rule, subject: str = "webhooks", state: str = "firing", **changes) -> Alert:
    now = timezone.now()
    values = {
        "source": "shop",
        "severity": "warning",
        "value": 120,
        "threshold": 100,
        "opened_at": now,
        "fired_at": now,
    }
    return Alert.objects.create(rule=rule, subject=subject, state=state, **values | changes)


# --- the list ----------------------------------------------------------------------------------------------------


def test_a_rule_shows_in_a_sentence_what_it_watches_when_it_fires_and_who_is_notified(vera):
    channel()
    rule(channels=["ops-slack"], escalate_s=600)
    text = text_of(vera.get("/alerts/rules/"))
    assert "dead jobs of webhooks in shop above 100 for 1 min → then warning , to ops-slack" in text
    assert "escalates after 10 min without acknowledgement" in text


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"queue": "*", "source": "*"}, "dead jobs of any queue above 100 for 1 min"),
        ({"metric": "oldest_dead_s", "threshold": 3600}, "the oldest dead job of webhooks in shop older than 1 h"),
        ({"metric": "failure_rate", "threshold": 0.5}, "share of jobs that died of webhooks in shop above 50 %"),
        ({"metric": "unreachable", "queue": "*", "threshold": 30}, "no connection to shop for longer than 30 s"),
        ({"metric": "ingest_lag_s", "queue": "*", "source": "*", "threshold": 60}, "delayed by more than 1 min"),
        (
            {"metric": "ingest_lag_s", "queue": "*", "threshold": 60},
            "reports from shop delayed by more than 1 min",
        ),
        ({"tenant": "cobalt", "for_s": 0}, "dead jobs of webhooks in shop, of tenant cobalt above 100 →"),
    ],
)
def test_each_metric_has_its_sentence(ann, document, sentence):
    rule(**document)
    assert sentence in text_of(ann.get("/alerts/rules/"))


def test_the_list_shows_how_many_fire_now_and_when_one_fired_last(vera):
    first = rule()
    fired(first), fired(first, "emails", "acknowledged"), fired(first, "later", "pending", fired_at=None)
    rule("Never fired")
    text = text_of(vera.get("/alerts/rules/"))
    assert "2 firing" in text and "never" in text and "not firing" in text


def test_alerts_of_a_source_that_is_out_of_sight_are_not_counted(vera):
    fired(rule(source="*", queue="*"), source="bank")
    assert "1 firing" not in text_of(vera.get("/alerts/rules/"))


def test_a_rule_of_a_source_that_is_out_of_sight_is_not_there(django_user_model):
    pk = rule().pk
    eve = log_in(django_user_model, "eve", bank="admin")
    assert "Webhooks die" not in eve.get("/alerts/rules/").content.decode()
    assert eve.get(f"/alerts/rules/{pk}/").status_code == 404
    assert eve.post("/alerts/rules/preview/", typed(rule=str(pk))).status_code == 404
    for act in ("change", "switch", "delete"):
        assert eve.post(f"/alerts/rules/{pk}/{act}/", typed()).status_code == 404


def test_a_viewer_is_offered_nothing_that_changes(vera):
    pk = rule().pk
    page = vera.get("/alerts/rules/").content.decode()
    assert "Disable" not in page and "Preview a rule" in page
    detail = vera.get(f"/alerts/rules/{pk}/").content.decode()
    assert 'class="primary"' not in detail and "Saving needs the role operator" in " ".join(detail.split())


def test_the_list_queries_the_database_the_same_for_one_rule_and_for_fifty(vera):
    def count_queries() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert vera.get("/alerts/rules/").status_code == 200
        return len(queries)

    channel()
    rule("first", channels=["ops-slack"])
    count_queries()
    one = count_queries()
    for n in range(50):
        rule(f"rule {n}", channels=["ops-slack"])
    count_queries()  # who asks is remembered for a moment only
    assert count_queries() == one


def test_the_list_checks_alerts_once_for_what_is_open_and_once_for_the_last_of_each_rule(vera):
    for n in range(5):
        one = rule(f"Rule {n}")
        for m in range(4):
            ago = timezone.now() - timedelta(hours=m + 1)
            fired(one, state="resolved", opened_at=ago, fired_at=ago)
        fired(one, subject="b"), fired(one, subject="c", state="pending", fired_at=None)
    with CaptureQueriesContext(connection) as queries:
        text = text_of(vera.get("/alerts/rules/"))
    assert text.count("1 firing") == 5
    about = [one["sql"] for one in queries if 'FROM "jobs_admin_alert"' in one["sql"]]
    about = [sql for sql in about if " UNION ALL " not in sql]  # the bell's
    assert len(about) == 2 and all('"state" IN' in sql or "LIMIT 1" in sql for sql in about)


@pytest.mark.sqlite
def test_the_last_alert_of_a_rule_is_read_off_its_index():
    one = rule()
    last = Alert.objects.filter(rule=one.pk, fired_at__isnull=False).order_by("-fired_at").values("fired_at")[:1]
    assert "alert_by_rule" in last.explain() and "TEMP B-TREE" not in last.explain()


def test_a_long_list_has_pages_by_name_and_can_be_narrowed(vera):
    Rule.objects.bulk_create(Rule(name=f"R{n:03}", metric="dead", threshold=n) for n in range(130))
    page = vera.get("/alerts/rules/").content.decode()
    assert "R099" in page and "R100" not in page
    following = html.unescape(re.search(r'rel="next" href="([^"]+)"', page)[1])
    rest = vera.get(f"/alerts/rules/{following}").content.decode()
    assert "R100" in rest and "R129" in rest and ">R099<" not in rest
    assert "R042" in vera.get("/alerts/rules/?q=r042").content.decode()
    assert "No matching rules" in text_of(vera.get("/alerts/rules/?q=nothing"))


def test_one_is_disabled_and_enabled_again_and_its_alerts_are_closed(otto):
    made = rule()
    alert = fired(made)
    otto.post(f"/alerts/rules/{made.pk}/switch/", {"enabled": "0"})
    made.refresh_from_db(), alert.refresh_from_db()
    assert not made.enabled and alert.state == "resolved" and made.threshold == 100
    assert "disabled" in text_of(otto.get("/alerts/rules/"))
    otto.post(f"/alerts/rules/{made.pk}/switch/", {"enabled": "1"})
    made.refresh_from_db()
    assert made.enabled and AuditEvent.objects.filter(act="rule.change", actor="otto").count() == 2


def test_what_becomes_of_open_alerts_is_shown_before_a_rule_is_deleted(otto):
    made = rule()
    fired(made), fired(made, "emails")
    assert "Deleting the rule closes 2 open alerts ." in text_of(otto.get(f"/alerts/rules/{made.pk}/"))
    answer = otto.post(f"/alerts/rules/{made.pk}/delete/", follow=True)
    assert "deleted. Alert history stays." in text_of(answer)
    assert otto.get(f"/alerts/rules/{made.pk}/").status_code == 404
    assert set(Alert.objects.values_list("state", flat=True)) == {"resolved"}


def test_a_rule_over_every_source_is_not_changed_by_the_operator_of_one(otto):
    made = rule(source="*")
    answer = otto.post(f"/alerts/rules/{made.pk}/delete/", follow=True)
    assert "needs the role operator on every source" in text_of(answer)
    made.refresh_from_db()
    assert made.deleted_at is None


# --- the editor --------------------------------------------------------------------------------------------------


def test_a_rule_is_made_as_it_was_typed(otto):
    channel()
    otto.post(
        "/alerts/rules/create/",
        typed(threshold="1,500", for_s="5 min", clear="20", channels=["ops-slack"], renotify_s="1 h"),
    )
    made = Rule.objects.get()
    assert (made.threshold, made.for_s, made.clear, made.renotify_s) == (1500, 300, 20, 3600)
    assert [one.name for one in made.channels.all()] == ["ops-slack"] and made.changed_by == "otto"


def test_the_inputs_hold_what_is_with_units(otto):
    made = rule(metric="oldest_dead_s", threshold=5400, for_s=120)
    page = otto.get(f"/alerts/rules/{made.pk}/").content.decode()
    assert 'name="threshold" value="90 min"' in page and 'name="for_s" value="2 min"' in page
    share = rule("share", metric="failure_rate", threshold=0.25)
    assert 'name="threshold" value="25"' in otto.get(f"/alerts/rules/{share.pk}/").content.decode()


def test_what_another_metric_left_in_its_input_is_no_part_of_the_rule(otto):
    otto.post("/alerts/rules/create/", typed(metric="unreachable", threshold="1 min", queue="webhooks", tenant="x"))
    made = Rule.objects.get()
    assert (made.queue, made.tenant, made.threshold) == ("*", "*", 60)


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("threshold", "lots", "This must be a number from 0 to 1,000,000,000,000"),
        ("threshold", "-5", "must be a number from 0"),
        ("threshold", "1e300", "from 0 to 1,000,000,000,000"),
        ("for_s", "3 d", "from 0 to 86,400 seconds, a day"),
        ("clear", "200", "above the threshold of 100"),
        ("runbook_url", "javascript:alert(1)", "http or https"),
        ("name", "", "name of 1 to 100 characters"),
        ("channels", "nobody", "No channel"),
    ],
)
def test_what_is_refused_is_beside_its_field_and_nothing_is_lost(otto, field, text, message):
    answer = otto.post("/alerts/rules/create/", typed(queue="emails") | {field: text})
    page = answer.content.decode()
    assert answer.status_code == 422 and not Rule.objects.exists()
    slot = re.search(rf'id="refused-p-{field.replace("_", "-")}"[^>]*>(.*?)</div>', page, re.S)[1]
    assert message in html.unescape(slot)
    assert 'value="emails"' in page
    if field not in ("name", "channels"):
        assert f'value="{text}"' in page


def test_several_things_are_refused_at_once(otto):
    page = otto.post("/alerts/rules/create/", typed(for_s="9 d", severity="loud", threshold="x")).content.decode()
    for name in ("for-s", "severity", "threshold"):
        assert re.search(rf'id="refused-p-{name}"[^>]*><p class="refusal"', page), name


def test_a_name_that_is_taken_is_refused_beside_it(otto):
    rule()
    answer = otto.post("/alerts/rules/create/", typed())
    assert answer.status_code == 422 and "already" in text_of(answer) and Rule.objects.count() == 1


def test_anothers_change_is_not_overwritten_unseen(otto, ann):
    made = rule()
    begun = re.search(r'name="begun" value="([^"]+)"', otto.get(f"/alerts/rules/{made.pk}/").content.decode())[1]
    ann.post(f"/alerts/rules/{made.pk}/change/", typed(threshold="500", begun=begun))
    stale = otto.post(f"/alerts/rules/{made.pk}/change/", typed(threshold="50", begun=begun))
    assert stale.status_code == 409 and "ann changed this rule" in text_of(stale)
    assert "Fires above 500 50" in text_of(stale)
    made.refresh_from_db()
    assert made.threshold == 500
    again = re.search(r'name="begun" value="([^"]+)"', stale.content.decode())[1]
    otto.post(f"/alerts/rules/{made.pk}/change/", typed(threshold="50", begun=again))
    made.refresh_from_db()
    assert made.threshold == 50


def test_a_rule_on_a_view_names_one_that_the_person_sees(otto, django_user_model):
    owner = django_user_model.objects.create_user("olga")
    view = SavedView.objects.create(name="Mine alone", query="state:dead", owner=owner)
    answer = otto.post("/alerts/rules/create/", typed(metric="view", view=str(view.pk)))
    assert answer.status_code == 422 and "cannot view it" in text_of(answer)
    assert "Mine alone" not in otto.get("/alerts/rules/new/?metric=view").content.decode()


def test_a_new_one_begins_as_a_link_states_or_as_a_copy(otto):
    page = otto.get("/alerts/rules/new/?queue=emails&source=shop&threshold=7").content.decode()
    assert 'name="queue" value="emails"' in page and 'name="threshold" value="7"' in page
    copied = otto.get(f"/alerts/rules/new/?from={rule().pk}").content.decode()
    assert 'value="Webhooks die (copy)"' in copied and 'name="queue" value="webhooks"' in copied


# --- channels of a new rule, and what is unsaved -----------------------------------------------------------------


def _ticked(page: str) -> list[str]:
    return re.findall(r'name="channels" value="([^"]+)"\s+checked', page)


def test_a_new_rule_preselects_the_channels_that_enabled_rules_use(otto):
    for name in ("ops-slack", "pager", "idle"):
        channel(name)
    rule("One", channels=["pager"]), rule("Two", channels=["ops-slack"]), rule("Off", channels=["idle"], enabled=False)
    disabled("gone"), rule("Three", channels=["gone"])
    assert _ticked(otto.get("/alerts/rules/new/").content.decode()) == ["ops-slack", "pager"]
    copied = Rule.objects.get(name="One").pk
    assert _ticked(otto.get(f"/alerts/rules/new/?from={copied}").content.decode()) == ["pager"]


def test_a_new_rule_preselects_the_only_enabled_channel_and_none_of_two(otto):
    channel(), disabled("gone")
    assert _ticked(otto.get("/alerts/rules/new/").content.decode()) == ["ops-slack"]
    channel("pager")
    assert _ticked(otto.get("/alerts/rules/new/").content.decode()) == []


def test_saving_without_a_channel_is_confirmed_once(otto):
    channel()
    form = typed(threshold="77")
    del form["without_channel"]
    answer = otto.post("/alerts/rules/create/", form)
    page = answer.content.decode()
    assert answer.status_code == 422 and not Rule.objects.exists()
    assert "No channel: no one is notified. Save anyway?" in text_of(answer)
    assert 'name="threshold" value="77"' in page
    confirmed = re.search(r'<input type="hidden" form="rule" name="(\w+)" value="(\w+)">', page)
    otto.post("/alerts/rules/create/", form | {confirmed[1]: confirmed[2]})
    made = Rule.objects.get()
    assert made.threshold == 77
    # It has none already: a later change does not ask again.
    otto.post(f"/alerts/rules/{made.pk}/change/", form | {"threshold": "78"})
    made.refresh_from_db()
    assert made.threshold == 78


def test_a_confirmation_holds_while_another_field_is_refused_and_escalation_notifies_someone(otto):
    channel(), rule(name="taken")
    refused = otto.post("/alerts/rules/create/", typed(name="taken"))
    page = refused.content.decode()
    assert refused.status_code == 422 and 'name="without_channel"' in page and "Save anyway?" not in page
    form = typed(name="later", escalate_to="ops-slack", escalate_s="1h")
    del form["without_channel"]
    otto.post("/alerts/rules/create/", form)
    assert Rule.objects.filter(name="later").exists()


def test_removing_the_last_channel_is_confirmed_and_what_is_refused_comes_first(otto):
    channel()
    made = rule(channels=["ops-slack"])
    form = typed()
    del form["without_channel"]
    answer = otto.post(f"/alerts/rules/{made.pk}/change/", form)
    assert answer.status_code == 422 and "Save anyway?" in text_of(answer) and made.channels.exists()
    refused = otto.post(f"/alerts/rules/{made.pk}/change/", form | {"threshold": "x"})
    assert refused.status_code == 422 and "Save anyway?" not in text_of(refused)
    assert "This must be a number" in text_of(refused)


def test_an_edit_shows_how_much_is_unsaved_and_the_way_back(otto):
    made = rule()
    assert "unsaved" not in text_of(otto.get(f"/alerts/rules/{made.pk}/"))
    form = typed(rule=str(made.pk), threshold="5", severity="critical", task="*", group="*", tenant="*")
    part = otto.post("/alerts/rules/preview/", form, headers={"HX-Request": "true"}).content.decode()
    bar = re.search(r'<p id="unsaved".*?</p>', part, re.S)[0]
    assert 'hx-swap-oob="morph"' in bar and f'href="/alerts/rules/{made.pk}/"' in bar
    assert "2 unsaved changes" in " ".join(re.sub("<.*?>", " ", bar).split()) and "Discard changes" in bar


# --- runbooks ----------------------------------------------------------------------------------------------------


def test_a_runbook_is_added_changed_and_deleted_by_an_operator_of_every_source(ann):
    ann.post("/alerts/runbooks/save/", {"task": "shop.hooks.*", "url": "https://wiki.example/hooks"})
    ann.post("/alerts/runbooks/save/", {"task": "shop.hooks.*", "url": "https://wiki.example/better"})
    assert Runbook.objects.get().url == "https://wiki.example/better"
    assert "https://wiki.example/better" in ann.get("/alerts/runbooks/").content.decode()
    gone = ann.post(f"/alerts/runbooks/{Runbook.objects.get().pk}/delete/", follow=True)
    assert not Runbook.objects.exists() and "Undo" in gone.content.decode()


def test_a_runbook_that_is_no_web_address_is_refused_beside_its_field(ann):
    answer = ann.post("/alerts/runbooks/save/", {"task": "a.*", "url": "javascript:alert(1)"})
    assert answer.status_code == 422 and not Runbook.objects.exists()
    assert re.search(r'id="refused-r-url"[^>]*><p class="refusal"', answer.content.decode())
    assert 'value="a.*"' in answer.content.decode()


def test_the_operator_of_one_source_reads_runbooks_and_changes_none(otto):
    assert "New runbook" not in otto.get("/alerts/runbooks/").content.decode()
    answer = otto.post("/alerts/runbooks/save/", {"task": "a", "url": "https://wiki.example/"})
    assert answer.status_code == 403 and not Runbook.objects.exists()


def test_the_audit_leads_to_the_rule_and_takes_it_for_no_rule_of_grouping(ann):
    ann.post("/alerts/rules/create/", typed())
    page = ann.get("/audit/").content.decode()
    assert f'href="/alerts/rules/{Rule.objects.get().pk}/"' in page and 'href="/groups/rules/"' not in page


# --- no recipients -----------------------------------------------------------------------------------------------


def disabled(name: str = "ops-slack") -> Channel:
    found = channel(name)
    found.disabled_at, found.why_disabled = timezone.now(), "The endpoint answered 410 (gone)."
    found.save()
    return found


@pytest.mark.parametrize("address", ["/", "/alerts/"])
def test_a_channel_that_notifies_no_one_is_shown_where_people_check(ann, vera, address):
    assert "No notifications are sent" not in text_of(ann.get(address))
    disabled()
    overview.forget()
    text = text_of(ann.get(address))
    assert (
        "ops-slack has been disabled since" in text
        and ": the endpoint answered 410 (gone). No notifications are sent to this channel." in text
    )
    text = text_of(vera.get(address))
    assert (
        "ops-slack has been disabled since" in text
        and "Admins of every source can see the reason." in text
        and "410" not in text
    )
    for n in range(4):
        disabled(f"c{n}")
    overview.forget()
    text = text_of(ann.get(address))
    assert text.count("No notifications are sent to this channel") == 3 and "2 more channels are also disabled." in text


def test_a_rule_of_which_no_one_would_be_notified_shows_it(vera):
    gone, works = disabled(), channel("pager")
    lonely = rule("Names none")
    rule("Told by one that is gone", channels=["ops-slack"])
    rule("Escalates", channels=["ops-slack"], escalate_to=["pager"], escalate_s=300)
    rule("Told", channels=["ops-slack", "pager"])
    text = text_of(vera.get("/alerts/rules/"))
    assert text.count("no notifications: ") + text.count("no notifications before escalation: ") == 3
    assert "no notifications: no channel selected" in text
    assert "no notifications: all channels are disabled" in text
    assert "no notifications before escalation: all channels are disabled" in text
    page = f"/alerts/rules/{lonely.pk}/"
    assert "No notifications: no channel selected." in text_of(vera.get(page))
    lonely.channels.set([gone, works])
    assert "No notifications:" not in text_of(vera.get(page))
