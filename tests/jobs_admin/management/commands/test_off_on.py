"""`manage.py off` and `on`: what the workers read within two seconds."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.db import audit
from jobs_admin.models import AuditEvent, Replay

pytestmark = [pytest.mark.server, pytest.mark.django_db]


def test_off_is_what_the_guards_check_for_and_on_takes_it_away(store, capsys):
    call_command("off")
    assert store.get(keys.switch()) == b"off"
    call_command("on")
    assert store.get(keys.switch()) is None
    assert "The guard is on." in capsys.readouterr().out


def test_who_silenced_the_workers_and_who_woke_them_is_written_down(store):
    for act in ("off", "off", "on", "on"):
        call_command(act)
    events = list(AuditEvent.objects.order_by("id").values_list("actor", "act", "before", "after"))
    assert events == [("manage.py off", "guard.off", "on", "off"), ("manage.py on", "guard.on", "off", "on")]
    assert audit.verify() is None


def test_what_cannot_be_written_down_is_not_done(store):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobs_admin_auditevent RENAME TO elsewhere")
    with pytest.raises(CommandError, match=r"Nothing was changed.*SET redrive:\S+ off$"):
        call_command("off")
    assert store.get(keys.switch()) is None


def test_on_reports_when_there_was_nothing_to_change(store, capsys):
    call_command("on")
    assert "Nothing was changed" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["off", "on"])
def test_a_store_that_cannot_be_reached_is_reported_with_its_setting(store, settings, command):
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    config.store.cache_clear()
    with pytest.raises(CommandError, match=r"Nothing was changed.*REDRIVE_REDIS_URL"):
        call_command(command)


def test_off_reports_how_many_running_replays_get_no_outcomes(store, capsys):
    for state, running in (("running", 0), ("paused", 3), ("paused", 0), ("done", 0)):
        Replay.objects.create(state=state, running=running, total=5, matched=5, scope_max_id=0)
    call_command("off")
    assert "2 running replays get no outcomes in the meantime" in capsys.readouterr().out
    assert store.get(keys.switch()) == b"off"
    Replay.objects.all().delete()
    call_command("off")
    assert "replay" not in capsys.readouterr().out
