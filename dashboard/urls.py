from __future__ import annotations

from django.contrib import admin
from django.urls import path

from dashboard.views import demo, errors, groups, overview, queues, session

urlpatterns = [
    path("", overview.index, name="overview"),
    path("groups/", groups.index, name="group-list"),
    path("groups/<str:fingerprint>/", groups.detail, name="group-detail"),
    path("demo/", demo.index, name="demo"),
    path("demo/partner/", demo.partner, name="demo-partner"),
    path("demo/load/", demo.load, name="demo-load"),
    path("queues/", queues.index, name="queue-list"),
    path("login/", session.Login.as_view(), name="login"),
    path("logout/", session.Logout.as_view(), name="logout"),
    path("admin/", admin.site.urls),
]

handler403 = errors.not_allowed
handler404 = errors.not_found
handler500 = errors.failed
