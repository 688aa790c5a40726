"""Root URLconf of Redrive's own project: the desk at its root, and Django's admin."""

from __future__ import annotations

from django.urls import include, path

from dashboard.web import error_pages
from dashboard.web.routing import include_lazily

urlpatterns = [
    path("", include("dashboard.routes")),
    include_lazily("admin/", "dashboard.routes.admin", "admin"),
]

handler403 = error_pages.not_allowed
handler404 = error_pages.not_found
handler500 = error_pages.failed
