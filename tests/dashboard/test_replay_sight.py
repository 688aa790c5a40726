"""A replay over several sources shows to each viewer the sources that they may see, and nothing of the others."""

from __future__ import annotations

import json
import re

import pytest
from django.utils import timezone

from jobs_admin import config, replays
from jobs_admin.desk import overview
from jobs_admin.management.commands.token import create
from jobs_admin.models import Attempt, Failure, Replay, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.replays import progress
from tests.kit.failures import dead
from tests.kit.groups import group
from tests.kit.pages import HTMX, text_of
from tests.kit.people import log_in
from tests.kit.sources import forget_configuration

BOB = Viewer("bob", {"*": OPERATOR})
OWN = Viewer("sue", {"shop": OPERATOR})


@pytest.fixture
def sue(db, django_user_model):
    return log_in(django_user_model, "sue", shop="operator")


@pytest.fixture
def two_sources(settings, tmp_path, db):
    """The sources `shop` and `web`, in this process."""
    file = tmp_path / "sources.toml"
    names = ("shop", "web")
    file.write_text("".join(f'[sources.{name}]\nbackend = "memory"\nurl = "memory:"\n' for name in names))
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    yield
    forget_configuration(config)


@pytest.fixture
def replay(two_sources):
    ours, theirs = (
        group("OursError", culprit="shop/ours.py"),
        group("SecretError", culprit="web/secret.py", message="hush"),
    )
    shared = group("SharedError", culprit="shop/shared.py")
    dead(1, group=shared, queue="elsewhere", task="shop.ours", state="recovered")
    dead(30, group=ours, queue="emails", task="shop.ours")
    dead(73, source="web", group=theirs, queue="secrets", task="web.secret", tenant="hush-tenant")
    made = replays.launch(
        BOB, query="state:dead -tenant:secret-tenant", reason="the secret partner is back", pace={"style": "careful"},
        options=replays.Options(without_groups=()),
    )  # fmt: skip
    now = timezone.now()
    for source, n, state in (("shop", 4, "succeeded"), ("web", 20, "failed_again"), ("shop", 1, "failed_again")):
        mine = ReplayItem.objects.filter(replay=made, state="planned", failure__source=source)
        error = theirs if source == "web" else ours
        mine.filter(pk__in=mine.values_list("pk", flat=True)[:n]).update(
            state=state, sent_at=now, settled_at=now, first_at=now, first_ok=state == "succeeded",
            failed_group=None if state == "succeeded" else error, first_group=None if state == "succeeded" else error,
        )  # fmt: skip
    Replay.objects.filter(pk=made.pk).update(
        state="held", planned=78, succeeded=4, failed_again=21, held_because="20 failed with SecretError",
        without_groups=[shared.pk, theirs.pk], evidence={"kind": "canary", "judged": 25, "failed": 21, "groups": []},
        set_aside=[{"group": shared.pk, "phase": "run", "code": "failed_again", "reason": "100 of 100 jobs failed", "by": "x",
                    "at": now.isoformat(), "jobs": 50},
                   {"group": theirs.pk, "phase": "run", "code": "failed_again", "reason": "hush", "by": "x",
                    "at": now.isoformat(), "jobs": 50}],
        blocked=[{"code": "unknown_task", "reason": "web.secret", "count": 9}],
    )  # fmt: skip
    made.refresh_from_db()
    return made


def seen_of(answer) -> str:
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("url", ["/replays/{}/", "/replays/{}/?items=failed_again", "/replays/", "/"])
def test_its_pages_show_no_name_and_no_number_of_another_source(sue, replay, url):
    for headers in ({}, HTMX):
        text = seen_of(sue.get(url.format(replay.pk), headers=headers)).lower()
        assert "secret" not in text and "hush" not in text
        assert ">103<" not in text and ">78<" not in text and "100 of 100" not in text


@pytest.mark.django_db
def test_its_numbers_are_of_the_sources_that_are_seen(sue, replay):
    text = seen_of(sue.get(f"/replays/{replay.pk}/"))
    assert "5 of 30 sent; 5 of 5 settled, 100 %" in text and "OursError" in text
    row = replays.find(OWN, replay.pk)
    assert (row.total, row.planned, row.succeeded, row.failed_again) == (30, 25, 4, 1)
    assert progress.over_time(row).buckets[-1][1:] == (5, 4, 1)
    # Who sees all sees all.
    full = replays.find(BOB, replay.pk)
    assert (full.total, full.planned, full.seen_sources) == (103, 78, None)


@pytest.mark.django_db
@pytest.mark.parametrize("url", ["/replays/", "/"])
def test_a_chosen_source_filters_its_numbers_and_hides_no_reason(ann, sue, replay, url):
    page = seen_of(ann.get(url, {"source": "shop"}))
    assert "20 failed with SecretError" in page and "Reason hidden" not in page and "your sources" not in page
    assert "4 of 30 succeeded" in page if url == "/replays/" else "25 jobs not sent" in " ".join(page.split())
    # The same source without the right to the other, within the time for which the overview is cached.
    page = seen_of(sue.get(url, {"source": "shop"}))
    assert "Reason hidden" in page and "SecretError" not in page


@pytest.mark.django_db
def test_the_list_of_a_source_has_no_started_replay_of_another_alone(ann, two_sources):
    dead(2, source="web"), dead(2)
    user = Viewer("ann", {"*": OPERATOR}, user_id=ann.session["_auth_user_id"])
    made = replays.launch(user, query="source:web state:dead", reason="back")
    draft = replays.draft(user, query="state:dead", reason="back")
    for source, seen in (("web", {made, draft}), ("shop", {draft})):
        page = seen_of(ann.get("/replays/", {"source": source}))
        assert {one for one in (made, draft) if f'href="/replays/{one.pk}/"' in page} == seen


@pytest.mark.django_db
def test_the_api_shows_no_more(client, replay):
    secret = create("sue", "operator", "shop")
    for url in (f"/api/replays/{replay.pk}", "/api/replays", f"/api/replays/{replay.pk}/items"):
        text = json.dumps(client.get(url, headers={"Authorization": f"Bearer {secret}"}).json())
        assert "100 of 100" not in text
        assert "ecret" not in text and "hush" not in text and not re.search(r": (103|78)\b", text)


@pytest.mark.django_db
def test_one_that_waits_for_a_second_person_is_shown_and_counts_what_is_frozen(two_sources, settings, sue):
    settings.REDRIVE = settings.REDRIVE | {"APPROVE_ABOVE": "10"}
    dead(30, queue="emails")
    dead(70, source="web", queue="secrets")
    made = replays.launch(BOB, query="state:dead", reason="back")
    assert made.state == "awaiting_approval" and made.by_source == {"shop": 30, "web": 70}
    row = replays.find(OWN, made.pk)
    assert (row.total, row.planned) == (30, 30)
    # The bell, and the overview.
    assert "Activity, 1 new" in text_of(sue.get("/replays/")) and f"replay #{made.pk}" in text_of(sue.get("/activity/"))
    assert [one.pk for one in overview.running_replays(OWN)] == [made.pk]


@pytest.mark.django_db
def test_a_search_that_excluded_jobs_is_not_shown_beside_them(replay):
    Replay.objects.filter(pk=replay.pk).update(without_groups=[], set_aside=[])
    replays.resume(BOB, replays.find(BOB, replay.pk), without="queue:emails OR tenant:hush-tenant")
    shown = {
        viewer.name: replays.items(viewer, replays.find(viewer, replay.pk), state="cancelled").rows[0].outcome
        for viewer in (BOB, OWN)
    }
    assert shown == {
        "bob": "Excluded by bob: matched queue:emails OR tenant:hush-tenant",
        "sue": "Excluded by bob",
    }


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["planned", "sent", "failed_again"])
def test_the_page_of_its_job_shows_no_reason_of_another_source(sue, replay, state):
    Replay.objects.filter(pk=replay.pk).update(state="running")
    item = ReplayItem.objects.filter(replay=replay, failure__source="shop").earliest("pk")
    ReplayItem.objects.filter(pk=item.pk).update(state=state, sent_at=None if state == "planned" else timezone.now())
    states = {"planned": "dead", "sent": "replaying", "failed_again": "dead"}
    Failure.objects.filter(pk=item.failure_id).update(state=states[state], run=1 if state == "planned" else 2)
    attempt = Attempt.objects.create(
        failure_id=item.failure_id, run=1, attempt=1, kind="exception", job_id="j", error_type="OursError",
        ended_at=timezone.now(), received_at=timezone.now(),
    )  # fmt: skip
    url = f"/failures/{item.failure_id}/"
    for path in (url, f"{url}attempts/{attempt.pk}/"):
        text = seen_of(sue.get(path))
        assert f"replay #{replay.pk}" in text and "secret" not in text.lower(), path
    answer = sue.post(f"{url}replay/", headers=HTMX).content.decode()
    assert "secret" not in answer.lower()


@pytest.mark.django_db
def test_its_record_in_the_admin_shows_nothing_of_another_source(sue, replay, django_user_model):
    django_user_model.objects.filter(username="sue").update(is_staff=True)
    Replay.objects.filter(pk=replay.pk).update(
        approval_because="It runs a task that a second person approves: web.secret."
    )
    for path in (f"{replay.pk}/change/", ""):
        text = seen_of(sue.get(f"/admin/jobs_admin/replay/{path}")).lower()
        assert "secret" not in text and "hush" not in text and "100 of 100" not in text, path


@pytest.mark.django_db
def test_why_it_needs_a_second_person_names_no_task_of_another_source(two_sources, settings, sue):
    settings.REDRIVE = settings.REDRIVE | {"DANGEROUS_TASKS": ["web.*"]}
    dead(3, queue="emails", task="shop.ours")
    dead(7, source="web", queue="secrets", task="web.secret")
    made = replays.launch(BOB, query="state:dead", reason="back")
    assert made.state == "awaiting_approval"
    assert "web.secret" in replays.find(BOB, made.pk).approval_because
    for path in (f"/replays/{made.pk}/", "/replays/"):
        assert "web.secret" not in seen_of(sue.get(path)), path
