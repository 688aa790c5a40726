from __future__ import annotations

import io
import signal
import subprocess
import sys

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper
from django.urls import set_script_prefix

from jobs_admin.management.commands.replay import Progress
from jobs_admin.models import AuditEvent, Replay
from tests.kit.desks import ROOT, Desk

pytestmark = pytest.mark.django_db


def run(*arguments):
    out = io.StringIO()
    call_command("replay", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_a_dry_run_reports_what_would_happen_and_does_nothing(shop, bury):
    bury(100)
    bury(2, state="retrying")
    output = run("queue:emails", "--dry-run", "--rate", "10")
    assert (
        "102 matching, 100 can be replayed" in output and "excluded: 2 retrying" in output and "Takes 9.9 s" in output
    )
    assert not Replay.objects.exists()


def test_a_replay_is_started_in_the_name_of_the_terminal_s_user(shop, bury):
    bury(2)
    output = run("queue:emails", "--reason", "fixed")
    replay = Replay.objects.get()
    assert f"/replays/{replay.pk}/" in output and (replay.state, replay.total) == ("running", 2)
    assert AuditEvent.objects.last().actor.endswith("(terminal)")


def test_the_address_of_a_desk_below_a_prefix_is_reported_with_it(shop, bury):
    bury(1)
    set_script_prefix("/desk/")
    try:
        output = run("queue:emails")
    finally:
        set_script_prefix("/")
    assert f"/desk/replays/{Replay.objects.get().pk}/" in output


def test_a_dry_run_draws_the_plan_and_reports_what_failures_would_change(shop, bury):
    bury(400)
    output = run("queue:emails", "--dry-run")
    assert '"style": "careful"' in output and '"canary": {"jobs": 50' in output  # more than 100
    rows = [line for line in output.splitlines() if " |" in line]
    assert len(rows) == 6 and rows[0].rstrip().endswith("#") and rows[-1].count("#") > rows[0].count("#")
    assert "10 % fail again: ends after" in output and "50 % fail again: held after ~" in output
    assert "assumption: A job takes" in output


def test_how_its_jobs_are_sent_is_an_option_of_the_command(shop, bury, tmp_path):
    bury(3)
    patch = tmp_path / "patch.json"
    patch.write_text('{"kwargs": {"dry_run": true}}')
    run("queue:emails", "--reason", "x", "--at-once", "--attempts", "3", "--patch", str(patch), "--accept", "expired")
    replay = Replay.objects.get()
    assert (replay.attempts, replay.patch, replay.accepted) == ("3", {"kwargs": {"dry_run": True}}, ["expired"])
    assert replay.pace["style"] == "at_once"


@pytest.mark.parametrize("written, message", [(None, "cannot be read: No such file"), ("{", "is not JSON")])
def test_a_patch_that_cannot_be_read_starts_nothing(shop, bury, tmp_path, written, message):
    bury(3)
    patch = tmp_path / "patch.json"
    if written is not None:
        patch.write_text(written)
    with pytest.raises(CommandError, match=message):
        run("queue:emails", "--reason", "x", "--patch", str(patch))
    assert not Replay.objects.exists()


def update_replay(pk: int, **changes) -> None:
    Replay.objects.filter(pk=pk).update(**changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"state": "held", "held_because": "6 of 10 canary jobs failed again."}, "is held: 6 of 10 canary jobs"),
        ({"state": "awaiting_approval"}, "awaits approval by another operator"),
    ],
)
def test_waiting_ends_non_zero_at_once_where_only_a_person_can_go_on(shop, bury, monkeypatch, changes, message):
    bury(3)
    show = Progress.show

    def show_after_change(self, replay):
        update_replay(replay.pk, **changes)
        replay.refresh_from_db()
        show(self, replay)

    monkeypatch.setattr(Progress, "show", show_after_change)
    with pytest.raises(CommandError, match=message):
        run("queue:emails", "--reason", "x", "--wait")


def test_waiting_ends_where_no_one_reports_how_the_jobs_ended_and_claims_nothing(shop, bury, monkeypatch):
    bury(3)
    monkeypatch.setattr(Progress, "show", lambda _, replay: update_replay(replay.pk, state="done", sent=3, planned=0))
    output = run("queue:emails", "--reason", "x", "--wait")
    assert "3 of 3 jobs sent. Their source does not report outcomes." in output and "succeeded" not in output


def test_a_log_gets_a_line_when_something_has_changed_and_no_more():
    out = io.StringIO()
    progress = Progress(OutputWrapper(out))
    replay = Replay(total=100, planned=100, state="canary")
    for succeeded, state in ((0, "canary"), (3, "canary"), (3, "ramping"), (25, "ramping"), (100, "done")):
        replay.succeeded, replay.planned, replay.state = succeeded, 100 - succeeded, state
        progress.show(replay)
    lines = out.getvalue().splitlines()
    assert len(lines) == 4 and "0/100 ended" in lines[0] and "(ramping)" in lines[1] and "100/100" in lines[3]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["queue:emails"], "needs a reason"),
        (["queue:emails", "--reason", "x", "--attempts", "0"], "1 to 1,000 attempts"),
        (["queue:emails", "--reason", "x", "--accept", "all"], "What can be accepted is"),
        (["queue:emails", "--reason", "x", "--to-queue", "nowhere"], "never had a queue named"),
        (["queue:none", "--reason", "x"], "No job matches"),
        (["queue:emails", "--reason", "x", "--rate", "fast"], "rate must be a number"),
    ],
)
def test_what_is_refused_is_shown(shop, bury, arguments, message):
    bury(2)
    with pytest.raises(CommandError, match=message) as refused:
        run(*arguments)
    assert str(refused.value).count("Nothing was changed.") == 1
    assert not Replay.objects.exists()


@pytest.mark.server
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind, message", [("success", "All 3 jobs succeeded"), ("exception", "3 failed again")])
def test_waiting_ends_with_the_jobs_and_reports_how_they_ended(desk_of_three, kind, message):
    out = desk_of_three(kind)
    assert message in out.stdout + out.stderr and "3/3 ended" in out.stdout
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
    """Runs the command on three dead jobs that then end as reported."""

    def run_it(kind):
        desk = Desk(tmp_path, engine.url)
        desk.run("bury(3)")
        sending = desk.start(ENGINE.format(kind=kind))
        try:
            command = [sys.executable, "manage.py", "replay", "queue:emails", "--wait", "--reason", "x"]
            return subprocess.run(
                command, cwd=ROOT, env=desk.environment, capture_output=True, text=True, timeout=180, check=False
            )
        finally:
            sending.kill()
            sending.communicate()

    return run_it


@pytest.mark.server
@pytest.mark.django_db(transaction=True)
def test_ctrl_c_leaves_the_replay_running_and_reports_it(tmp_path, engine):
    desk = Desk(tmp_path, engine.url)
    desk.run("bury(3)")
    command = [sys.executable, "manage.py", "replay", "queue:emails", "--wait", "--reason", "x"]
    watching = subprocess.Popen(
        command, cwd=ROOT, env=desk.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while "0/3 ended" not in watching.stdout.readline():
            assert watching.poll() is None
        watching.send_signal(signal.SIGINT)
        _, output = watching.communicate(timeout=90)
    finally:
        watching.kill()
    assert watching.returncode == 1 and "continues; to pause or cancel the replay" in output
    assert desk.run("say(Replay.objects.get().state)") == "running"
