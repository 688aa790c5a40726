from __future__ import annotations

from django.contrib import admin
from django.urls import include, path, re_path

from dashboard.views import (
    audit,
    demo,
    errors,
    failure_acts,
    failures,
    groups,
    health,
    overview,
    queues,
    replays,
    session,
)

urlpatterns = [
    path("", overview.index, name="overview"),
    path("groups/", groups.index, name="group-list"),
    path("groups/<str:fingerprint>/", groups.detail, name="group-detail"),
    path("demo/", demo.index, name="demo"),
    path("demo/partner/", demo.partner, name="demo-partner"),
    path("demo/load/", demo.load, name="demo-load"),
    path("queues/", queues.index, name="queue-list"),
    path("failures/", failures.index, name="failure-list"),
    path("failures/newer/", failures.newer, name="failure-newer"),
    path("failures/bulk/", failure_acts.bulk, name="failure-bulk"),
    path("failures/<int:pk>/", failures.detail, name="failure-detail"),
    path("failures/<int:pk>/replay/", failure_acts.replay, name="failure-replay"),
    path("failures/<int:pk>/edit/", failure_acts.edit, name="failure-edit"),
    path("failures/<int:pk>/discard/", failure_acts.discard, name="failure-discard"),
    path("failures/<int:pk>/restore/", failure_acts.restore, name="failure-restore"),
    path("failures/<int:pk>/opened/", failures.opened, name="failure-opened"),
    re_path(r"^failures/(?P<pk>\d{1,18})/as/(?P<form>python|json|traceback)/$", failures.as_text, name="failure-text"),
    path("replays/", replays.index, name="replay-list"),
    path("replays/new/", replays.new, name="replay-new"),
    path("replays/<int:pk>/", replays.detail, name="replay-detail"),
    path("replays/<int:pk>/pause/", replays.pause, name="replay-pause"),
    path("replays/<int:pk>/resume/", replays.resume, name="replay-resume"),
    path("replays/<int:pk>/cancel/", replays.cancel, name="replay-cancel"),
    path("replays/<int:pk>/pace/", replays.pace, name="replay-pace"),
    path("replays/<int:pk>/items/<int:n>/resolve/", replays.resolve, name="replay-resolve"),
    path("audit/", audit.index, name="audit-list"),
    path("login/", session.Login.as_view(), name="login"),
    path("logout/", session.Logout.as_view(), name="logout"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("api/", include("dashboard.api.urls")),
    path("admin/", admin.site.urls),
]

handler403 = errors.not_allowed
handler404 = errors.not_found
handler500 = errors.failed
