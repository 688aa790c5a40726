"""Values of jobs and of requests moves no cursor and colours no screen."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from tests.kit.failures import bury

pytestmark = pytest.mark.django_db
HOSTILE = "\x1b[31m\x9b2J\u202ered\ufeff"


def test_what_was_requested_is_printed_with_its_control_characters_escaped(capsys):
    bury(1)
    call_command("failures", f'message:"{HOSTILE}" before:{HOSTILE} state:{HOSTILE}')
    printed = "".join(capsys.readouterr())
    assert r"\x1b[31m" in printed and r"\u202e" in printed
    assert not set(printed) & set("\x1b\x9b\u202e\ufeff")


def test_a_queues_name_is_printed_with_its_control_characters_escaped(capsys, shop):
    bury(1, queue=HOSTILE)
    call_command("replay", "", "--dry-run")
    call_command("failures", "")
    printed = "".join(capsys.readouterr())
    assert r"\x1b[31m" in printed and not set(printed) & set("\x1b\x9b\u202e\ufeff")
