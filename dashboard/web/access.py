"""Rights of pages and acts by the viewer's roles per source; the viewer behind an API token."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import wraps
from ipaddress import ip_network

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch

from dashboard.web import addresses, source_switcher
from jobs_admin import config
from jobs_admin.db import audit
from jobs_admin.models import ApiToken, access
from jobs_admin.models.access import ADMIN, ADMIN_OF_ALL, EVERY_SOURCE, Viewer, viewer_of

log = logging.getLogger(__name__)

USER = "user"  # logged in, with or without a role
READS = frozenset({"GET", "HEAD", "OPTIONS"})


def address_name(match: ResolverMatch) -> str:
    """Return the name of a URL within the desk, without the mount's namespace: `failure-detail`, `api:list_queues`."""
    spaces = match.namespaces[1:] if match.app_names[:1] == ["redrive"] else match.namespaces
    return ":".join([*spaces, match.url_name or ""])


def record_refusal(request: HttpRequest, reason: str) -> None:
    """Record in the audit, once per request, that an act of a logged-in user was refused."""
    if request.method in READS or not request.user.is_authenticated or getattr(request, "is_refusal_recorded", False):
        return
    request.is_refusal_recorded = True
    name = address_name(request.resolver_match) if request.resolver_match else request.path
    with transaction.atomic():
        audit.record(viewer_of(request.user), name, request.path, reason=reason, allowed=False)


def can(role: str, *, by_source: bool = False) -> Callable:
    """Require `role` on at least one source, ADMIN_OF_ALL or USER, and set `request.viewer`.

    `by_source`: the page shows only the source in its URL, if there is one.

    The service that performs an act checks the rights on its source again. Pages may be private, so no cache stores
    them. `view.right` is the role, for tests and the documentation of rights.
    """

    def guard(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @wraps(view)
        def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
            # Cached briefly for requests that only read (dashboard.web.middleware.identity).
            request.viewer = getattr(request, "known_viewer", None) or viewer_of(request.user)
            try:
                if not _holds(request.viewer, role):
                    what = "role admin on every source" if role == ADMIN_OF_ALL else f"role {role}"
                    raise PermissionDenied(f"You need the {what} for this. Ask an admin of this desk.")
                if by_source:
                    request.viewer = source_switcher.focused(request, request.viewer)
                response = view(request, *args, **kwargs)
            except PermissionDenied as refused:
                record_refusal(request, str(refused))
                raise
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        guarded.right = role
        return guarded

    return guard


def _holds(viewer: Viewer, right: str) -> bool:
    if right == USER:
        return True  # EntranceMiddleware refuses anyone else
    return viewer.may(ADMIN, EVERY_SOURCE) if right == ADMIN_OF_ALL else viewer.may_anywhere(right)


def needs(role: str) -> Callable[[Callable], Callable]:
    """Mark an API call as requiring `role` on at least one source, which `dashboard.web.api.errors.door` checks."""

    def mark(call: Callable) -> Callable:
        call.right = role
        return call

    return mark


# API tokens.

_BEARER = re.compile(r"bearer +(\S+)\Z", re.IGNORECASE)


def viewer_of_token(token: str, *, meta: Mapping[str, str]) -> Viewer | None:
    """Return the viewer of a token, or None.

    None if it is unknown, revoked or expired, its user may not log in, or the request with this `META` comes from
    outside its networks.
    """
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
    # Found by its hash, so that the time taken reveals nothing about the token.
    found = ApiToken.objects.select_related("owner").filter(sha256=digest).first()
    if found is None:
        return None
    if found.networks and (why := _why_not_from(meta, found.networks)):
        if found.is_in_force:
            _log_refusal(found, why)
        return None
    return access.viewer_of_token(found)


def _why_not_from(meta: Mapping[str, str], networks: str) -> str:
    """Return why a request does not come from one of these networks; "" if it does."""
    peer, forwarded = meta.get("REMOTE_ADDR", ""), meta.get("HTTP_X_FORWARDED_FOR", "")
    trusted = config.setting("TRUSTED_PROXIES")
    direct = addresses.parse_address(peer)
    if forwarded and (direct is None or not addresses.is_within(direct, trusted)):
        # Only the proxy's own address is known if it is not trusted, and all its clients share that.
        return f"{direct or 'a client without an address'} sent X-Forwarded-For and is not in REDRIVE_TRUSTED_PROXIES"
    address = addresses.find_client(peer, forwarded, trusted)
    if address is not None and addresses.is_within(address, [ip_network(one) for one in networks.split()]):
        return ""
    return f"address {address or 'unknown'} is outside its networks"


_REFUSAL_LOGGED_S = 60.0
_refusals: dict[int, float] = {}  # token -> when its last refusal was logged


def _log_refusal(token: ApiToken, why: str) -> None:
    """Log a refusal, whose response is that of a wrong token, at most once a minute per token and process."""
    now = time.monotonic()
    if now - _refusals.get(token.pk, float("-inf")) >= _REFUSAL_LOGGED_S:
        _refusals[token.pk] = now
        log.warning("Token %s was refused: %s.", token.name, why)


def viewer_of_request(request: HttpRequest) -> Viewer | None:
    """Return the viewer of the request's token, looked up once per request; None if there is no valid token."""
    if not hasattr(request, "caller"):
        request.caller = viewer_of_header(request.headers.get("Authorization", ""), meta=request.META)
    return request.caller


def viewer_of_header(header: str, *, meta: Mapping[str, str]) -> Viewer | None:
    """Return the viewer of an `Authorization` header; None without a valid token."""
    found = _BEARER.match(header)
    return viewer_of_token(found[1], meta=meta) if found else None
