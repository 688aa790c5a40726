"""Replays, read-only: they are created and steered on their pages.

Also the action *Replay…* on the task results of `django-tasks-db`, in a project that has both.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html

from jobs_admin.admin.records import Records, viewer
from jobs_admin.models import Failure, Replay, Source
from jobs_admin.rights import replay_sight
from jobs_admin.search import scope as scopes

_MOST = 200  # ids in a URL


@admin.register(Replay)
class ReplayAdmin(Records):
    list_display = ("id", "state", "query", "total", "succeeded", "failed_again", "actor", "approver", "created_at")
    list_filter = ("state",)
    ordering = ("-id",)
    exclude = (
        "sender",
        "sender_until",
        "snapshot",
        "edit",
        "controller",
        "key",
        # Groups of any source: the replay's page shows the visible ones.
        "set_aside",
        "without_groups",
    )
    readonly_fields = ("page",)

    @admin.display(description="page")
    def page(self, replay: Replay) -> str:
        return format_html('<a href="{}">View replay</a>', reverse("redrive:replay-detail", args=[replay.pk]))

    def get_changelist(self, request: HttpRequest, **more: Any) -> type[ChangeList]:
        class Restricted(ChangeList):
            def get_results(self, request: HttpRequest) -> None:
                super().get_results(request)
                self.result_list = list(self.result_list)
                replay_sight.restrict(viewer(request), self.result_list)

        return Restricted

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Replay | None:
        replay = super().get_object(request, object_id, from_field)
        if replay is not None:
            replay_sight.restrict(viewer(request), [replay])
        return replay

    def get_queryset(self, request: HttpRequest) -> QuerySet[Replay]:
        return replay_sight.visible(viewer(request))


@admin.action(description="Replay…")
def replay(results: admin.ModelAdmin, request: HttpRequest, chosen: QuerySet) -> HttpResponse | None:
    """Redirect to the preview of the replay, where the person decides; nothing is sent before."""
    ids = chosen.filter(status="FAILED").values_list("pk", flat=True)[: _MOST + 1]
    if len(ids) > _MOST:
        text = (
            f"At most {_MOST} results can be selected here. Nothing was replayed. Replay more by a search in Redrive."
        )
        return results.message_user(request, text, messages.ERROR)
    sources = Source.objects.filter(backend="django_tasks").values("name")
    # PostgreSQL and SQLite write UUIDs differently.
    jobs = Failure.objects.filter(source__in=sources, job_id__in=[form for pk in ids for form in (str(pk), pk.hex)])
    found = jobs.filter(scopes.visible(viewer(request))).order_by("pk").values_list("pk", flat=True)
    if not found:
        text = "Redrive has none of the selected results as a failure. Nothing was replayed. Select failed results."
        return results.message_user(request, text, messages.ERROR)
    return HttpResponseRedirect(
        f"{reverse('redrive:replay-new')}?{urlencode({'selection': ','.join(map(str, found))})}"
    )


if apps.is_installed("django_tasks_db"):
    from django_tasks_db.admin import DBTaskResultAdmin

    DBTaskResultAdmin.actions = [*(DBTaskResultAdmin.actions or ()), replay]
