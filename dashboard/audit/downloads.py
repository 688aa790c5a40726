"""Downloads of the audit as a file, for pages and API."""

from __future__ import annotations

from datetime import UTC, datetime

from django.http import StreamingHttpResponse

from jobs_admin.core.export_lines import FORMS
from jobs_admin.db import audit_export
from jobs_admin.models.access import Viewer


def audit_file(viewer: Viewer, form: str, *, act: str = "", object: str = "", after: int = 0) -> StreamingHttpResponse:
    """Return the matching events as a streamed file, named by the current time."""
    pieces = audit_export.stream(viewer, form, act=act, object=object, after=after)
    response = StreamingHttpResponse(pieces, content_type=FORMS[form])
    name = f"audit-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.{form}"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
