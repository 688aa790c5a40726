"""The palette's entries beside the pages: saved views, and the most likely groups."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard.failures.timeline import short
from dashboard.web import links
from dashboard.web.access import can
from dashboard.web.links import list_url
from dashboard.web.text import part_first
from jobs_admin import policies
from jobs_admin.failures import saved_views
from jobs_admin.groups import group_finder, group_places
from jobs_admin.models.access import VIEWER

MOST_VIEWS = 30
MOST_GROUPS = 20
MOST_POLICIES = 20
MOST_CHARS = 500


@require_safe
@can(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """A part for `redrive/parts/keyboard.html`, asked for when the palette is opened, and as words are typed into it (`q`)."""
    text = request.GET.get("q", "")[:MOST_CHARS]
    words = text.lower().split()
    views = saved_views.listing(request.viewer)
    shown = [view for view in views if all(word in view.name.lower() for word in words)][:MOST_VIEWS]
    found = group_finder.find_groups(request.viewer, text, limit=MOST_GROUPS)
    places = group_places.read_places([row.group for row in found], request.viewer) if found else {}
    named = [one for one in policies.published(request.viewer) if all(word in one.name for word in words)]
    context = {
        "policies": [
            (one.name, one.mode, reverse("redrive:policy-detail", args=[one.name])) for one in named[:MOST_POLICIES]
        ],
        "views": [{"pk": view.pk, "name": view.name, "url": list_url(view.query)} for view in shown],
        "groups": [
            {
                "n": n,
                "title": f"{short(row.group.error_type)} {part_first(row.group.message)[:120]}".strip(),
                "place": places[row.group.pk].words,
                "url": links.group_page(row.group.fingerprint),
                "words": f"{row.group.title} {row.group.culprit}",
                "dead": row.dead,
            }
            for n, row in enumerate(found)
        ],
    }
    return render(request, "redrive/parts/palette.html", context)
