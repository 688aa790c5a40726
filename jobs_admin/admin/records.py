"""Base classes of all records: visibility, paging, and safe display of untrusted text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from jobs_admin import config, failures
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import marked
from jobs_admin.models.access import ADMIN, ADMIN_OF_ALL, EVERY_SOURCE, NO_ROLE, OPERATOR, VIEWER, Viewer, viewer_of

PER_PAGE = 50


def viewer(request: HttpRequest) -> Viewer:
    """Return the viewer of the request, resolved once per request."""
    if not hasattr(request, "viewer"):
        request.viewer = viewer_of(request.user)
    return request.viewer


def _holds(request: HttpRequest, right: str) -> bool:
    """Return whether the viewer has the role on at least one source; `get_queryset` decides which rows they see."""
    if right == NO_ROLE:
        return False
    if right == ADMIN_OF_ALL:
        return viewer(request).may(ADMIN, EVERY_SOURCE)
    return viewer(request).may_anywhere(right)


def _marked(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Return the page with invisible characters of untrusted text made visible, wherever Django renders it."""

    def mark(rendered: TemplateResponse) -> None:
        rendered.content = marked(rendered.content.decode())

    if request.method == "GET" and isinstance(response, TemplateResponse):
        response.add_post_render_callback(mark)
    return response


def _refuse_changes(request: HttpRequest) -> None:
    """Raise PermissionDenied for requests that could change a read-only desk, also in a host project's admin."""
    if request.method not in {"GET", "HEAD", "OPTIONS"} and config.is_read_only():
        raise PermissionDenied(config.READ_ONLY)


class CappedPaginator(Paginator):
    """Paginator that counts no further than the pages that can be reached."""

    @cached_property
    def count(self) -> int:
        return self.object_list.order_by()[: failures.EXACT].count()


class Records(admin.ModelAdmin):
    """Read-only admin. Other acts require a right: a role, ADMIN_OF_ALL or NO_ROLE."""

    needs = VIEWER  # to see the records
    adds = NO_ROLE
    changes = NO_ROLE
    deletes = NO_ROLE

    list_per_page = PER_PAGE
    show_full_result_count = False
    paginator = CappedPaginator

    def changelist_view(self, request: HttpRequest, extra_context: dict | None = None) -> HttpResponse:
        _refuse_changes(request)
        return _marked(request, super().changelist_view(request, extra_context))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict | None = None
    ) -> HttpResponse:
        response = super().change_view(request, object_id, form_url, extra_context)
        # A form must send back the original text.
        return response if self.has_change_permission(request) else _marked(request, response)

    def changeform_view(self, request: HttpRequest, *arguments: Any, **options: Any) -> HttpResponse:
        _refuse_changes(request)
        return super().changeform_view(request, *arguments, **options)

    def delete_view(self, request: HttpRequest, *arguments: Any, **options: Any) -> HttpResponse:
        _refuse_changes(request)
        return super().delete_view(request, *arguments, **options)

    def act_on_each(self, request: HttpRequest, chosen: QuerySet[Any], act: Callable[[Any], object], done: str) -> None:
        """Apply `act` to each row, and report the number `done` and each refusal."""
        count = 0
        for row in chosen:
            name = getattr(row, "name", row.pk)
            try:
                act(row)
                count += 1
            except Refused as refused:
                self.message_user(request, f"{name}: {refused.message}", messages.ERROR)
            except NotFound:
                self.message_user(request, f"{name} no longer exists.", messages.ERROR)
        self.message_user(request, f"{count} {done}.", messages.SUCCESS)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return _holds(request, self.needs)

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return _holds(request, self.needs)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return _holds(request, self.adds)

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return _holds(request, self.changes)

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return _holds(request, self.deletes)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return _holds(request, OPERATOR)

    def has_administer_permission(self, request: HttpRequest) -> bool:
        return _holds(request, ADMIN_OF_ALL)
