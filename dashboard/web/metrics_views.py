"""`/metrics`: for Prometheus, which comes with a token."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.web.access import needs
from dashboard.web.api.tokens import viewer_of_request
from jobs_admin.models.access import VIEWER


@require_safe
@needs(VIEWER)
def metrics_text(request: HttpRequest) -> HttpResponse:
    from dashboard.web import metrics  # with Prometheus' library, which few desks are asked for

    viewer = viewer_of_request(request)
    assert viewer is not None  # the door lets nobody else in
    return HttpResponse(metrics.text(viewer), content_type=metrics.CONTENT_TYPE)
