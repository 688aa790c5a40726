"""Saved views: one's own, and those that others share. They are made and changed on the failures page."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from jobs_admin.admin.records import Records, viewer
from jobs_admin.models import SavedView
from jobs_admin.rights import view_sight


@admin.register(SavedView)
class SavedViewAdmin(Records):
    list_display = ("name", "query", "owner", "is_shared", "created_at")
    list_select_related = ("owner",)
    list_filter = ("is_shared",)
    search_fields = ("name", "query")
    ordering = ("-id",)
    fields = ("name", "query", "owner", "is_shared", "created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[SavedView]:
        return SavedView.objects.filter(Q(owner=request.user) | Q(pk__in=view_sight.readable(viewer(request))))
