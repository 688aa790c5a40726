"""`/.well-known/security.txt` (RFC 9116): to whom reports of vulnerabilities of this desk go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

_EXPIRES_AFTER = timedelta(days=30)  # whoever reads it later asks again


@require_safe
@login_not_required
def security_txt(request: HttpRequest) -> HttpResponse:
    """The contacts of REDRIVE_SECURITY_CONTACT. Raises Http404 where none is set. Asks neither database nor store."""
    contacts = settings.REDRIVE_SECURITY_CONTACT
    if not contacts:
        raise Http404
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    lines = [f"Contact: {contact}" for contact in contacts]
    lines.append(f"Expires: {today + _EXPIRES_AFTER:%Y-%m-%dT%H:%M:%SZ}")
    if settings.REDRIVE_URL.startswith("https://"):
        lines.append(f"Canonical: {settings.REDRIVE_URL}{reverse('redrive:security-txt')}")
    return HttpResponse("\n".join([*lines, ""]), content_type="text/plain; charset=utf-8")


security_txt.right = "anyone"
