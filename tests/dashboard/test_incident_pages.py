"""The page of an incident, its files and the call of the API: for whom, with what, and safe to paste."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from dashboard.incidents.document import plain
from jobs_admin import ingest
from jobs_admin.db import audit
from jobs_admin.desk import overview
from jobs_admin.management.commands.token import create
from jobs_admin.models import Alert, AlertEvent, DepthSample, Group, Rule, Source
from jobs_admin.models.access import ENGINE
from tests.kit.reports import entries, report

pytestmark = [pytest.mark.django_db, pytest.mark.server]

HOSTILE = "<img src=x onerror=alert(1)> | [x](javascript:x) @everyone #12 `a` **b**\n# h\u202e"


@pytest.fixture
def outage(watched):
    """Twenty e-mails of the shop died an hour ago; an alert fired, and an operator acted."""
    began = (timezone.now() - timedelta(hours=1)).replace(second=0, microsecond=0)
    dead = [
        report(f"j{n}", at=(began + timedelta(seconds=5 * n)).timestamp(), error_type="shop.Refused", message=HOSTILE, tenant=HOSTILE)
        for n in range(20)
    ]  # fmt: skip
    Source.objects.get_or_create(name="shop")  # accepted before: ids of the audit rise with its times
    ingest.file(entries(*dead), began + timedelta(minutes=2))
    rule = Rule.objects.create(name=f"many {HOSTILE}"[:100], metric="dead", threshold=5)
    alert = Alert.objects.create(
        rule=rule, source="shop", subject="emails", state="resolved", severity="warning", value=1, threshold=5,
        opened_at=began + timedelta(minutes=1), fired_at=began + timedelta(minutes=2),
        resolved_at=began + timedelta(minutes=20), transitions=2,
    )  # fmt: skip
    for n, (to, minutes) in enumerate((("firing", 2), ("resolved", 20)), start=1):
        at = began + timedelta(minutes=minutes)
        AlertEvent.objects.create(alert=alert, n=n, at=at, to=to, value=20, reason=HOSTILE)
    for minutes, n in ((-1, 0), (2, 20), (25, 0)):
        at = began + timedelta(minutes=minutes)
        DepthSample.objects.create(source="shop", queue="emails", at=at, step=10, dead=n)
    with transaction.atomic():
        row = audit.record(ENGINE, "failure.discard", "failure:1", source="shop", reason=HOSTILE)
    type(row).objects.filter(pk=row.pk).update(at=began + timedelta(minutes=10))
    return began


def test_without_a_request_it_shows_the_last_incident(ann, outage):
    page = ann.get("/incidents/").text
    assert "Incident: emails of shop" in page and "20 failed attempts; 20 job deaths" in page
    for words in ("Attempts started to fail", "fired at 20, threshold 5", "Failures back to", "Dead jobs back to"):
        assert words in page
    assert re.search(r'<path class="failed" d="M[\d.]+ 1000v-', page) and '<path class="line" d="M' in page
    assert page.count('class="upright') >= 10, "the marks stand in both pictures"


def facts(page: str) -> dict[str, str]:
    """Name -> value and what stands below it."""
    found = re.findall(r"<div> ?<dt>(.+?)</dt> ?<dd>(.+?)</dd> ?</div>", page)
    return {name: re.sub(r"<[^>]+>", " | ", value).strip(" |") for name, value in found}


def test_what_did_not_happen_is_shown_in_words(ann, outage):
    """An alert before the failures, no acknowledgement, no replay; and why the time of recovery is unknown."""
    reported = facts(ann.get("/incidents/").text)
    assert reported["Time to alert"].startswith("2 min") and reported["Time to acknowledge"] == "not acknowledged"
    assert reported["Time to replay"] == "no replay" and reported["Recovered"].startswith("25 min")
    assert reported["Failed attempts"] == "20 | in steps of 1 min"
    AlertEvent.objects.filter(to="firing").update(at=outage - timedelta(minutes=3))
    DepthSample.objects.filter(dead=0, at__gt=outage).update(dead=1)
    reported = facts(ann.get("/incidents/", {"source": "shop", "queue": "emails", **around(outage)}).text)
    assert (
        reported["Time to alert"].startswith("before it")
        and reported["Recovered"] == "not in this period | 0 dead before"
    )
    DepthSample.objects.update(dead=20)
    reported = facts(ann.get("/incidents/", {"source": "shop", "queue": "emails", **around(outage)}).text)
    assert reported["Recovered"] == "no increase | over the 20 before"
    DepthSample.objects.all().delete()
    AlertEvent.objects.all().delete()
    reported = facts(ann.get("/incidents/", {"source": "shop", "queue": "emails", **around(outage)}).text)
    assert (reported["Time to alert"], reported["Recovered"]) == (
        "no alert",
        "unknown | no depth samples",
    )
    reported = facts(ann.get("/incidents/", {"source": "shop", **around(outage)}).text)
    assert reported["Recovered"] == "unknown | select one queue"
    quiet = {
        "since": (outage - timedelta(minutes=20)).isoformat(),
        "until": (outage - timedelta(minutes=5)).isoformat(),
    }
    reported = facts(ann.get("/incidents/", {"source": "shop", "queue": "emails", **quiet}).text)
    assert reported["Failing for"] == "– | at a normal rate"


def around(outage) -> dict[str, str]:
    return {"since": (outage - timedelta(minutes=5)).isoformat(), "until": (outage + timedelta(minutes=30)).isoformat()}


def test_text_of_jobs_and_people_stays_text_on_the_page(ann, outage):
    page = ann.get("/incidents/").text
    assert "<img src=x" not in page and "&lt;img src=x" in page and "\u202e" not in page


def test_the_audit_is_shown_to_admins_of_the_source_alone(ann, otto, vera, outage):
    assert "failure.discard" in ann.get("/incidents/").text
    for who in (otto, vera):
        page = who.get("/incidents/").text
        assert "Incident: emails of shop" in page and "failure.discard" not in page
        assert "The audit is visible to auditors and admins of shop" in page


def test_no_one_else_is_shown_that_there_was_one(client, without_role, outage):
    assert client.get("/incidents/").url.startswith("/login/")
    assert without_role.get("/incidents/").status_code == 403


def test_a_source_out_of_sight_or_of_no_name_is_not_there(vera, ann, outage):
    ingest.file(entries(report("b1", source="bank")), timezone.now())
    for path in ("/incidents/", "/incidents/as/json/", "/incidents/as/markdown/"):
        assert vera.get(path, {"source": "bank"}).status_code == 404
        assert ann.get(path, {"source": "nowhere"}).status_code == 404
        assert ann.get(path, {"source": "shop", "queue": "n\0ne"}).status_code == 404


def test_a_time_that_is_none_is_refused_in_words(ann, outage):
    for requested, words in (
        ({"source": "shop", "since": "yesterday"}, "since is not a time"),
        ({"source": "shop", "since": "2026-01-02", "until": "2026-01-01"}, "start must be before the end"),
        ({"queue": "emails"}, "A queue requires a source"),
    ):
        answer = ann.get("/incidents/", requested)
        assert answer.status_code == 400 and words in answer.text
        assert ann.get("/incidents/as/json/", requested).status_code == 400


def test_an_empty_desk_shows_it(ann, watched):
    assert "No incidents yet." in ann.get("/incidents/").text
    assert ann.get("/incidents/as/markdown/").status_code == 404


def test_a_time_that_is_requested_is_shown_as_requested(ann, outage):
    requested = {"source": "shop", "queue": "emails", "since": outage.isoformat(), "until": (outage + timedelta(minutes=5)).isoformat()}  # fmt: skip
    page = ann.get("/incidents/", requested).text
    assert (
        f'value="{outage:%Y-%m-%dT%H:%M}"' in page
        and "resolved" not in page.split("incident-story")[1].split("</ol>")[0]
    )


def test_every_number_of_jobs_leads_to_these_jobs(ann, outage):
    page = ann.get("/incidents/").text
    link = re.search(r'<li class="is-dead"><a href="([^"]+)"', page)[1].replace("&amp;", "&")
    assert "state%3Adead" in link
    found = ann.get(link).text
    assert "20" in found and "No failure" not in found


def test_the_json_holds_what_the_page_shows(ann, outage):
    answer = ann.get("/incidents/as/json/")
    data = json.loads(answer.content)
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="incident-')
    assert (data["source"], data["queue"], data["counts"]["attempts_failed"]) == ("shop", "emails", 20)
    assert data["counts"]["jobs"]["dead"] == 20 and data["tenants"][0]["jobs"] == 20
    assert {"failing", "alert", "calm", "back", "group"} <= {one["kind"] for one in data["timeline"]}
    assert data["failing_since"] == outage.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert sum(row[1] for row in data["series"]) == 20 and data["acts"][0]["act"] == "failure.discard"
    # Its own address gives the same.
    assert (
        json.loads(ann.get("/incidents/as/json/?" + data["url"].split("?")[1]).content)["timeline"] == data["timeline"]
    )


def test_the_call_gives_what_the_file_holds(ann, client, outage):
    token = create("post-mortem", "viewer", "shop")

    def call(**options):
        return client.get("/api/incident", options, headers={"Authorization": f"Bearer {token}"})

    answer = call().json()
    assert answer["acts"] is None, "a viewer does not read the audit"
    complete = json.loads(ann.get("/incidents/as/json/").content)
    assert {**complete, "acts": None} == answer
    assert call(source="bank").status_code == 404 and call(source="shop", queue="none").status_code == 404
    refused = call(source="shop", since="soon")
    assert refused.status_code == 422 and refused.json()["error"]["field"] == "since"


def test_markdown_is_a_page_of_rows_that_no_text_can_leave(ann, outage):
    answer = ann.get("/incidents/as/markdown/")
    text = answer.text
    assert answer.headers["Content-Type"] == "text/markdown; charset=utf-8"
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert [one.lstrip("# ") for one in headings[1:]] == [
        "Key figures", "Timeline", "Operator actions", "Cause", "Lessons learned", "Action items",
    ]  # fmt: skip
    for line in text.splitlines():
        if line.startswith("|") and "---" not in line:
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 5, 6), line
    unescaped = re.sub(r"\\[!-/:-@\[-`{-~]", "", text)
    assert "<" not in unescaped and "`" not in unescaped and "**" not in unescaped and "\u202e" not in text
    assert not re.search(r"[@#]\w", text.replace("\\", "")), "nobody is called, no issue is named"
    links = re.findall(r"\]\(([^)]*)\)", unescaped)
    assert links and all(one.startswith("http://127.0.0.1:8000/") for one in links)


@pytest.mark.parametrize(
    ("message", "safe"),
    [
        ("a | b", r"a \| b"),
        ("<script>", r"\<script\>"),
        ("[x](http://e)", r"\[x\]\(http\:\/\/e\)"),
        ("# not a heading\n\n* nor a list", r"\# not a heading \* nor a list"),
        ("@channel", "\\@\u2060channel"),
        ("fixes #12", "fixes \\#\u206012"),
        ("a\\", "a\\\\"),
        ("&lt;", r"\&lt\;"),
        ("\u202eevil", "⟨U\\+202E⟩evil".replace("\\+", "\\+")),
        ("x" * 600, "x" * 499 + "…"),
    ],
)
def test_text_of_others_is_text_of_markdown(message, safe):
    assert plain(message) == safe


def test_it_is_linked_from_the_alert(ann, outage):
    alert = Alert.objects.get()
    page = ann.get(f"/alerts/{alert.pk}/").text
    link = re.search(r'href="(/incidents/\?[^"]+)"', page)[1].replace("&amp;", "&")
    assert ann.get(link).status_code == 200


def test_a_group_with_a_long_title_and_a_release_do_not_break_it(ann, outage):
    Group.objects.update(
        state="regressed", state_since=outage + timedelta(minutes=3), regressed_after=f"release:{HOSTILE}"[:120]
    )
    page = ann.get("/incidents/").text
    assert "Came back after release" in page and "<img src=x" not in page


def test_the_overview_leads_to_it_while_something_fails(ann, watched):
    assert "/incidents/" not in ann.get("/").text
    now = timezone.now()
    many = [report(f"n{n}", at=(now - timedelta(seconds=n)).timestamp()) for n in range(90)]
    ingest.file(entries(*many), now)
    overview.forget()
    assert 'href="/incidents/"' in ann.get("/").text
