"""`manage.py off` and `on`: what the workers read within two seconds."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from jobs_admin import config
from jobs_admin.core import keys

pytestmark = pytest.mark.server


def test_off_is_what_the_guards_look_for_and_on_takes_it_away(store, capsys):
    call_command("off")
    assert store.get(keys.switch()) == b"off"
    call_command("on")
    assert store.get(keys.switch()) is None
    assert "The guard is on." in capsys.readouterr().out


def test_on_says_when_there_was_nothing_to_change(store, capsys):
    call_command("on")
    assert "Nothing was changed" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["off", "on"])
def test_a_store_that_cannot_be_reached_is_said_with_its_setting(store, settings, command):
    settings.REDRIVE_REDIS_URL = "redis://127.0.0.1:1/0"
    config.store.cache_clear()
    with pytest.raises(CommandError, match=r"Nothing was changed.*REDRIVE_REDIS_URL"):
        call_command(command)
