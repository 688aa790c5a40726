"""Groups: the list, the page of one, its history and its grouping."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.groups import breakdown as group_by
from dashboard.groups import explanation as group_why
from dashboard.groups import listing as group_list
from dashboard.groups import page as group_page
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.figures import ago
from dashboard.web.htmx import render_page
from dashboard.web.pictures import state
from dashboard.web.text import parted
from jobs_admin import config, failures
from jobs_admin.core.fingerprint import SPLITS
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import whole_number
from jobs_admin.db import grouping_rules
from jobs_admin.failures import open_by
from jobs_admin.groups import group_history, group_places
from jobs_admin.groups.group_numbers import days
from jobs_admin.models import Group
from jobs_admin.models.access import OPERATOR, VIEWER
from jobs_admin.queues import rates
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
    """The same failures, by whom they hit."""
    now = timezone.now()
    found = open_by.open_by(request.viewer, name, now=now)
    context = {
        "found": found,
        "by": name,
        "lines": group_by.lines(found, name, now),
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
    is_days = request.GET.get("trend") == group_page.DAYS
    counts = days(viewer, group, now=now) if is_days else found.trend
    may_act = viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    parameters = {"trend": group_page.DAYS if is_days else "", "example": _example(request)}
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
        "replay_url": links.replay_of(group=name) if viewer.may_anywhere(OPERATOR) and found.dead else "",
        "policy_url": links.policy_of(source=shown.source, queue=shown.queue, task=shown.task) if shown else "",
        "spreads": group_page.spreads(found),
        "trend": group_page.trend(
            counts,
            now,
            is_days=is_days,
            urls=tuple(group_page.page_url(name, **parameters | {"trend": over}) for over in ("", group_page.DAYS)),
        ),
        "shown": shown,
        "shown_url": reverse("redrive:failure-detail", args=[shown.pk]) if shown else "",
        "older_url": group_page.page_url(name, **parameters | {"example": found.older}) if found.older else "",
        "newer_url": group_page.page_url(name, **parameters | {"example": found.newer}) if found.newer else "",
        "trace": group_page.trace(shown),
        "may_act": may_act,
        "people": people.names(request.viewer) if may_act else [],
        "acts_digest": group_page.digest_of(group.state, group.assignee_id),
        "note_digest": group_page.digest_of(group.note, group.runbook_url),
        "story_url": reverse("redrive:group-story", args=[name]),
        "why_url": reverse("redrive:group-why", args=[name])
        + (f"?example={_example(request)}" if _example(request) else ""),
        "self_url": group_page.page_url(name, **parameters),
    }
    return render_page(request, "redrive/groups/detail.html", context, part="group")


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
    """Show the history of a group and similar ones: below the fold of its page, and as a page of its own."""
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
    """Show why these failures are one group, and the acts that change that."""
    return why_page(request, get_group(request, fingerprint))


def why_page(
    request: HttpRequest,
    group: Group,
    *,
    rule_fields: dict[str, Any] | None = None,
    refused: Refused | None = None,
    status: int = 200,
) -> HttpResponse:
    """Show the grouping. `refused`: why the `rule_fields`, whose form stays filled in, was refused."""
    viewer, given = request.viewer, rule_fields or {}
    shown = failures.group(viewer, group.fingerprint, example=_example(request)).representative
    may_act = viewer.may_anywhere(OPERATOR) and not config.is_read_only()
    alike = [one for one, _ in group_history.find_similar(viewer, group)] if may_act else []
    of_rules = sorted(group_history.rules(viewer, group), key=lambda event: event.at, reverse=True)
    places = group_places.read_places(alike, viewer) if alike else {}
    chosen = [name for name in given.get("groups", ()) if name != group.fingerprint]
    context = {
        "group": group,
        "shown": shown,
        "shown_url": reverse("redrive:failure-detail", args=[shown.pk]) if shown else "",
        "why": group_why.why(shown, grouping_rules.current()) if shown else None,
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
