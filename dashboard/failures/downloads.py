"""Downloads of failures as files, for pages and API."""

from __future__ import annotations

from datetime import UTC, datetime

from django.http import StreamingHttpResponse

from jobs_admin.failures import exporting
from jobs_admin.models.access import Viewer


def failures(viewer: Viewer, text: str, form: str) -> StreamingHttpResponse:
    """The failures that a search finds, streamed; the file is named by the time."""
    now = datetime.now(UTC)
    response = StreamingHttpResponse(exporting.stream(viewer, text, form, now=now), content_type=exporting.FORMS[form])
    response.headers["Content-Disposition"] = f'attachment; filename="failures-{now:%Y%m%dT%H%M%SZ}.{form}"'
    return response
