"""Screens offer the replay of jobs that can be replayed, and say why others cannot."""

from __future__ import annotations

import re

import pytest

from jobs_admin import config
from jobs_admin.models import Failure, Source
from jobs_admin.models.failure import Caveat
from tests.kit.failures import bury, dead
from tests.kit.groups import group
from tests.kit.pages import text_of
from tests.kit.sources import forget_configuration


@pytest.fixture
def guest(settings, tmp_path, db):
    """The source `shop`, followed in guest mode; nothing of it is dialled."""
    file = tmp_path / "sources.toml"
    file.write_text('[sources.shop]\nbackend = "celery"\nurl = "redis://127.0.0.1:1/0"\nguard = false\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    yield
    forget_configuration(config)


def test_jobs_of_an_unconfigured_source_name_the_setting_and_offer_no_replay(ann, watched, sources):
    where = group()
    dead(3, source="shopp", group=where)
    Source.objects.filter(name="shopp").update(is_configured=False)
    way_out = "belong to a configured source (shop, bank), set source=its name in their install(), restart them"
    for address in ("/", f"/failures/{Failure.objects.first().pk}/", f"/groups/{where.fingerprint}/"):
        answer = ann.get(address)
        text = text_of(answer)
        assert "not configured on this desk: its jobs cannot be replayed." in text, address
        assert way_out in text, address
        offers = re.findall(
            r'href="/replays/new/|name="act" value="replay"|action="[^"]*/replay/"', answer.content.decode()
        )
        assert not offers, address
    assert "3 webhooks jobs cannot be replayed: shopp is not configured on this desk." in text_of(ann.get("/"))


def test_a_group_offers_only_the_jobs_that_can_be_replayed(ann, watched, shop):
    where = group()
    dead(2, group=where), dead(3, group=where, is_complete=False)
    text = text_of(ann.get(f"/groups/{where.fingerprint}/"))
    assert "Review and replay 2 jobs" in text
    assert "3 dead jobs cannot be replayed: truncated: the message was too large to store completely." in text
    assert "Replay 2 dead jobs" in text_of(ann.get("/"))


def test_guest_mode_offers_the_guard_and_no_replay(ann, watched, guest):
    where = group()
    bury(4, group=where, caveats=Caveat.SEEN | Caveat.NO_MESSAGE)
    page = ann.get(f"/groups/{where.fingerprint}/")
    assert "4 dead jobs cannot be replayed: Seen, not replayable" in text_of(page)
    assert 'install(app, source="shop")' in text_of(page) and "/replays/new/" not in page.content.decode()
    page = ann.get("/").content.decode()
    assert "/replays/new/" not in page


def test_a_message_that_a_guard_stored_in_guest_mode_is_offered(ann, watched, guest):
    where = group()
    bury(4, group=where, caveats=Caveat.SEEN | Caveat.NO_MESSAGE)
    dead(1, group=where)
    Source.objects.update(unsigned_at="2026-01-01T00:00Z")
    assert "Review and replay 1 job " in text_of(ann.get(f"/groups/{where.fingerprint}/"))
    assert "Replay 1 dead job " in text_of(ann.get("/"))


def test_the_primary_act_is_of_the_first_queue_with_jobs_that_can_be_replayed(ann, watched, shop):
    dead(9, queue="reports", is_complete=False), dead(2)
    text = text_of(ann.get("/"))
    assert "Review and replay 2 webhooks jobs" in text


def test_without_jobs_that_can_be_replayed_the_reason_replaces_the_act(ann, watched, shop):
    dead(9, queue="reports", is_complete=False)
    answer = ann.get("/")
    assert "9 reports jobs cannot be replayed: truncated: the message was too large to store completely." in text_of(
        answer
    )
    assert 'class="button primary"' not in answer.content.decode()


def test_a_queue_that_events_did_not_name_is_explained_and_nothing_is_offered_for_it(ann, watched, guest):
    bury(4, queue="unknown", caveats=Caveat.SEEN | Caveat.NO_MESSAGE)
    Source.objects.update(unsigned_at="2026-01-01T00:00Z")  # the guard is in some workers: replays are possible
    for address in ("/queues/", "/queues/shop/unknown/", f"/failures/{Failure.objects.first().pk}/"):
        text = text_of(ann.get(address))
        assert "task_send_sent_event = True" in text, address
        assert "Pause queue" not in text and "Replay dead jobs" not in text, address
    page = ann.get("/")
    assert "queue not named" in text_of(page) and "/replays/new/?q=source" not in page.content.decode()


def test_the_palette_offers_no_replay_of_jobs_that_cannot_be_replayed(ann, watched, shop):
    Source.objects.create(name="shopp", is_configured=False)
    dead(2, source="shopp"), dead(1, is_complete=False)
    entries = text_of(ann.get("/palette/", {"q": "replay web"}))
    assert "Replay 1 dead job of webhooks" in entries and "Replay 2 dead jobs" not in entries
