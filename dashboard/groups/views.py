"""Groups: the list, the page of a group, its history, and its grouping with the parts that counted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from dashboard.groups import listing as group_list
from dashboard.groups import page as group_page
from dashboard.web import links, time_range
from dashboard.web.access import can
from dashboard.web.figures import ago
from dashboard.web.htmx import render_page
from dashboard.web.pictures import state
from dashboard.web.text import parted, visible
from dashboard.web.tracebacks import highlighted
from jobs_admin import config, failures, replays
from jobs_admin.core.fingerprint import SPLITS, Rules, explain
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import whole_number
from jobs_admin.db import grouping_rules
from jobs_admin.desk import overview
from jobs_admin.failures import open_by
from jobs_admin.groups import group_finder, group_history
from jobs_admin.groups.group_numbers import days
from jobs_admin.groups.issue_form import create_issue_url
from jobs_admin.models import Failure, Group
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.queues import coverage, rates
from jobs_admin.rights import people


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    if request.GET.get("by") in open_by.FIELDS:
        return _by(request, request.GET["by"])
    viewer, now = request.viewer, timezone.now()
    filters = group_list.filters_from(request.GET)
    me = request.user.get_username()
    page = failures.groups(
        viewer,
        filters.text,
        order=filters.order,
        after=request.GET.get("after"),
        states=filters.states,
        assignee=me if filters.assigned == "me" else filters.assigned,
        now=now,
    )
    may_act = viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    context = {
        "page": page,
        "filters": filters,
        "state_chips": group_list.state_chips(filters, page),
        "people_chips": group_list.people_chips(filters, page),
        "rows": group_list.rows(page.rows, all_dead=page.all_dead, now=now, may_act=may_act),
        "headings": group_list.headings(filters),
        "may_act": may_act,
        "people": people.names(request.viewer) if may_act and not request.htmx else [],
        "self_url": request.get_full_path(),
        "next_url": filters.url(after=page.next) if page.next else "",
        "first_url": filters.url() if request.GET.get("after") else "",
        "open_url": filters.url(state="", assigned=None),
        "all_url": filters.url(state=group_list.ALL, assigned=None),
    }
    return render_page(request, "redrive/groups/list.html", context, part="groups")


def _by(request: HttpRequest, name: str) -> HttpResponse:
    """Show the failures by the values that they affect."""
    now = timezone.now()
    found = open_by.open_by(request.viewer, name, now=now)
    context = {
        "found": found,
        "by": name,
        "lines": group_page.lines(found, name, now),
        "capped": f"Counts cover the latest {found.open:,} open failures; some {name}s may be missing."
        if found.counted_over
        else "",
        "title": {"queue": "Queue", "tenant": "Tenant", "release": "Release"}[name],
        "self_url": f"{reverse('redrive:group-list')}?by={name}",
    }
    return render_page(request, "redrive/groups/by.html", context, part="by")


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, fingerprint: str) -> HttpResponse:
    viewer, now = request.viewer, timezone.now()
    try:
        found = failures.group(viewer, fingerprint, example=_example(request), now=now)
    except NotFound:
        if (parts := _parts(request, fingerprint, now)) is None:
            raise
        return parts
    group, shown = found.group, found.representative
    name = group.fingerprint
    over = time_range.chosen(request, group_page.RANGES)
    is_days = over == group_page.DAYS
    counts = days(viewer, group, now=now) if is_days else found.trend
    may_act = viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    parameters = {time_range.PARAMETER: over, "example": _example(request)}
    context = {
        "found": found,
        "rate_window": rates.WINDOW,
        "rate_minutes": rates.OVER_MIN,
        "has_ended": bool(found.per_minute) and not rates.is_failing(group.last_seen, found.per_minute, now),
        "group": group,
        "standing": group_page.standing(group, now),
        "states": group_page.states(found.jobs_by_state, name),
        "dead_url": links.failures_of(group=name, state="dead"),
        "failures_url": links.failures_of(group=name),
        **_replay(request, found, now),
        "automate_url": links.automate(shown.source, f"group:{name}") if shown and may_act else "",
        "policy_url": links.policy_of(source=shown.source, queue=shown.queue, task=shown.task) if shown else "",
        "spreads": group_page.spreads(found),
        "trend": group_page.trend(counts, now, is_days=is_days),
        "time_range": None if found.is_partial else time_range.picker(request, group_page.RANGES, over),
        "shown": shown,
        "shown_url": reverse("redrive:failure-detail", args=[shown.pk]) if shown else "",
        "older_url": group_page.page_url(name, **parameters | {"example": found.older}) if found.older else "",
        "newer_url": group_page.page_url(name, **parameters | {"example": found.newer}) if found.newer else "",
        "trace": group_page.trace(shown),
        "may_act": may_act,
        "people": people.names(request.viewer) if may_act else [],
        "acts_digest": group_page.digest_of(group.state, group.assignee_id),
        "note_digest": group_page.digest_of(group.note, group.runbook_url, group.issue_url, group.dependency),
        "create_issue_url": create_issue_url(found, config.page_url(links.group_page(name))),
        "story_url": reverse("redrive:group-story", args=[name]),
        "why_url": reverse("redrive:group-why", args=[name])
        + (f"?example={_example(request)}" if _example(request) else ""),
        "self_url": group_page.page_url(name, **parameters),
    }
    return render_page(request, "redrive/groups/detail.html", context, part="group")


def _replay(request: HttpRequest, found: failures.GroupDetail, now: datetime) -> dict[str, Any]:
    """Return the offer to replay the group's dead jobs, and why some or all of them cannot be replayed."""
    viewer, name = request.viewer, found.group.fingerprint
    if not found.dead or not viewer.may_anywhere(OPERATOR) or config.is_read_only():
        return {}
    query = links.query_for(group=found.group.name, state="dead")
    ready = replays.read_ready(viewer, query, now)
    blocked = found.dead - ready.count if ready.is_exact else 0
    shown = found.representative
    source = overview.source(viewer, shown.source, now) if shown and not ready.count else None
    return {
        "ready": ready,
        "replay_url": links.replay_of(group=name) if ready.count else "",
        "blocked": blocked,
        "why_blocked": (source.why_no_replay if source else "") or (f"{ready.reason}." if ready.reason else ""),
        "guard_snippet": coverage.snippet(shown.source) if source and source.why_no_replay == overview.SEEN else "",
    }


def _parts(request: HttpRequest, fingerprint: str, now: datetime) -> HttpResponse | None:
    """Redirect to the parts of a group that was split."""
    split = group_history.parts_of(request.viewer, fingerprint)
    if split is None:
        return None
    by, names = split
    query = f"group:{','.join(names)}"
    page = failures.groups(request.viewer, query, order="dead", now=now)
    context = {
        "fingerprint": fingerprint,
        "by": by,
        "count": page.count,
        "rows": group_list.rows(page.rows, now=now),
        "list_url": f"{reverse('redrive:group-list')}?{urlencode({'q': query, 'state': group_list.ALL})}",
        "self_url": links.group_page(fingerprint),
    }
    return render_page(request, "redrive/groups/parts.html", context, part="parts")


@require_safe
@can(VIEWER)
def story(request: HttpRequest, fingerprint: str) -> HttpResponse:
    """Show the history of a group and similar groups: below the fold of its page, and as a separate page."""
    viewer, now = request.viewer, timezone.now()
    group = get_group(request, fingerprint)
    events, is_more = group_history.read_history(viewer, group)
    context = {
        "group": group,
        "events": group_page.story(events, group, now),
        "is_more": is_more,
        "most": group_history.MOST_EVENTS,
        "alike": [
            {
                "url": links.group_page(one.fingerprint),
                "error": one.error_type,
                "message": one.message,
                "state": state(one.state),
                "why": {"place": "same place in the code", "type": "same type"}[why],
                "last_seen": ago(one.last_seen, now),
            }
            for one, why in group_history.find_similar(viewer, group)
        ],
    }
    return render_page(request, "redrive/groups/story.html", context, part="story")


@require_safe
@can(VIEWER)
def why(request: HttpRequest, fingerprint: str) -> HttpResponse:
    """Show why these failures are one group, and acts that change the grouping."""
    return why_page(request, get_group(request, fingerprint))


def why_page(
    request: HttpRequest,
    group: Group,
    *,
    rule_fields: dict[str, Any] | None = None,
    refused: Refused | None = None,
    status: int = 200,
) -> HttpResponse:
    """Show the grouping. `refused`: why `rule_fields`, with which the form stays filled in, were refused."""
    viewer, given = request.viewer, rule_fields or {}
    shown = failures.group(viewer, group.fingerprint, example=_example(request)).representative
    may_act = viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    alike = [one for one, _ in group_history.find_similar(viewer, group)] if may_act else []
    of_rules = sorted(group_history.rules(viewer, group), key=lambda event: event.at, reverse=True)
    places = group_finder.read_places(alike, viewer) if alike else {}
    chosen = [name for name in given.get("groups", ()) if name != group.fingerprint]
    context = {
        "group": group,
        "shown": shown,
        "shown_url": reverse("redrive:failure-detail", args=[shown.pk]) if shown else "",
        "why": _explain(shown, grouping_rules.current()) if shown else None,
        "rules": group_page.story(of_rules, group, timezone.now()),
        "splits": SPLITS,
        "alike": [(one, *parted(one.message), places[one.pk]) for one in alike],
        "may_act": may_act,
        "ticked": chosen,
        "typed": ", ".join(name for name in chosen if name not in {one.fingerprint for one in alike}),
        "by": given.get("by", ""),
        "refused": refused.message if refused else "",
        "refused_at": given.get("kind", ""),
    }
    return render_page(request, "redrive/groups/why.html", context, part="why", status=status)


def get_group(request: HttpRequest, fingerprint: str) -> Group:
    return failures.group_named(request.viewer, fingerprint)


def _example(request: HttpRequest) -> int | None:
    return whole_number(request.GET.get("example"))


MOST_FRAMES = 100
MOST_REPLACED = 30


@dataclass(frozen=True, slots=True)
class WhyFrame:
    place: str  # location that a rule may ignore
    line: int
    code: SafeString
    counts: bool
    why_not: str  # in words
    may_ignore: bool


@dataclass(frozen=True, slots=True)
class Why:
    type: str
    is_wrapped: bool
    causes: tuple[tuple[str, str], ...]
    frames: list[WhyFrame]
    left_out: int  # frames that are not listed: the outermost
    message: SafeString  # with variable parts marked
    replaced: list[tuple[str, str]]  # (placeholder, text)
    task: str  # "" if it does not count
    acted: tuple[str, ...]  # rules that affected this failure, as text


_WHY_NOT = {
    "library": "library",
    "rule": "ignored by a rule",
    "passed": "only calls the next frame",
    "": "repeated, or part of an earlier error",
}


def _explain(failure: Failure, rules: Rules) -> Why:
    trace = failure.traceback.text if failure.traceback else ""
    facts = {name: getattr(failure, name) for name in SPLITS if name != "message"}
    explained = explain(failure.error_type, failure.message, trace, rules, facts)
    frames = [
        WhyFrame(
            one.place,
            one.frame.line,
            highlighted(one.frame.code) if one.counts else SafeString(""),
            one.counts,
            "" if one.counts else _WHY_NOT.get(one.why_not, one.why_not),
            one.counts and one.frame.is_application,
        )
        for one in explained.frames[-MOST_FRAMES:]
    ]
    left_out = len(explained.frames) - len(frames)
    replaced = list(explained.replaced[:MOST_REPLACED])
    return Why(
        explained.type,
        explained.is_wrapped,
        explained.causes,
        frames,
        left_out,
        marked(explained.message),
        replaced,
        explained.task,
        explained.acted,
    )


_PLACE = re.compile(r"(<[a-z]{2,10}>)")


def marked(message: str) -> SafeString:
    """Return the message as it is grouped, with the variable parts marked."""
    pieces = _PLACE.split(message)
    return format_html_join(
        "",
        "{}",
        (
            (format_html('<span class="varies">{}</span>', piece) if n % 2 else visible(piece),)
            for n, piece in enumerate(pieces)
        ),
    )
