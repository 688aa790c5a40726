"""The audit: who did what, and when."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.audit import sweeps
from dashboard.audit import undo as undo_offer
from dashboard.audit.undo import Offer
from dashboard.web.access import can
from dashboard.web.htmx import render_page
from jobs_admin.db import audit
from jobs_admin.failures import undoing
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import ADMIN

JOBS_SHOWN = 8  # of an act on many


@dataclass(frozen=True, slots=True)
class Line:
    event: AuditEvent
    object_url: str
    before: str
    after: str
    jobs: str = ""  # how many it changed, in words
    some_jobs: tuple[int, ...] = ()  # the first of them
    has_more_jobs: bool = False
    undo: Offer | None = None  # where it is one's own, and can still be taken back


@require_safe
@can(ADMIN)
def index(request: HttpRequest) -> HttpResponse:
    chosen = {name: request.GET.get(name, "").strip()[:120] for name in ("act", "object")}
    chosen = {name: value for name, value in chosen.items() if value}
    after = request.GET.get("after")
    page = audit.list_events(request.viewer, after=after, **chosen)
    context = {
        "lines": _lines(request, page.rows),
        "page": page,
        "chosen": chosen,
        "is_first": not after,
        "self_url": request.get_full_path(),
        "next_url": f"?{urlencode({**chosen, 'after': page.next})}" if page.next else "",
        "first_url": f"?{urlencode(chosen)}",
    }
    return render_page(request, "redrive/audit/list.html", context, part="events")


def _lines(request: HttpRequest, rows: list[AuditEvent]) -> list[Line]:
    acts, back = undoing.undoable_by_event(request.viewer, rows), request.get_full_path()
    lines, offered = [], set()
    for row in rows:
        act = acts.get(row.pk)
        # Of an act with many rows the first that is shown offers it.
        offer = undo_offer.offer(act, back) if act and act.handle not in offered else None
        offered |= {act.handle} if act else set()
        ids = (row.after or {}).get("ids", []) if row.act.startswith("failure.") and isinstance(row.after, dict) else []
        lines.append(
            Line(
                row,
                undo_offer.page_of(row.object),
                _as_json(row.before),
                _as_json(row.after),
                sweeps.jobs(len(ids)) if ids else "",
                tuple(ids[:JOBS_SHOWN]),
                len(ids) > JOBS_SHOWN,
                offer,
            )
        )
    return lines


def _as_json(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=1)
