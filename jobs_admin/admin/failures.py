"""Failures and saved views.

Failures are found by Redrive's own search, and replayed and discarded by the same services as on the pages. Saved
views, the viewer's own and shared ones, are created and changed on the failures page.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.paginator import Page, Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html

from jobs_admin import failures
from jobs_admin.admin.records import Records, viewer
from jobs_admin.core import query as language
from jobs_admin.core.query import Query, parse
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.failures import triage
from jobs_admin.models import Failure, FailureCount, SavedView
from jobs_admin.models.access import Viewer
from jobs_admin.rights import view_sight
from jobs_admin.search import scope as scopes


class QualifierFilter(admin.SimpleListFilter):
    """Filter with choices from counters. It does not filter itself: `query_of` adds it to the search."""

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, str]]:
        counted = FailureCount.objects.filter(scopes.visible(viewer(request)), count__gt=0)
        values = counted.order_by(self.parameter_name).values_list(self.parameter_name, flat=True).distinct()[:100]
        return [(value, value) for value in values]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset


def _filter(name: str) -> type[QualifierFilter]:
    return type(f"{name.title()}Filter", (QualifierFilter,), {"title": name, "parameter_name": name})


FILTERED = ("state", "source", "queue", "task")


def query_of(request: HttpRequest) -> Query:
    """Return the search field and the selected filters as one query."""
    chosen = [language.qualifier(name, request.GET[name]) for name in FILTERED if request.GET.get(name)]
    return parse(" ".join([request.GET.get("q", ""), *chosen]).strip(), timezone.now())


class FailurePaginator(Paginator):
    """Pages from the same slices as the failures page, so that their cost does not depend on the number of failures."""

    def __init__(self, rows: QuerySet, per_page: int, viewer: Viewer, query: Query) -> None:
        super().__init__(rows, per_page)
        self.viewer, self.query = viewer, query

    @cached_property
    def count(self) -> int:
        return failures.count_exactly(self.viewer, self.query, failures.EXACT)

    @property
    def num_pages(self) -> int:
        return min(super().num_pages, failures.EXACT // self.per_page)

    def page(self, number: int | str) -> Page:
        number = self.validate_number(number)
        ids = failures.latest_ids(self.viewer, self.query, None, number * self.per_page)
        rows = Failure.objects.filter(pk__in=ids[(number - 1) * self.per_page :]).order_by("-pk")
        return self._get_page(rows.defer("args", "kwargs", "headers"), number, self)


@admin.register(Failure)
class FailureAdmin(Records):
    list_display = ("id", "state", "queue", "task", "error", "tenant", "failed_at")
    list_filter = tuple(_filter(name) for name in FILTERED)
    search_fields = ("message",)  # shows the field; get_search_results does the search
    search_help_text = "Search syntax as on the failures page: words, queue:emails, -error:KeyError, age:<2d …"
    ordering = ("-id",)
    sortable_by = ()
    actions = ("replay", "discard", "readmit")
    fields = (
        "page", "source", "queue", "task", "state", "reason", "kind", "in_group", "error_type", "message", "run", "attempts",
        "max_attempts", "first_job_id", "job_id", "first_failed_at", "failed_at", "received_at", "due_at", "worker", "host",
        "release", "tenant", "priority", "args", "kwargs", "headers",
    )  # fmt: skip
    readonly_fields = ("page", "in_group")

    @admin.display(description="error")
    def error(self, failure: Failure) -> str:
        return f"{failure.error_type}: {failure.message[:120]}"

    @admin.display(description="page")
    def page(self, failure: Failure) -> str:
        return format_html('<a href="{}">View failure</a>', reverse("redrive:failure-detail", args=[failure.pk]))

    @admin.display(description="group")
    def in_group(self, failure: Failure) -> str:
        return failure.group.name if failure.group else "-"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Failure]:
        return Failure.objects.filter(scopes.visible(viewer(request)))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet, search_term: str
    ) -> tuple[QuerySet[Failure], bool]:
        found = failures.find_matching(viewer(request), query_of(request)).order_by("-pk")
        return found.defer("args", "kwargs", "headers"), False

    def get_paginator(self, request: HttpRequest, queryset: QuerySet, per_page: int, *rest: object) -> Paginator:
        return FailurePaginator(queryset, per_page, viewer(request), query_of(request))

    def response_action(self, request: HttpRequest, queryset: QuerySet, **more: object) -> HttpResponse | None:
        # Django's own code raises an error for ids that are not numbers.
        if any(whole_number(pk) is None for pk in request.POST.getlist(ACTION_CHECKBOX_NAME)):
            return HttpResponseBadRequest("A selected row is not a failure. Nothing was changed.")
        return super().response_action(request, queryset, **more)

    @admin.action(description="Replay…", permissions=["operate"])
    def replay(self, request: HttpRequest, chosen: QuerySet) -> HttpResponse | None:
        """Redirect to the preview of the replay, where the person decides; nothing is sent before."""
        scope = _selected_jobs(request)
        if "query" in scope:
            given = {"q": scope["query"]}
        else:
            given = {"selection": ",".join(map(str, scope["selection"]))}
        return HttpResponseRedirect(f"{reverse('redrive:replay-new')}?{urlencode(given)}")

    @admin.action(description="Discard", permissions=["operate"])
    def discard(self, request: HttpRequest, chosen: QuerySet) -> HttpResponse | None:
        return self._act(request, "Discard", triage.discard, "discarded. They can be restored.")

    @admin.action(description="Readmit from quarantine", permissions=["operate"])
    def readmit(self, request: HttpRequest, chosen: QuerySet) -> HttpResponse | None:
        return self._act(request, "Readmit", triage.readmit, "readmitted: they are dead and can be replayed.")

    def _act(
        self, request: HttpRequest, name: str, act: Callable[..., triage.Acted], came_of_it: str
    ) -> HttpResponse | None:
        """Ask for confirmation, then act on the selected failures."""
        scope = _selected_jobs(request)
        if "confirmed" not in request.POST:
            return self._confirm(request, name, scope)
        try:
            done = act(viewer(request), **scope, reason=request.POST.get("reason", ""))
        except Refused as refused:
            self.message_user(request, refused.message, messages.ERROR)
        else:
            self.message_user(request, f"{done.count:,} failures {came_of_it}", messages.SUCCESS)
        return None

    def _confirm(self, request: HttpRequest, act: str, scope: dict[str, Any]) -> HttpResponse:
        if scope.get("query") is not None:
            query = parse(f"{scope['query']}", timezone.now())
            count = failures.count(viewer(request), query)
        else:
            count = failures.Count(len(scope["selection"]))
        context = self.admin_site.each_context(request) | {
            "title": f"{act} {count.text} {'job' if count.number == 1 else 'jobs'}",
            "opts": self.opts,
            "act": act,
            "action": request.POST["action"],
            "count": count.number,
            "reading": language.reading(parse(scope["query"])) if scope.get("query") is not None else "",
            "scope": scope,
            "checkbox": ACTION_CHECKBOX_NAME,
            # Django's admin requires an id; for a complete search one stands for all, and the scope selects the rows.
            "ids": scope.get("selection") or request.POST.getlist(ACTION_CHECKBOX_NAME)[:1],
            "across": scope.get("query") is not None,
        }
        return TemplateResponse(request, "redrive/admin/confirm_failures.html", context)


def _selected_jobs(request: HttpRequest) -> dict[str, Any]:
    """Return the jobs of an action: the search itself if all pages were selected, otherwise the ticked rows.

    A confirmed search is sent back with the absolute times that were shown, never as thousands of ids.
    """
    if request.POST.get("select_across") == "1":
        shown = request.POST.get("query") if "confirmed" in request.POST else None
        now = timezone.now()
        return {"query": shown if shown is not None else _pin_search(query_of(request), now)}
    ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
    # Never empty: for the services an empty selection means the search, and an empty search means everything.
    return {"selection": [pk for pk in map(whole_number, ticked) if pk is not None] or [0]}


def _pin_search(query: Query, now: timezone.datetime) -> str:
    """Return the text of the search with absolute times and default states, so that it is never empty by accident."""
    if query.is_cut:
        return language.format(query) + " " + "x" * language.MAX_CHARS  # too long, so that it is refused as a scope
    text = language.format(language.pin(query, now))
    return text if query.names_state else f"{text} state:{','.join(language.DEFAULT_STATES)}".strip()


@admin.register(SavedView)
class SavedViewAdmin(Records):
    list_display = ("name", "query", "owner", "is_shared", "created_at")
    list_select_related = ("owner",)
    list_filter = ("is_shared",)
    search_fields = ("name", "query")
    ordering = ("-id",)
    fields = ("name", "query", "columns", "owner", "is_shared", "created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[SavedView]:
        return SavedView.objects.filter(Q(owner=request.user) | Q(pk__in=view_sight.readable(viewer(request))))
