"""Review, approval and rejection of a replay in Slack, with the rights that the linked account has at that moment."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import datetime

from jobs_admin import config
from jobs_admin.core import query as language
from jobs_admin.core.pacing.text import pace_text
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import marked
from jobs_admin.db.authorizing import may_write, note
from jobs_admin.models import AuditEvent, Replay
from jobs_admin.models.access import OPERATOR, Viewer, viewer_of
from jobs_admin.models.replay import ReplayState
from jobs_admin.notices import slack
from jobs_admin.notices.slack import Press
from jobs_admin.replays import acts, drafting, reading, rights, spread
from jobs_admin.replays.options import Options
from jobs_admin.rights import second_factor, slack_links

_LABELS = {
    "attempts": "Attempts of each job",
    "to_queue": "Target queue",
    "same_job_id": "Original job id",
    "patch": "Changed arguments of every job",
    "accept": "Accepted although excluded otherwise",
}


def press(pressed: Press, now: datetime) -> bool:
    """Carry out a press and queue its answer. Return False, without any act, if Redrive did not give this button."""
    found = slack.find_message(pressed)
    if found is None:
        return False
    number = int(found.message.notice.body["replay"])
    dangerous = list(found.message.notice.body.get("dangerous_tasks", ()))
    try:
        if found.is_expired:
            raise Refused(
                "expired", "You reviewed this replay more than five minutes ago. Nothing was changed. Review it again:"
            )
        viewer = _read_viewer(pressed, number, found.message.notice.source)
        replay = _find(viewer, number)
        if pressed.action == slack.REVIEW:
            _must_review(viewer, replay)
        else:
            rights.must_approve(viewer, replay)
        lines, digest = _review(viewer, replay, dangerous)
        if pressed.action == slack.REVIEW:
            slack.answer_review(pressed, found.message, lines, digest, now)
            return True
        if pressed.action == slack.APPROVE:
            shown = found.shown
            drafting.approve(viewer, replay, now=now, is_as_shown=lambda row: _digest(row, dangerous) == shown)
        else:
            acts.cancel(viewer, replay, only_unapproved=True)
    except Refused as refused:
        text = f"{refused.message} {config.page_at(f'replays/{number}/')}"
        slack.answer(pressed, found.message, text, now, is_public=False)
        return True
    done = "approved" if pressed.action == slack.APPROVE else "rejected"
    text = f"Replay #{number} is {done} by {viewer.name} through Slack."
    slack.answer(pressed, found.message, text, now, is_public=True)
    return True


def _read_viewer(pressed: Press, number: int, source: str) -> Viewer:
    """Return the linked person. Raises Refused, recorded in the audit, for anyone else or if the page must be used."""
    user = slack_links.find_user(pressed.team, pressed.member)
    if user is None:
        viewer = Viewer(f"Slack user {pressed.member} of {pressed.team}", through="Slack")
        why = "Your Slack user is not linked to a Redrive account."
        to_do = f"Link your Slack user on {config.page_at('account/')}, or open the replay:"
    else:
        viewer = replace(viewer_of(user), through="Slack")
        # A press proves no more than the password did when the link was made.
        if second_factor.is_password_enough(user):
            return viewer
        why = "Your account needs more than a password to log in, which Slack cannot ask for."
        to_do = "Open the replay:"
    about = {"act": "replay.approve", "object": f"replay:{number}"}
    if not AuditEvent.objects.filter(**about, actor=viewer.name, allowed=False, reason__endswith=why).exists():
        note(viewer, **about, message=why, sources=[source])  # once, however often they press
    raise Refused("forbidden", f"{why} Nothing was changed. {to_do}")


def _find(viewer: Viewer, number: int) -> Replay:
    try:
        return reading.find(viewer, number)
    except Replay.DoesNotExist as error:
        raise Refused("not_found", "No such replay, or you cannot view it. Nothing was changed.") from error


def _must_review(viewer: Viewer, replay: Replay) -> None:
    """Raise Refused unless the viewer can be the second person. Not recorded: a review acts on nothing."""
    if config.is_read_only():
        raise Refused("read_only", config.READ_ONLY)
    sources = rights.sources_of(replay)
    if not all(may_write(viewer, OPERATOR, source) for source in sources):
        raise Refused(
            "forbidden", "Approving this replay needs the role operator on all its sources. Nothing was changed."
        )
    if why := rights.approver_refusal(viewer, replay, sources):
        raise Refused("forbidden", f"{why} Nothing was changed.")


def _review(viewer: Viewer, replay: Replay, dangerous: list[str]) -> tuple[list[str], str]:
    """Return everything that decides what an approval does, one line each, and its digest.

    Raises Refused if the replay does not await approval, or if a message in Slack cannot show all of it.
    """
    if replay.state != ReplayState.AWAITING_APPROVAL:
        raise rights.wrong_state(replay, "approved")
    content = spread.spread_of_frozen(viewer, replay)
    contents = [
        ("Sources", content.by_source),
        ("Queues", content.by_queue),
        ("Tasks", content.by_task),
        ("Errors", content.by_group),
        ("Tenants", content.by_tenant),
    ]
    facts: list[tuple[str, object]] = [
        (f"Replay #{replay.pk}", "1 job" if replay.total == 1 else f"{replay.total:,} jobs"),
        ("Approval", replay.approval_because),
        ("Tasks that need approval", ", ".join(map(_quoted, dangerous))),
        ("Requested by", replay.actor),
        ("Reason", replay.reason),
        ("Scope", _scope(replay)),
        *((name, ", ".join(f"{_quoted(value)} × {count:,}" for value, count in found)) for name, found in contents),
        ("Excluded groups", len(replay.set_aside)),
        ("Pace", pace_text(replay.pace)),
        ("Pace, all parts", replay.pace),
        *((_LABELS.get(name, name), value) for name, value in Options.from_replay(replay).as_dict().items()),
        ("Changed arguments", replay.edit),
    ]
    lines = [f"{name}: {_value(value)}" for name, value in facts if value]
    # Fewer jobs are counted if they were sampled, or deleted since.
    if (
        content.replayable != replay.total
        or max(len(found) for _, found in contents) >= spread.LISTED
        or not slack.fits(lines)
    ):
        why = "Slack cannot show this replay completely. Nothing was changed. Open the replay:"
        raise Refused("too_large", why)
    return lines, _digest(replay, dangerous)


def _scope(replay: Replay) -> str:
    if replay.selection:
        return "selected by hand"
    return f"{language.reading(language.parse(replay.query))} ({replay.query})" if replay.query else "all dead jobs"


def _quoted(name: str) -> str:
    """Return a name that cannot pass for several."""
    return json.dumps(name, ensure_ascii=False)


def _value(value: object) -> str:
    """Return a value on one line, with all its characters visible, which cannot pass for another line."""
    return marked(" ".join(value.split()) if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _digest(replay: Replay, dangerous: list[str]) -> str:
    """Return the digest of what an approver decides on: a replay that now differs is not approved by it."""
    names = ("query", "selection", "total", "pace", "edit", "set_aside", "approval_because", "reason", "actor")
    shown = {name: getattr(replay, name) for name in names} | {"options": Options.from_replay(replay).as_dict()}
    return hashlib.sha256(json.dumps([shown, dangerous], sort_keys=True, default=str).encode()).hexdigest()
