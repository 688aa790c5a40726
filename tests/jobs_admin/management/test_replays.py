"""`manage.py replays`: what is not over, groups that come back, drafts that go."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from jobs_admin import replays
from jobs_admin.models import AuditEvent, Group, Replay
from tests.kit.people import ANN

pytestmark = pytest.mark.django_db


def run(*arguments):
    out = io.StringIO()
    call_command("replays", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def set_aside(shop, bury):
    """A held replay of ten jobs that has set their group aside."""
    now = timezone.now()
    one = Group.objects.create(
        fingerprint="v3-bad", error_type="PartnerDown", message="x", first_seen=now, last_seen=now
    )
    replay = replays.launch(ANN, selection=bury(10, group=one), reason="the partner is back", pace={"style": "careful"})
    row = {"group": one.pk, "phase": "run", "code": "failed_again", "reason": "5 of 5 jobs failed", "by": "controller"}
    Replay.objects.filter(pk=replay.pk).update(
        state="held", held_because="5 of 5 canary jobs failed again.", without_groups=[one.pk],
        set_aside=[row | {"at": now.isoformat(), "jobs": None}],
    )  # fmt: skip
    return replay


def test_a_group_that_was_set_aside_is_listed_and_brought_back(set_aside):
    output = run("list")
    assert (
        f"#{set_aside.pk} held  0 of 10 jobs sent, 0 settled  the partner is back: 5 of 5 canary jobs failed again."
        in output
    )
    assert "  v3-bad  10 jobs  PartnerDown: x: 5 of 5 jobs failed\n" in output
    with pytest.raises(CommandError, match="There is no group 'v3-unknown'"):
        run("bring-back", str(set_aside.pk), "v3-unknown")
    result = run("bring-back", str(set_aside.pk), "v3-bad", "--reason", "fixed")
    assert result == f"Replay #{set_aside.pk} sends the jobs of this group.\n"
    set_aside.refresh_from_db()
    assert set_aside.without_groups == []
    event = AuditEvent.objects.get(act="replay.bring_back")
    assert event.actor.endswith("(terminal)") and event.reason == "fixed"


def test_a_draft_is_listed_and_discarded_and_nothing_else_is(set_aside, bury):
    draft = replays.draft(ANN, selection=bury(3), reason="later")
    assert f"#{draft.pk} draft  3 jobs matched  later" in run("list")
    assert run("discard", str(draft.pk)) == f"Draft #{draft.pk} is discarded.\n"
    assert not Replay.objects.filter(pk=draft.pk).exists()
    with pytest.raises(CommandError, match="held"):
        run("discard", str(set_aside.pk))
    with pytest.raises(CommandError, match=f"Replay #{draft.pk} not found. Nothing was changed."):
        run("discard", str(draft.pk))


def test_a_desk_without_replays_reports_it(shop):
    assert run("list") == "No unfinished replays and no drafts.\n"
