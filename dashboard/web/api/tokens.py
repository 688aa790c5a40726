"""The viewer behind an API token."""

from __future__ import annotations

import hashlib
import re

from django.http import HttpRequest

from jobs_admin.models import ApiToken
from jobs_admin.models.access import Viewer, lent, viewer_of

_BEARER = re.compile(r"bearer +(\S+)\Z", re.IGNORECASE)


def viewer_of_token(token: str) -> Viewer | None:
    """Return the viewer of a token; None if it is unknown or revoked, or its user may not log in."""
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
    # Looked up by its hash, so that the time taken reveals nothing about the token.
    found = ApiToken.objects.select_related("owner").filter(sha256=digest, revoked_at=None).first()
    if found is None or (found.owner is not None and not found.owner.is_active):
        return None
    roles = {found.source: found.role}
    if found.owner is not None:
        roles = lent(found.role, found.source, viewer_of(found.owner))
    return Viewer(name=f"token {found.name}", roles=roles, token_id=found.pk, owner_id=found.owner_id)


def viewer_of_request(request: HttpRequest) -> Viewer | None:
    """The viewer behind the request's token; None where there is none in force. Looked up once a request."""
    if not hasattr(request, "caller"):
        request.caller = viewer_of_header(request.headers.get("Authorization", ""))
    return request.caller


def viewer_of_header(header: str) -> Viewer | None:
    """The viewer behind the text of an `Authorization` header; None where there is none in force."""
    found = _BEARER.match(header)
    return viewer_of_token(found[1]) if found else None
