"""Systems of other kinds beside a Celery: what a page offers is what the source of the job can do, and what it cannot is said."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from dashboard.setup import checkup
from dashboard.web import metrics
from jobs_admin import config
from jobs_admin.failures.contents import opened
from jobs_admin.models import DepthSample, Failure, Payload, Replay, Source
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.replays.messages import patched_arguments
from jobs_admin.sources.base import READ_ONLY, SourceRefused
from jobs_admin.sources.bullmq import job_hash
from tests.kit.failures import bury
from tests.kit.pages import clock_of, text_of
from tests.kit.sources import forget_configuration

pytestmark = pytest.mark.django_db

CLOSED = {"id": READ_ONLY, "severity": "high", "text": "meta.version says 99.", "fix": "Update Redrive."}


@pytest.fixture
def table(settings, tmp_path, watched):
    """The source `table`, which keeps its dead jobs itself, beside `shop`, whose workers report them."""
    file = tmp_path / "sources.toml"
    file.write_text(
        '[sources.shop]\nbackend = "memory"\nurl = "memory:"\n'
        '[sources.table]\nbackend = "memory"\nurl = "memory:"\nkeeps_dead = true\n'
    )
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    yield config.adapter("table")
    forget_configuration(config)


def source(name="table", **changes) -> None:
    values = {"backend": "jobs_table" if name == "table" else "celery", "is_configured": True, "is_reachable": True}
    values["sampled_at"] = timezone.now()
    Source.objects.update_or_create(name=name, defaults=values | changes)


def died(**changes) -> Failure:
    """A dead job of the table, with its whole message."""
    (failure,) = bury(1, source="table", queue="jobs", args="[1]", kwargs="{}", **changes)
    return with_message(failure)


def with_message(failure: Failure) -> Failure:
    """With its whole message."""
    raw = b'{"args": [1], "kwargs": {}}'
    Payload.objects.create(
        failure=failure, run=1, body=config.payload_keys().encrypt(raw), size=len(raw), sha256="0" * 64
    )
    return failure


def page_of(client, failure: Failure) -> str:
    return text_of(client.get(f"/failures/{failure.pk}/"))


def sample(**changes) -> None:
    row = {"queue": "jobs", "waiting": 7, "workers": None, "guarded_workers": 0, "source_dead": 4}
    DepthSample.objects.create(source="table", at=timezone.now(), **row | changes)


def test_the_queues_of_a_system_that_is_read_show_when_and_nothing_of_guards(ann, table):
    source(pulled_at=timezone.now() - timedelta(seconds=3))
    sample()
    text = text_of(ann.get("/queues/"))
    assert re.search(r"table Jobs table read \d+ s ago", text)
    assert "guarded" not in text.lower() and "Acknowledged" not in text and "4 dead at source" in text


def test_the_queue_of_a_system_that_is_read_counts_workers_without_querying_for_guards(ann, table):
    source(pulled_at=timezone.now())
    sample(workers=3)
    text = text_of(ann.get("/queues/table/jobs/"))
    assert "Workers 3" in text and "guarded" not in text.lower() and "are not recorded" not in text


def test_who_has_guards_beside_it_keeps_their_columns(ann, table):
    source(pulled_at=timezone.now()), source("shop")
    DepthSample.objects.create(
        source="shop", queue="webhooks", at=timezone.now(), workers=14, guarded_workers=12, durability="early"
    )
    assert "12 of 14 guarded" in text_of(ann.get("/queues/"))


def test_what_is_not_read_shows_since_when_and_why(ann, table):
    since = timezone.now() - timedelta(minutes=20)
    source(pulled_at=since, why_not_pulled="no such table: jobs", not_pulled_since=since)
    for address in ("/queues/", "/"):
        text = text_of(ann.get(address))
        assert f"{clock_of(since)}" in text and "no such table: jobs" in text, address
    failure = died()
    assert f"In source not read since {clock_of(since)}" in page_of(ann, failure)


def test_a_source_that_may_not_be_changed_shows_it_everywhere_and_offers_no_replay(ann, table):
    source(findings=[CLOSED], pulled_at=timezone.now())
    failure = died()
    assert "Read-only: nothing is sent to table. meta.version says 99. Update Redrive." in text_of(ann.get("/queues/"))
    assert "read-only" in text_of(ann.get("/"))
    page = page_of(ann, failure)
    assert "table is read-only: meta.version says 99." in page and "Edit and replay" not in page
    preview = text_of(ann.get("/replays/new/", {"q": "source:table"}))
    assert "No jobs can be replayed" in preview and "meta.version says 99." in preview


@pytest.mark.parametrize(
    ("can", "findings", "is_offered"), [(True, [], True), (False, [], False), (True, [CLOSED], False)]
)
def test_a_queue_offers_a_replay_where_its_source_takes_one(ann, table, can, findings, is_offered):
    source(findings=findings, pulled_at=timezone.now())
    table.can = replace(table.can, replay=can)
    died()
    text = text_of(ann.get("/queues/table/jobs/"))
    assert "View dead jobs" in text and ("Replay dead jobs" in text) == is_offered


def test_a_job_is_edited_where_its_source_can_send_it_so_and_else_it_shows_why_not(ann, table):
    source(), source("shop")
    failure = died()
    assert "Edit and replay" in page_of(ann, failure)
    table.can = replace(table.can, edit=False)
    page = page_of(ann, failure)
    assert "Edit and replay" not in page and "can only send jobs unchanged" in page
    assert ann.get(f"/failures/{failure.pk}/edit/").status_code == 409


@pytest.fixture
def node(settings, tmp_path, watched):
    """A dead job of a BullMQ, whose data is an object. Nothing listens there: no look at it is needed."""
    file = tmp_path / "sources.toml"
    file.write_text('[sources.node]\nbackend = "bullmq"\nurl = "redis://127.0.0.1:1/0"\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    (failure,) = bury(1, source="node", queue="billing", args="[]", kwargs='{"a": 1}')
    fields = {b"name": b"charge", b"data": b'{"a":1}'}
    raw = job_hash.pack(job_hash.Message(5, "billing", "7", fields, None, {}))
    body = config.payload_keys().encrypt(raw)
    Payload.objects.create(failure=failure, run=1, body=body, size=len(raw), sha256="0" * 64)
    yield failure
    forget_configuration(config)


def test_a_job_with_one_value_shows_the_field_that_it_has_and_no_other(ann, node):
    page = ann.get(f"/failures/{node.pk}/edit/").content.decode()
    assert 'id="edit-kwargs"' in page and 'id="edit-args"' not in page


def test_arguments_that_a_job_cannot_have_are_refused_before_they_are_shown_as_a_change(ann, node):
    both = {"args": "[1, 2]", "kwargs": '{"a": 1}', "step": "look"}
    answer = ann.post(f"/failures/{node.pk}/edit/", both)
    assert answer.status_code == 409 and "has one value" in answer.content.decode()


def test_a_program_is_refused_such_arguments_before_a_replay_is_made(call_api, node):
    requested = {"args": [1, 2], "kwargs": {"a": 1}, "reason": "r"}
    answer = call_api("POST", f"failures/{node.pk}/replay", requested)
    assert (answer.status_code, Replay.objects.exists()) == (422, False)
    assert "has one value" in answer.json()["error"]["message"]


def test_a_patch_that_a_job_cannot_have_is_refused_where_it_is_tried(node):
    with pytest.raises(SourceRefused, match="has one value"):
        patched_arguments(message_of(node), "node", {"args": [1, 2]})
    assert patched_arguments(message_of(node), "node", {"kwargs": {"b": 2}}) == (None, {"a": 1, "b": 2})


def message_of(failure: Failure) -> bytes:
    return opened(Payload.objects.get(failure=failure))


def test_a_job_of_no_celery_is_not_offered_as_a_call_of_celery(ann, table):
    source(), source("shop")
    (other,) = bury(1)
    assert "Copy as Python call" in page_of(ann, other)
    page = page_of(ann, died())
    assert "Python" not in page and "Copy as JSON" in page and "Jobs table" in page


def test_who_discards_is_shown_whether_the_source_drops_the_job(ann, table):
    source()
    failure = died()
    assert "Also removed from table" in page_of(ann, failure)
    table.can = replace(table.can, remove=False)
    assert "Also removed from" not in page_of(ann, failure)


def test_with_several_sources_each_row_shows_which_and_a_facet_separates_them(ann, table):
    source(), source("shop")
    bury(2), died()
    text = text_of(ann.get("/failures/"))
    assert "shop / webhooks" in text and "table / jobs" in text
    assert "Source shop 2" in text_of(ann.get("/failures/facets/"))


def test_who_sees_one_source_is_not_reported_about_others(vera, table):
    source(), source("shop")
    bury(1), died()
    text = text_of(vera.get("/failures/"))
    assert "webhooks" in text and "shop /" not in text and "table" not in text
    assert "Source" not in text_of(vera.get("/failures/facets/"))


@pytest.fixture
def dead_in_both(ann, table):
    """Two dead jobs of the shop and one of the table."""
    source(), source("shop")
    for failure in bury(2):
        with_message(failure)
    died()


def test_a_replay_may_span_sources_and_shows_how_many_go_to_each(ann, dead_in_both):
    page = text_of(ann.get("/replays/new/", {"q": ""}))
    assert "Source shop 2 table 1" in page
    assert "Replay 3 jobs to webhooks and 1 other queue, in 2 sources" in page


def test_where_one_source_reports_no_outcomes_careful_is_offered_without_it(ann, dead_in_both, table):
    table.can = replace(table.can, outcomes=False)
    answer = ann.get("/replays/new/", {"q": "queue:webhooks,jobs"})
    assert "Not available: table does not report outcomes" in text_of(answer)
    (link,) = re.findall(r'<a href="([^"]+)">\s*Exclude\s+table', answer.content.decode())
    page = text_of(ann.get(html.unescape(link)))
    assert "Replay 2 jobs to webhooks?" in page and "Not available" not in page


def test_what_one_source_of_a_replay_cannot_do_is_not_offered_and_shows_why(ann, dead_in_both, table):
    assert 'id="opt-queue"' in ann.get("/replays/new/", {"q": ""}).content.decode()
    table.can = replace(table.can, redirect=False, attempts=False, edit=False, same_id=False)
    page = ann.get("/replays/new/", {"q": ""}).content.decode()
    for field in ("opt-queue", "opt-attempts", "opt-patch"):
        assert f'id="{field}"' not in page, field
    assert "table can only send jobs to the queue that they came from." in page
    assert "Jobs of table always keep their ID." in page
    alone = ann.get("/replays/new/", {"q": "source:shop"}).content.decode()
    assert 'id="opt-queue"' in alone


def test_a_priority_is_refused_where_a_source_cannot_be_given_one(ann, dead_in_both, table):
    table.can = replace(table.can, priority=False)
    reported = {"q": "", "step": "start", "style": "at_once", "priority": "high", "reason": "mended", "confirm": "3"}
    answer = ann.post("/replays/new/", {**reported, "seen": '{"replayable": 3}'})
    assert answer.status_code == 422 and "Jobs of table cannot be given a priority" in text_of(answer)


def test_a_viewer_of_one_source_sees_nothing_of_another_that_is_read(vera, otto, table, django_user_model):
    source(findings=[CLOSED], why_not_pulled="no such table: jobs", not_pulled_since=timezone.now()), source("shop")
    sample()
    failure = died(task="secret.task", error_type="SecretError")
    for address in ("/", "/queues/", "/failures/", "/groups/", "/replays/", "/alerts/", "/failures/facets/"):
        page = vera.get(address).content.decode()
        assert "table" not in text_of(vera.get(address)).split() and "secret.task" not in page, address
        assert "no such table" not in page and "meta.version" not in page and "SecretError" not in page, address
    for address in (f"/failures/{failure.pk}/", "/queues/table/jobs/", f"/failures/{failure.pk}/as/json/"):
        assert vera.get(address).status_code == 404, address
    assert "No jobs can be replayed" in text_of(otto.get("/replays/new/", {"q": "source:table"}))
    assert otto.post(f"/failures/{failure.pk}/replay/", {"reason": "x"}).status_code == 404


def test_metrics_show_how_long_ago_a_system_was_read(table):
    source(pulled_at=timezone.now() - timedelta(seconds=7)), source("shop")
    reported = metrics.text(Viewer("prometheus", {"*": VIEWER}))
    (age,) = re.findall(r'^redrive_source_read_age_seconds\{source="table"\} (\S+)$', reported, re.M)
    assert 7 <= float(age) < 600 and 'read_age_seconds{source="shop"}' not in reported


def test_doctor_shows_of_a_system_that_is_read_whether_it_is(table):
    def read() -> tuple[str, list[str]]:
        (found,) = [one for one in checkup.check_sources(timezone.now()) if one.part == "source table"]
        return found.text, [finding.id for finding in found.findings]

    assert read()[1] == ["not-read-yet"]
    source(pulled_at=timezone.now())
    text, findings = read()
    assert re.search(r"read \d+ s ago", text) and "guarded" not in text and findings == []
    source(why_not_pulled="no such table: jobs", not_pulled_since=timezone.now())
    assert read()[1] == ["not-read"]
