from __future__ import annotations

import json
import re

from jobs_admin import config
from jobs_admin.models import AuditEvent, Failure
from tests.kit.failures import bury
from tests.kit.pages import HTMX, text_of

CRASHES = [
    {"how": "killed", "at": 1.0, "seen_at": 1000.0, "worker": "w1@a", "said": "signal 11 (SIGSEGV)"},
    {"how": "lost", "at": 1.0, "seen_at": 1040.0, "worker": "w2@a", "said": "", "alone": False, "beside": 3},
    {"how": "lost", "at": 1.0, "seen_at": 1090.0, "worker": "w3@a", "said": "", "alone": True, "beside": 0},
]


def quarantined(**changes) -> int:
    bury(1, state="quarantined", crashes=json.dumps(CRASHES), **changes)
    return Failure.objects.latest("pk").pk


def test_a_pill_is_there_with_what_it_did_to_which_workers(ann, watched):
    quarantined()
    text = text_of(ann.get("/quarantine/"))
    assert "3 crashes in 90 s" in text
    assert "process crashed: signal 11 (SIGSEGV) on w1@a" in text
    assert "worker crashed on w2@a; 3 other jobs were running" in text
    assert "worker crashed on w3@a; no other job was running" in text
    assert "No suspects." in text


def test_crashes_that_were_reported_out_of_order_are_shown_oldest_first(ann, watched):
    late, first, between = CRASHES[2], CRASHES[0], CRASHES[1]
    bury(1, state="quarantined", crashes=json.dumps([late, {"how": "lost", "worker": "w0@a"}, first, between]))
    text = text_of(ann.get("/quarantine/"))
    assert re.findall(r"w\d@a", text) == ["w0@a", "w1@a", "w2@a", "w3@a"]


def test_the_page_of_the_job_shows_it_too_also_when_it_was_readmitted(ann, watched):
    pk = quarantined()
    ann.post(f"/quarantine/{pk}/readmit/")
    text = text_of(ann.get(f"/failures/{pk}/"))
    assert "Worker crashes" in text and "signal 11 (SIGSEGV)" in text


def test_an_empty_quarantine_shows_what_would_put_something_there(ann, watched):
    assert "No quarantined jobs. Jobs that repeatedly crash their worker, under a policy with poison" in text_of(
        ann.get("/quarantine/")
    )


def test_a_job_is_readmitted_and_that_is_taken_back(ann, watched):
    pk = quarantined()
    answer = ann.post(f"/quarantine/{pk}/readmit/", headers=HTMX)
    assert Failure.objects.get().state == "dead" and "No quarantined jobs" in text_of(answer)
    fields = dict(re.findall(r'name="(key|back)" value="([^"]+)"', answer.content.decode()))
    ann.post("/failures/undo/", fields)
    assert Failure.objects.get().state == "quarantined"
    assert [event.act for event in AuditEvent.objects.order_by("id")] == ["failure.readmit", "failure.quarantine"]


def test_a_job_is_discarded_with_a_reason_and_the_page_comes_back_without_htmx(ann, watched):
    pk = quarantined()
    answer = ann.post(f"/quarantine/{pk}/discard/", {"reason": "a broken image", "after": str(pk + 9)})
    assert answer.status_code == 302 and answer.url == f"/quarantine/?after={pk + 9}"
    assert Failure.objects.get().state == "discarded" and AuditEvent.objects.get().reason == "a broken image"


def test_one_that_is_not_there_any_more_is_shown(ann, watched):
    bury(1)
    pk = Failure.objects.get().pk
    answer = ann.post(f"/quarantine/{pk}/readmit/", headers=HTMX)
    assert answer.status_code == 409 and "could not be readmitted" in text_of(answer)
    assert ann.post("/quarantine/987654321/readmit/").status_code == 404


def test_who_may_not_act_sees_no_buttons_and_is_refused(vera, otto, watched):
    pk = quarantined()
    quarantined(source="bank")
    assert (
        "/readmit/" not in vera.get("/quarantine/").content.decode()
        and vera.post(f"/quarantine/{pk}/readmit/").status_code == 403
    )
    assert otto.get("/quarantine/").content.decode().count('action="/quarantine/') == 2


def test_hostile_words_stay_words(ann, watched):
    bury(
        1,
        state="quarantined",
        task="<b>x",
        crashes=json.dumps([{"how": "<i>", "said": "<script>", "worker": "\u202e"}]),
    )
    page = ann.get("/quarantine/").content.decode()
    assert "<b>x" not in page and "<i>" not in page and "&lt;script&gt;" in page and "\u202e" not in page


def test_a_store_that_is_away_hides_no_job(ann, settings):
    quarantined()
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    config.store.cache_clear()
    text = text_of(ann.get("/quarantine/"))
    assert "3 crashes" in text and "Redrive's store is unreachable." in text
