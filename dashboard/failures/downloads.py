"""Downloads of failures as files, for pages and API."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from django.http import StreamingHttpResponse

from jobs_admin.failures import exporting
from jobs_admin.models.access import Viewer


def failures(viewer: Viewer, text: str, form: str, columns: Collection[str] = ()) -> StreamingHttpResponse:
    """Return the failures of a search as a streamed file, named by the current time; by default with DEFAULT_COLUMNS."""
    now, wanted = datetime.now(UTC), exporting.parse_columns(columns)
    pieces = exporting.stream(viewer, text, form, columns=wanted, now=now)
    response = StreamingHttpResponse(pieces, content_type=exporting.FORMS[form])
    response.headers["Content-Disposition"] = f'attachment; filename="failures-{now:%Y%m%dT%H%M%SZ}.{form}"'
    return response
