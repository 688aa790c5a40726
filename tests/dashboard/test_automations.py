"""Automations in the API, on pages, from the terminal, in Django's admin and as a metric."""

from __future__ import annotations

import io
import json
import re

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from jobs_admin import automations
from jobs_admin.models import AuditEvent, Automation, AutomationDecision, Failure, Replay, Role
from tests.kit.automations import AT_ONCE, document, fail, live, minutes_ago, person
from tests.kit.metrics import scrape
from tests.kit.pages import text_of
from tests.kit.people import log_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("store", "shop")]
FORM = {
    "name": "back", "source": "shop", "q": "queue:emails", "min_jobs": "1", "quiet_s": "10 min", "cooldown_s": "30 min",
    "cap_per_hour": "500", "kind": "replay", "style": "careful",
}  # fmt: skip


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_the_api_creates_previews_enables_and_stops(call_api):
    fail(minutes_ago(90), 3)
    made = call_api("POST", "automations", {"name": "back", **document(act="replay")}, role="operator")
    assert made.status_code == 201 and made.json()["state"] == "dry_run"
    assert made.json()["act"] == {"kind": "replay", "pace": {"style": "careful"}}
    dry = call_api("POST", "automations/back/dry-run", {}, role="viewer").json()
    assert (dry["count"], dry["jobs"], dry["ready"], dry["why_not"]) == (1, 3, 3, "")
    assert not Replay.objects.exists()
    enabled = call_api("POST", "automations/back/enable", {"expected_version": 1}, role="operator").json()
    assert (enabled["state"], enabled["owner"]) == ("live", "token operator of *")
    automations.step(timezone.now())
    (done,) = call_api("GET", "automations/back/diary").json()["items"]
    assert (done["state"], done["jobs"], done["replay"]) == ("done", 3, Replay.objects.get().pk)
    assert call_api("POST", "automations/stop-all", {}, role="operator").json() == {"stopped": ["back"]}
    assert call_api("GET", "automations").json()["items"][0]["state"] == "dry_run"
    assert call_api("DELETE", "automations/back", role="operator").status_code == 204


def test_the_api_changes_with_the_version_that_was_read(call_api):
    call_api("POST", "automations", {"name": "back", **document()}, role="operator")
    read = call_api("GET", "automations/back").json()
    sent = read | {"min_jobs": 9, "expected_version": read["version"]}
    assert call_api("PUT", "automations/back", sent, role="operator").json()["min_jobs"] == 9
    again = call_api("PUT", "automations/back", sent, role="operator")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "stale")
    assert call_api("PUT", "automations/back", document(), role="operator").status_code == 422


def test_the_api_previews_what_is_not_stored(call_api):
    fail(minutes_ago(90), 2)
    found = call_api("POST", "automations/dry-run", document(), role="viewer").json()
    assert found["jobs"] == 2 and not Automation.objects.exists()
    refused = call_api("POST", "automations/dry-run", document(quiet_s=-1))
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "quiet_s")


def test_the_commands_list_show_and_stop():
    assert run("automations", "list") == "No automations.\n"
    fail(minutes_ago(90), 2)
    live(person("ann", shop="operator"))
    automations.step(timezone.now())
    assert "live" in run("automations", "list") and "of 2 jobs started" in run("automations", "show", "back")
    assert json.loads(run("automations", "list", "--json"))["count"] == 1
    assert json.loads(run("automations", "show", "back", "--json"))["name"] == "back"
    assert "the automation would have acted" in run("automations", "dry-run", "back")
    assert run("automations", "stop-all").startswith("1 automation stopped: back.")
    with pytest.raises(CommandError, match="so it cannot be disabled"):
        run("automations", "disable", "back")
    with pytest.raises(CommandError, match="No such automation"):
        run("automations", "show", "other")


def test_a_person_creates_previews_enables_and_stops_on_pages(otto):
    fail(minutes_ago(90), 3)
    assert "once none of them has failed for 10 min" in text_of(otto.get("/automations/"))
    shown = otto.post("/automations/preview/", FORM, headers={"HX-Request": "true"})
    assert "the automation would have acted 1 time, on 3 jobs" in text_of(shown)
    assert not Automation.objects.exists()
    otto.post("/automations/save/", FORM)
    page = text_of(otto.get("/automations/back/"))
    assert "dry run" in page and "3 jobs match now. The automation would act now." in page
    assert "When there is a dead job of shop that matches queue:emails" in page
    otto.post("/automations/back/enable/", {"version": "1"})
    automations.step(timezone.now())
    page = otto.get("/automations/back/")
    assert f'href="/replays/{Replay.objects.get().pk}/"' in page.content.decode() and "live" in text_of(page)
    assert "back" in text_of(otto.get("/automations/"))
    otto.post("/automations/stop-all/", {"reason": "night"})
    assert Automation.objects.get().mode == "dry_run"


def test_the_replay_names_its_automation(otto):
    fail(minutes_ago(90), 3)
    live(person("ann", shop="operator"))
    automations.step(timezone.now())
    page = otto.get(f"/replays/{Replay.objects.get().pk}/").content.decode()
    assert 'href="/automations/back/"' in page


def test_a_form_goes_round_and_keeps_what_it_does_not_show(otto):
    pace = {"style": "careful", "canary": {"jobs": 7}}
    automations.create(person("ann", shop="operator"), "back", document(act={"kind": "replay", "pace": pace}))
    page = otto.get("/automations/back/edit/")
    assert "Edit back" in text_of(page)
    otto.post("/automations/save/", FORM | {"automation": "back", "version": "1", "min_jobs": "4"})
    one = Automation.objects.get()
    assert (one.min_jobs, one.parameters["pace"], one.version, one.quiet_s) == (4, pace, 2, 600)
    stale = otto.post("/automations/save/", FORM | {"automation": "back", "version": "1"})
    assert stale.status_code == 409 and "it is at version 2" in text_of(stale)


def test_a_refusal_is_shown_beside_its_field(otto):
    answer = otto.post("/automations/save/", FORM | {"q": "state:retrying", "note": "kept as typed"})
    assert answer.status_code == 422 and "acts on dead jobs" in beside(answer, "a-q")
    assert 'value="kept as typed"' in answer.content.decode() and not Automation.objects.exists()
    typed = otto.post("/automations/preview/", FORM | {"quiet_s": "long"}, headers={"HX-Request": "true"})
    assert "Enter a time from 0 s to 7 d, such as 10 min." in beside(typed, "a-quiet_s")
    assert beside(typed, "a-q") == "" and "Fix the highlighted fields" in text_of(typed)


def beside(answer, place: str) -> str:
    """Return what is refused beside the input."""
    (found,) = re.findall(rf'id="refused-{place}"[^>]*>(.*?)</div>', answer.content.decode(), re.DOTALL)
    return re.sub(r"<[^>]+>", "", found).strip()


@pytest.mark.parametrize(
    "changes", [{"kind": "notify"}, {"kind": "pause", "queue": ""}, {"kind": "x"}, {"name": "../"}]
)
def test_what_cannot_be_is_not_saved(otto, changes):
    assert otto.post("/automations/save/", FORM | changes).status_code == 422
    assert not Automation.objects.exists()


def test_hostile_text_is_shown_and_never_run(otto):
    text = "<script>alert(1)</script>\u202e"
    automations.create(person("ann", shop="operator"), "back", document(note=text, q=f'"{text}"'))
    for path in ("/automations/", "/automations/back/", "/automations/back/edit/", "/automations/new/?q=<script>x"):
        page = otto.get(path).content.decode()
        assert "<script>alert" not in page and "<script>x" not in page


def test_a_viewer_is_offered_no_act(vera, otto):
    fail(minutes_ago(90))
    live(person("ann", shop="operator"))
    page = vera.get("/automations/back/").content.decode()
    assert "/disable/" not in page and "stop-all" not in vera.get("/automations/").content.decode()
    assert vera.post("/automations/back/disable/").status_code == 403
    assert vera.get("/automations/other/").status_code == 404
    assert Automation.objects.get().mode == "live"


def test_a_discarding_one_is_approved_by_another_person(otto, django_user_model):
    fail(minutes_ago(90), 2)
    otto.post("/automations/save/", FORM | {"kind": "discard"})
    otto.post("/automations/back/enable/", {})
    assert "another operator must approve" in text_of(otto.get("/automations/back/"))
    otto.post("/automations/back/approve/", {"version": "1"})
    assert Automation.objects.get().mode == "awaiting_approval"
    olga = log_in(django_user_model, "olga", shop="operator")
    assert 'name="version" value="1"' in olga.get("/automations/back/").content.decode()
    for version in ("", "2"):
        olga.post("/automations/back/approve/", {"version": version})
        assert Automation.objects.get().mode == "awaiting_approval"
    olga.post("/automations/back/approve/", {"version": "1"})
    automations.step(timezone.now())
    assert Failure.objects.filter(state="discarded").count() == 2


def test_a_tripped_one_shows_the_reason_and_is_reset(otto):
    fail(minutes_ago(90))
    live(person("ann", shop="operator"))
    Role.objects.filter(user__username="ann").delete()
    automations.step(timezone.now())
    assert "ann is no longer operator of shop" in text_of(otto.get("/automations/back/"))
    otto.post("/automations/back/disable/")
    otto.post("/automations/back/enable/", {"version": "1"})
    assert (Automation.objects.get().mode, Automation.objects.get().owner_name) == ("live", "otto")


def test_django_admin_lists_and_disables(as_):
    live(person("ann", shop="operator"))
    client = as_("operator")
    assert b"back" in client.get("/admin/jobs_admin/automation/").content
    chosen = {"action": "disable", "_selected_action": [Automation.objects.get().pk]}
    client.post("/admin/jobs_admin/automation/", chosen)
    assert Automation.objects.get().mode == "dry_run"
    assert AuditEvent.objects.filter(act="automation.disable", actor="staff-operator-shop").exists()


def test_the_metric_counts_them_by_state(client):
    live(person("ann", shop="operator"), act=AT_ONCE)
    text = scrape(client).text
    assert 'redrive_automations{state="live"} 1.0' in text and 'redrive_automations{state="tripped"} 0.0' in text


def test_the_diary_is_paged(call_api):
    one = live(person("ann", shop="operator"))
    AutomationDecision.objects.bulk_create(
        AutomationDecision(automation=one, n=n, at=timezone.now(), version=1, state="waited", text=f"t{n}")
        for n in range(1, 6)
    )
    page = call_api("GET", "automations/back/diary", limit="3").json()
    assert [row["n"] for row in page["items"]] == [5, 4, 3]
    rest = call_api("GET", "automations/back/diary", limit="3", after=page["next"]).json()
    assert [row["n"] for row in rest["items"]] == [2, 1] and rest["next"] is None
