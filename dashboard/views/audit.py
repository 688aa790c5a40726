"""Who did what?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from dashboard import links
from dashboard.access import can
from dashboard.htmx import render_page
from jobs_admin import audit
from jobs_admin.models import AuditEvent
from jobs_admin.models.access import ADMIN


@dataclass(frozen=True, slots=True)
class Line:
    event: AuditEvent
    object_url: str
    before: str
    after: str


@require_GET
@can(ADMIN)
def index(request: HttpRequest) -> HttpResponse:
    chosen = {name: request.GET.get(name, "").strip()[:120] for name in ("act", "object")}
    chosen = {name: value for name, value in chosen.items() if value}
    after = request.GET.get("after")
    page = audit.listing(request.viewer, after=after, **chosen)
    context = {
        "lines": [Line(e, _where(e.object), _as_json(e.before), _as_json(e.after)) for e in page.rows],
        "page": page,
        "chosen": chosen,
        "is_first": not after,
        "next_url": f"?{urlencode({**chosen, 'after': page.next})}" if page.next else "",
        "first_url": f"?{urlencode(chosen)}",
    }
    return render_page(request, "audit/list.html", context, part="events")


def _where(name: str) -> str:
    """The page of what an act was done to; "" for what has none."""
    kind, _, key = name.partition(":")
    if kind in {"failure", "replay"} and key.isascii() and key.isdigit() and len(key) < 19:
        return reverse(f"{kind}-detail", args=[int(key)])
    return links.group_page(key) if kind == "group" and key and "/" not in key else ""


def _as_json(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=1)
