"""Sources whose reports are refused: known from live workers or from what was refused, said where a replay waits for them."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from jobs_admin import config, replays, trust
from jobs_admin.core import keys
from jobs_admin.fleet import heartbeats
from jobs_admin.models import RefusedReports, Replay, Source, UnsignedReports
from jobs_admin.models.access import ENGINE, OPERATOR, Viewer
from jobs_admin.queues import refused_reports
from jobs_admin.replays import outcomes
from jobs_admin.trust import source_keys
from tests.kit.people import ANN
from tests.kit.replays import buried
from tests.kit.signed_reports import entry, file

pytestmark = pytest.mark.django_db

SENTENCE = (
    "Reports of shop are refused, so job outcomes are unknown (1 of 2 workers does not sign them, and unsigned "
    "reports are not accepted since 20 Nov 2025 10:00 UTC): give its workers a key (`python3 manage.py source-key create shop`) or "
    "accept unsigned reports (`python3 manage.py unsigned-reports --until DATE`), then file the refused reports (`python3 manage.py "
    "sources file "
    "shop`)."
)


@pytest.fixture
def desk(store, shop):
    Source.objects.create(name="shop", is_configured=True, is_reachable=True)
    trust.forget()
    return store


def beat(store, name, queues=("emails",), **more):
    word = {"v": 1, "source": "shop", "name": name, "boot": "b", "at": timezone.now().timestamp(), "queues": [*queues]}
    store.hset(keys.workers("shop"), name, json.dumps(word | more))
    heartbeats.count_heartbeats(timezone.now())
    trust.forget()


def end(at="2025-11-20T10:00+00:00"):
    UnsignedReports.objects.update(until=at)
    trust.forget()


def warnings(*queues):
    return refused_reports.warnings(["shop"], queues, timezone.now())


def test_workers_that_do_not_sign_are_refused_once_unsigned_reports_have_ended(desk):
    beat(desk, "old")
    beat(desk, "new", queues=["orders"], key=source_keys.create(ENGINE, "shop").id)
    assert warnings() == []
    end()
    assert warnings() == warnings("emails", "x") == [SENTENCE]
    assert warnings("orders") == [], "the worker of that queue signs"


def test_a_source_that_has_signed_for_a_day_is_not_advised_to_accept_unsigned_reports(desk):
    source_keys.create(ENGINE, "shop")
    Source.objects.update(signed_since=timezone.now() - timedelta(days=2))
    beat(desk, "old")
    (text,) = warnings()
    assert "have been signing since" in text and "source-key create shop" in text and "--until" not in text


def test_workers_with_a_revoked_key_are_refused_whatever_is_accepted(desk):
    key = source_keys.create(ENGINE, "shop")
    beat(desk, "w", key=key.id)
    assert warnings() == []
    source_keys.revoke(ENGINE, key.id, timezone.now())
    trust.forget()
    (text,) = warnings()
    assert "1 of 1 workers does not sign with an active key" in text and "source-key list" in text


def test_of_workers_that_are_away_what_was_refused_lately_counts_until_it_ends_or_is_believed_again(desk):
    end()
    file(entry())
    assert "the latest at" in warnings()[0] and "the report is not signed" in warnings()[0]
    beat(desk, "new", key=source_keys.create(ENGINE, "shop").id)
    assert warnings() == [], "all live workers sign now"
    RefusedReports.objects.update(cause="signature")
    assert len(warnings()) == 1
    RefusedReports.objects.update(last_at=timezone.now() - timedelta(hours=1))
    assert warnings() == []


def test_a_desk_without_a_store_still_knows_what_was_refused(desk, settings):
    end()
    file(entry())
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    config.store.cache_clear()
    assert len(warnings()) == 1


def test_preview_and_replay_report_it_and_only_to_who_sees_the_source(desk):
    beat(desk, "old")
    beat(desk, "new", queues=["orders"], key=source_keys.create(ENGINE, "shop").id)
    buried(2)
    assert replays.preview(ANN).warnings == []
    end()
    assert replays.preview(ANN).warnings == [SENTENCE]
    replay = replays.start(ANN, replays.draft(ANN, query="", reason="r"))
    now = timezone.now()

    def read_warnings(viewer=ANN):
        return outcomes.refused_report_warnings(viewer, [Replay.objects.get(pk=replay.pk)], now).get(replay.pk, [])

    assert read_warnings() == [SENTENCE], "before its items are laid out"
    replays.create_items()
    assert read_warnings() == [SENTENCE] and read_warnings(Viewer("w", {"web": OPERATOR})) == []
    replay.to_queue = "orders"
    replay.save()
    assert read_warnings() == []
    replay.to_queue = ""
    replay.save()
    replays.cancel(ANN, replay)
    assert read_warnings() == []


def test_the_command_reports_it_before_it_starts_and_while_it_waits(desk, capsys, monkeypatch):
    beat(desk, "old")
    beat(desk, "new", queues=["orders"], key=source_keys.create(ENGINE, "shop").id)
    buried(1)
    end()
    call_command("replay", "queue:emails", "--dry-run", "--reason", "r")
    assert f"note: {SENTENCE}" in capsys.readouterr().out
    end(timezone.now() + timedelta(days=1))

    def meanwhile(_):
        end() if "ended" not in done else Replay.objects.update(state="held")
        done.append("ended")

    done: list[str] = []
    monkeypatch.setattr("jobs_admin.management.commands.replay._WARN_EVERY_S", -1)
    monkeypatch.setattr("jobs_admin.management.commands.replay.time.sleep", meanwhile)
    with pytest.raises(CommandError):
        call_command("replay", "queue:emails", "--wait", "--reason", "r")
    output = capsys.readouterr()
    assert SENTENCE not in output.out and output.err.count(SENTENCE) == 1
