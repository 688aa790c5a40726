"""Files that a person or a program downloads while they are written."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from django.http import HttpRequest, StreamingHttpResponse

from jobs_admin.core.export_lines import FORMS


def stream(pieces: Iterable[bytes], kind: str, form: str) -> StreamingHttpResponse:
    """Return the pieces as a file, named by its kind and the current time. `form`: jsonl or csv."""
    response = StreamingHttpResponse(pieces, content_type=FORMS[form])
    response.headers["Content-Disposition"] = f'attachment; filename="{kind}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.{form}"'
    return response


def announce(response: StreamingHttpResponse, request: HttpRequest) -> StreamingHttpResponse:
    """Return the response with the cookie from which its button learns that it has begun: it does not leave the page."""
    number = request.POST.get("download", "")
    if number.isdecimal() and number.isascii() and len(number) <= 20:
        response.set_cookie("redrive-download", number, max_age=60, samesite="Lax")
    return response
