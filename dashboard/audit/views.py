"""The audit, and the viewer's latest act with its undo, or why it cannot be undone. Reading changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.audit import words as act_words
from dashboard.audit.words import Offer
from dashboard.web import downloads
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from jobs_admin.core.text import representable
from jobs_admin.db import audit, audit_export, audit_position
from jobs_admin.failures import undoing
from jobs_admin.failures.undoing import Done, Undoable
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import AUDITOR, EVERY_SOURCE, OPERATOR

JOBS_SHOWN = 8  # jobs listed of a bulk act


@dataclass(frozen=True, slots=True)
class Line:
    event: AuditEvent
    object_url: str
    before: str
    after: str
    jobs: str = ""  # number of changed jobs, as text
    some_jobs: tuple[int, ...] = ()  # the first of them
    has_more_jobs: bool = False
    undo: Offer | None = None  # for the viewer's own acts that can still be undone


@require_safe
@can(AUDITOR)
def index(request: HttpRequest) -> HttpResponse:
    chosen = _read_filter(request.GET)
    after = request.GET.get("after")
    page = audit.list_events(request.viewer, after=after, **chosen)
    context = {
        "lines": _lines(request, page.rows),
        "page": page,
        "forwarding": audit_position.read() if request.viewer.may(AUDITOR, EVERY_SOURCE) else None,
        "chosen": chosen,
        "is_first": not after,
        "self_url": request.get_full_path(),
        "next_url": f"?{urlencode({**chosen, 'after': page.next})}" if page.next else "",
        "first_url": f"?{urlencode(chosen)}",
    }
    return render_page(request, "redrive/audit/list.html", context, part="events")


@require_POST
@can(AUDITOR)
def export(request: HttpRequest, form: str) -> HttpResponse:
    """Return the filtered audit as a file. A POST, because exports are audited and a GET changes nothing."""
    chosen = _read_filter(request.POST)
    audit_export.note(request.viewer, form, **chosen)
    return downloads.announce(
        downloads.stream(audit_export.stream(request.viewer, form, **chosen), "audit", form), request
    )


def _read_filter(given: Mapping[str, str]) -> dict[str, str]:
    chosen = {name: representable(given.get(name, "").strip())[:120] for name in ("act", "object")}
    return {name: value for name, value in chosen.items() if value}


def _lines(request: HttpRequest, rows: list[AuditEvent]) -> list[Line]:
    acts, back = undoing.undoable_by_event(request.viewer, rows), request.get_full_path()
    lines, offered = [], set()
    for row in rows:
        act = acts.get(row.pk)
        # If an act has several rows, the first on the page offers its undo.
        offer = act_words.offer(act, back) if act and act.handle not in offered else None
        offered |= {act.handle} if act else set()
        ids = (row.after or {}).get("ids", []) if row.act.startswith("failure.") and isinstance(row.after, dict) else []
        lines.append(
            Line(
                row,
                act_words.page_of(row.object),
                _as_json(row.before),
                _as_json(row.after),
                act_words.jobs(len(ids)) if ids else "",
                tuple(ids[:JOBS_SHOWN]),
                len(ids) > JOBS_SHOWN,
                offer,
            )
        )
    return lines


def _as_json(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=1)


@require_safe
@can(OPERATOR)
def undo(request: HttpRequest) -> HttpResponse:
    back = request.GET.get("back", "")[:2_000]  # `links.back` later checks that it is within the desk
    act = undoing.latest(request.viewer)
    context = {
        "offer": act_words.offer(act, back) if isinstance(act, Undoable) else None,
        "final": act_words.final(act) if isinstance(act, Done) else None,
        "list_url": reverse("redrive:failure-list"),
    }
    return render_page(request, "redrive/undo.html", context, part="offer")
