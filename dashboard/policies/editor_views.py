"""Editor of retry policies: the effect of an edit is shown while typing; it takes effect when published."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard.policies import changes as policy_changes
from dashboard.policies import fields as policy_fields
from dashboard.policies import listing as policy_list
from dashboard.policies import outlook as policy_outlook
from dashboard.policies import words as policy_words
from dashboard.policies.forms import AT, SPANS_OF_EXPIRY, Draft, merge, nearest_policy, problems
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import policies
from jobs_admin.core import policy as core
from jobs_admin.core.matching import chosen
from jobs_admin.core.policy.presets import PRESETS
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import whole_number
from jobs_admin.failures import completing
from jobs_admin.lint import linting
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import OPERATOR, VIEWER

NEW = "new"  # in place of the name in a URL
MOST_REASON = 500
MOST_SUGGESTIONS = 100
JUDGED = timedelta(days=7)  # age of the failures that are evaluated


@dataclass(slots=True)
class Edit:
    """State of an edit."""

    draft: Draft
    current: PolicyVersion | None = None  # the version in force under its name
    begun: int = 0  # version on which the edit is based; 0: none
    name: str = ""  # "" while new
    jobs: int = policy_outlook.DEFAULT_JOBS
    reason: str = ""
    stale: dict[str, Any] = field(default_factory=dict)


@require_safe
@can(VIEWER)
def new(request: HttpRequest) -> HttpResponse:
    """Show a new policy from a preset, or for the task, queue and source in a link."""
    begins = request.GET.get("preset", "")
    preset = PRESETS.get(begins) or PRESETS["standard"]
    match = {name: given for name in ("task", "queue", "source") if (given := request.GET.get(name, "")[:200])}
    draft = Draft.from_document({**preset.document, "match": match})
    draft.texts["name"] = policy_words.name_for(match.get("task", ""), preset.name)
    # A policy without a match names no job yet for the lint to check.
    is_empty = not begins and not match
    return page(
        request, Edit(draft), preset=begins or ("standard" if match else ""), given=match, is_linted=not is_empty
    )


@require_safe
@can(VIEWER)
def of_job(request: HttpRequest) -> HttpResponse:
    """Redirect to the policy for jobs of a source, queue and task; without one, to a new policy for the task."""
    source, queue, task = (request.GET.get(name, "")[:200] for name in ("source", "queue", "task"))
    decides = chosen(policies.readable(policies.published(request.viewer)), source, queue, task)
    if decides:
        return go(request, reverse("redrive:policy-detail", args=[decides.name]))
    given = {name: text for name, text in (("task", task), ("source", source)) if text}
    return go(request, f"{reverse('redrive:policy-new')}?{urlencode(given)}")


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, name: str) -> HttpResponse:
    """Show the version in force in the editor; `from` loads another version's document, `mode` presets the mode."""
    try:
        current = policies.get(request.viewer, name)
    except NotFound:
        return _not_in_force(request, name)
    if request.htmx and not request.htmx.history_restore_request:
        return render_page(request, "redrive/policies/edit.html", _status(request, current), part="in_force")
    document = current.document
    if number := whole_number(request.GET.get("from")):
        # The end of an old version does not apply to a new one.
        document = _version(request, name, number).document | {"expires_at": None}
    draft = Draft.from_document(document)
    if request.GET.get("mode") in core.MODES:
        draft.texts["mode"] = request.GET["mode"]
    return page(request, Edit(draft, current, current.version, name))


def _not_in_force(request: HttpRequest, name: str) -> HttpResponse:
    """Redirect to the versions of a withdrawn policy. Raises NotFound for a name that never existed."""
    policies.versions(request.viewer, name, limit=1)
    return go(request, reverse("redrive:policy-versions", args=[name]))


@require_POST
@can(VIEWER)
def preview(request: HttpRequest, name: str) -> HttpResponse:
    """Preview the draft. Nothing is changed or stored."""
    edit = _edit(request, name)
    if request.POST.get("step") == "merge" and edit.current and (was := whole_number(request.POST.get("was"))):
        before = _version(request, name, was).document
        draft = Draft.from_document(merge(before, edit.current.document, edit.draft.document(timezone.now())))
        edit.draft = draft
    return page(request, edit)


@require_POST
@can(VIEWER)
def backtest(request: HttpRequest, name: str) -> HttpResponse:
    """Run the draft on stored failures. Nothing is changed or stored."""
    return page(request, _edit(request, name), part="backtest", is_judged=True)


@require_POST
@can(OPERATOR)
def publish(request: HttpRequest, name: str) -> HttpResponse:
    edit = _edit(request, name)
    named = edit.name or edit.draft.texts.get("name", "")
    document = edit.draft.document(timezone.now()) | {"name": named}
    try:
        made = policies.publish(
            request.viewer, named, document, expected_version=edit.begun or None, reason=edit.reason
        )
    except Refused as refused:
        if refused.code == "stale" and edit.name:
            return _stale(request, edit, refused)
        if refused.code == "stale":
            taken = f"{named} is already in force. Edit that policy, or choose another name."
            edit.draft.refuse([core.Problem("name", taken)])
            return page(request, edit, status=409)
        edit.draft.refuse(problems(refused))
        return page(request, edit, status=403 if refused.code in {"forbidden", "read_only"} else 422)
    if edit.begun and made.version == edit.begun:
        add_toast(request, f"No changes from v{made.version}, which stays {policy_words.standing(made)}.", level="info")
    else:
        _announce_published(request, made, edit.current)
    return go(request, reverse("redrive:policy-detail", args=[made.name]))


def _announce_published(request: HttpRequest, made: PolicyVersion, before: PolicyVersion | None) -> None:
    what = "Decisions are applied" if made.mode == core.ENFORCE else "Decisions are recorded, not applied"
    undo = (
        reverse("redrive:policy-put-back", args=[made.name, before.version])
        if before
        else reverse("redrive:policy-withdraw", args=[made.name])
    )
    add_toast(
        request,
        f"Published {made.name} v{made.version}. {what}. Workers receive the version within two seconds.",
        undo=undo,
        undo_fields=[("begun", made.version), ("reason", f"Version {made.version} was undone.")],
    )


def _stale(request: HttpRequest, edit: Edit, stale: Refused) -> HttpResponse:
    """Show the edit on top of the version now in force, with the changes that others published meanwhile."""
    was, current = edit.begun, stale.details["current"]
    now = policies.version(request.viewer, edit.name, current["version"]) if current else None
    edit.stale = {
        "message": stale.message,
        "was": was,
        "lines": policy_changes.lines(stale.details["difference"], "was", "now", "yours"),
        "now": now.version if now else 0,
        "standing": policy_words.standing(now) if now else "",
        "can_merge": bool(was and now),
    }
    edit.current, edit.begun = now, now.version if now else 0
    return page(request, edit, status=409)


def _edit(request: HttpRequest, name: str) -> Edit:
    given: QueryDict = request.POST
    edit = Edit(Draft.from_form(given), name="" if name == NEW else name, begun=whole_number(given.get("begun")) or 0)
    edit.reason = given.get("reason", "").strip()[:MOST_REASON]
    edit.jobs = min(max(whole_number(given.get("jobs")) or policy_outlook.DEFAULT_JOBS, 1), policy_outlook.MOST_JOBS)
    if edit.name:
        edit.draft.texts["name"] = name
        try:
            edit.current = policies.get(request.viewer, name)
        except NotFound:
            if not edit.begun:
                raise
    return edit


def _version(request: HttpRequest, name: str, number: int) -> PolicyVersion:
    return policies.version(request.viewer, name, number)


def page(
    request: HttpRequest,
    edit: Edit,
    *,
    part: str = "outlook",
    status: int = 200,
    is_judged: bool = False,
    is_linted: bool = True,
    preset: str = "",
    given: dict[str, str] | None = None,
) -> HttpResponse:
    viewer, now, draft = request.viewer, timezone.now(), edit.draft
    was_refused = bool(draft.errors)
    in_force_document = edit.current.document if edit.current else {}
    policy, document, is_complete = nearest_policy(
        draft, edit.name or "draft", viewer, now, in_force_document=in_force_document, is_reported=was_refused
    )
    current = next(iter(policies.readable([edit.current])), None) if edit.current else None
    usual = core.document(policy)
    address = edit.name or NEW
    name = f"v{edit.current.version}, {policy_words.standing(edit.current)}" if edit.current else ""
    findings = linting.findings_of(viewer, policy, now) if is_linted else []
    context = {
        "edit": edit,
        "draft": draft,
        "scope": policy_fields.scope(draft, usual),
        "name_field": policy_fields.field_of(draft, usual, "name"),
        "delays": policy_fields.delays(draft, usual),
        "folds": policy_fields.folds(draft, usual),
        "retry_after_refused": draft.errors.get("retry_after.respect", []),
        "retry_after": policy_fields.retry_after(draft, usual),
        "breaker": policy_fields.breaker(draft, usual),
        "breaker_refused": draft.errors.get("breaker", []),
        "file_lost_refused": draft.errors.get("file_lost", []),
        "rows": policy_fields.rows(draft),
        "class_words": policy_fields.CLASS_WORDS.items(),
        "warnings": linting.attempts_given(viewer, policy, now) if is_linted else [],
        "outlook": policy_outlook.outlook(policy, current, edit.jobs, findings, name=name),
        **_unsaved(edit, document),
        "is_refused": bool(draft.errors),
        "is_complete": is_complete,
        "slots": policy_fields.slots(draft, is_new=not edit.name) if request.htmx else [],
        "unplaced": draft.errors.get("", []),
        "mode": policy.mode,
        "spans": _spans(draft),
        "suggestions": [] if request.htmx else _suggestions(request),
        "at": AT,
        "may_publish": policies.may_publish(viewer, policy.match.source),
        "presets": policy_list.presets(preset, given or {}) if not edit.name and request.method == "GET" else [],
        "next_version": _next_version(request, edit.name) if edit.name else 1,
        "backtest": policy_outlook.outcome(policies.backtest(viewer, policy, now - JUDGED, now)) if is_judged else None,
        "backtest_url": reverse("redrive:policy-backtest", args=[address]),
        "preset": preset,
        "preview_url": reverse("redrive:policy-preview", args=[address]),
        "publish_url": reverse("redrive:policy-publish", args=[address]),
        "self_url": reverse("redrive:policy-detail", args=[edit.name]) if edit.name else reverse("redrive:policy-new"),
    }
    if edit.current:
        context |= _status(request, edit.current)
    return render_page(request, "redrive/policies/edit.html", context, part=part, status=status)


def _status(request: HttpRequest, current: PolicyVersion) -> dict[str, Any]:
    """Return the status line of the version in force, which refreshes itself."""
    workers = policies.in_force(request.viewer, [current])
    left = policies.budget(request.viewer, current)
    match = core.Match(current.match_source, current.match_queue, current.match_task)
    return {
        "current": current,
        "fleet": policy_words.fleet(workers.get(current.name), current.version),
        "matches": policy_words.matches(match),
        "budget": policy_words.budget_left(left) if left else "",
        "observed": policy_words.observed(policies.observed(request.viewer, current))
        if current.mode == core.OBSERVE
        else None,
        "decided_url": links.failures_of(policy=str(current), state="any"),
        "self_url": reverse("redrive:policy-detail", args=[current.name]),
    }


def _next_version(request: HttpRequest, name: str) -> int:
    """Return the number of the next version: one more than the latest that the viewer sees."""
    try:
        return policies.versions(request.viewer, name, limit=1).rows[0].version + 1
    except NotFound:
        return 1


def _changes(edit: Edit, document: dict[str, Any]) -> list[policy_changes.Line]:
    """Return the changes that publishing would make; empty if nothing is in force."""
    if edit.current is None:
        return []
    return policy_changes.lines(policies.difference(edit.current.document, document), "before", "after")


def _unsaved(edit: Edit, document: dict[str, Any]) -> dict[str, Any]:
    """Return the context of the changes, and of the bar that counts them."""
    changes = _changes(edit, document)
    name = edit.name
    back = reverse("redrive:policy-detail", args=[name]) if name else reverse("redrive:policy-list")
    return {
        "changed": changes,
        "changes": len(changes),
        "unsaved": "unpublished",
        "is_new": not name,
        "discard_url": back,
    }


def _suggestions(request: HttpRequest) -> list[tuple[str, list[str]]]:
    """Return values of stored failures, offered as completions of the inputs."""
    return [
        (name, [one.text for one in islice(completing.values(request.viewer, name, ""), MOST_SUGGESTIONS)])
        for name in policy_fields.SUGGESTED.values()
    ]


def _spans(draft: Draft) -> list[tuple[str, str, bool]]:
    words = {"": "never", "1h": "in 1 hour", "4h": "in 4 hours", "1d": "in 1 day", "7d": "in 7 days", AT: "at a time …"}
    assert words.keys() == {"", *SPANS_OF_EXPIRY, AT}
    return [(value, text, value == draft.expires) for value, text in words.items()]
