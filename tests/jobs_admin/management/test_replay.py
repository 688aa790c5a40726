from __future__ import annotations

import io
import subprocess
import sys

import pytest
from django.core.management import CommandError, call_command
from django.urls import set_script_prefix

from jobs_admin.models import AuditEvent, Replay
from tests.jobs_admin.replays.conftest import bury, shop  # noqa: F401
from tests.jobs_admin.replays.desk import ROOT, Desk

pytestmark = pytest.mark.django_db


def run(*arguments):
    out = io.StringIO()
    call_command("replay", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_a_dry_run_says_what_would_happen_and_does_nothing(shop, bury):  # noqa: F811
    bury(100)
    bury(2, state="retrying")
    said = run("queue:emails", "--dry-run", "--rate", "10")
    assert "102 match, 100 can be replayed" in said and "left out: 2 retrying" in said and "Takes 10 s" in said
    assert not Replay.objects.exists()


def test_a_replay_is_started_in_the_name_of_the_terminal_s_user(shop, bury):  # noqa: F811
    bury(2)
    said = run("queue:emails", "--reason", "fixed")
    replay = Replay.objects.get()
    assert f"/replays/{replay.pk}/" in said and (replay.state, replay.total) == ("running", 2)
    assert AuditEvent.objects.last().actor.endswith("(terminal)")


def test_the_address_of_a_desk_below_a_prefix_is_told_with_it(shop, bury):  # noqa: F811
    bury(1)
    set_script_prefix("/desk/")
    try:
        said = run("queue:emails")
    finally:
        set_script_prefix("/")
    assert f"/desk/replays/{Replay.objects.get().pk}/" in said


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["queue:emails"], "needs a reason"),
        (["queue:none", "--reason", "x"], "Nothing matches"),
        (["queue:emails", "--reason", "x", "--rate", "fast"], "rate must be a number"),
    ],
)
def test_what_is_refused_is_said(shop, bury, arguments, says):  # noqa: F811
    bury(2)
    with pytest.raises(CommandError, match=says):
        run(*arguments)
    assert not Replay.objects.exists()


@pytest.mark.server
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind, says", [("success", "All 3 jobs succeeded"), ("exception", "3 failed again")])
def test_waiting_ends_with_the_jobs_and_tells_how_they_ended(desk_of_three, kind, says):
    out = desk_of_three(kind)
    assert says in out.stdout + out.stderr and "3/3 ended" in out.stdout
    assert out.returncode == (0 if kind == "success" else 1)


ENGINE = """
from jobs_admin.models import Attempt
while not ReplayItem.objects.filter(state="sent").exists() or replays.send("one"):
    replays.send("one"); time.sleep(0.05)
now = timezone.now()
for item in ReplayItem.objects.all():
    Attempt.objects.create(failure_id=item.failure_id, run=2, attempt=1, kind="{kind}", ended_at=now, received_at=now)
replays.settle()
"""


@pytest.fixture
def desk_of_three(tmp_path, engine):
    """Runs the command on three dead jobs that then end as told."""

    def run_it(kind):
        desk = Desk(tmp_path, engine.url)
        desk.run("bury(3)")
        sending = desk.start(ENGINE.format(kind=kind))
        try:
            command = [sys.executable, "manage.py", "replay", "queue:emails", "--wait", "--reason", "x"]
            return subprocess.run(
                command, cwd=ROOT, env=desk.environment, capture_output=True, text=True, timeout=60, check=False
            )
        finally:
            sending.kill()
            sending.communicate()

    return run_it
