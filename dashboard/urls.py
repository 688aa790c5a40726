"""The root URLconf of our own project: the desk at its root, and Django's admin."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from dashboard.web import error_views as errors

urlpatterns = [
    path("", include("dashboard.routes")),
    path("admin/", admin.site.urls),
]

handler403 = errors.not_allowed
handler404 = errors.not_found
handler500 = errors.failed
handler503 = errors.took_too_long
