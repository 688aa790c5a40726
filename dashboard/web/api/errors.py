"""Errors in one shape: `{"error": {"code", "message", "field"?}}`, with the matching status."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from functools import wraps
from json import JSONEncoder
from typing import TYPE_CHECKING, Any

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from dashboard.web import limits
from dashboard.web.access import READS, address_name, viewer_of_request
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.db import audit
from jobs_admin.models import Failure, Replay, ReplayItem, Reschedule, SavedView
from jobs_admin.models.access import RANK, Viewer

if TYPE_CHECKING:
    from ninja import NinjaAPI
    from ninja.operation import Operation

log = logging.getLogger(__name__)


def answer(status: int, code: str, message: str, field: str | None = None, **more: object) -> JsonResponse:
    error = {"code": code, "message": message, **({"field": field} if field else {}), **more}
    return JsonResponse({"error": error}, _Encoder, status=status)


class _Encoder(JSONEncoder):
    """JSON encoder for the details of a refusal: dataclasses and times of the engine."""

    def default(self, o: Any) -> Any:
        return o.isoformat() if isinstance(o, datetime) else asdict(o)


def note_refusal(request: HttpRequest, viewer: Viewer, why: str, *, source: str = "") -> None:
    """Record that a changing call was refused, as pages do; services record their own refusals."""
    if request.method in READS:
        return
    name = address_name(request.resolver_match) if request.resolver_match else request.path
    with transaction.atomic():
        audit.record(viewer, name, request.path, source=source, reason=why, allowed=False)


def install(api: NinjaAPI) -> None:
    from ninja.errors import AuthenticationError, HttpError, ValidationError

    api.exception_handler(AuthenticationError)(_no_token)

    @api.exception_handler(ValidationError)
    def _(request: HttpRequest, error: ValidationError) -> HttpResponse:
        first = error.errors[0] if error.errors else {}
        # ("body", "body", "pace", "rate") but ("query", "limit"): the names of the caller follow Redrive's own.
        place = [str(part) for part in first.get("loc", ())[1:]]
        place = place[1:] if first.get("loc", ("",))[0] == "body" else place
        message = str(first.get("msg", "Invalid request")).removeprefix("Value error, ")
        return answer(422, "invalid", f"{message}. Nothing was changed.", ".".join(place) or None)

    @api.exception_handler(HttpError)
    def _(request: HttpRequest, error: HttpError) -> HttpResponse:
        code = "bad_json" if error.status_code == 400 else "refused"
        return answer(error.status_code, code, f"{error}. Nothing was changed.")

    @api.exception_handler(Refused)
    def _(request: HttpRequest, error: Refused) -> HttpResponse:
        return answer(error.status, error.code, error.message, error.field, **error.details)

    @api.exception_handler(PermissionDenied)
    def _(request: HttpRequest, error: PermissionDenied) -> HttpResponse:
        return answer(403, "forbidden", str(error) or "This token is not allowed to do that.")

    @api.exception_handler(Exception)
    def _(request: HttpRequest, error: Exception) -> HttpResponse:
        if late := limits.sentence(error):
            return answer(503, "took_too_long", late)
        log.exception("%s %s failed", request.method, request.path, exc_info=error)
        message = "The request failed. The error was logged. Check what was changed before retrying."
        return answer(500, "failed", message)

    for missing in (
        NotFound,
        Http404,
        SavedView.DoesNotExist,
        Failure.DoesNotExist,
        Replay.DoesNotExist,
        ReplayItem.DoesNotExist,
        Reschedule.DoesNotExist,
    ):
        api.exception_handler(missing)(_not_found)


def _no_token(request: HttpRequest, error: Exception | None = None) -> HttpResponse:
    response = answer(401, "unauthorized", "Send an active token: Authorization: Bearer TOKEN.")
    response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _not_found(request: HttpRequest, error: Exception | None = None) -> HttpResponse:
    message = str(error) if isinstance(error, NotFound) else ""
    return answer(404, "not_found", message or "Not found, or not visible to this token.")


def unknown_address(request: HttpRequest) -> HttpResponse:
    return answer(404, "not_found", f"No call at {request.path}. All calls: /api/openapi.json.")


def door(
    view: Callable[..., HttpResponse], calls: dict[str, Callable[..., HttpResponse]] | None = None
) -> Callable[..., HttpResponse]:
    """Wrap a view of the API for the site's middleware: no login page, no CSRF token, errors in the API's shape.

    Without a token it reveals neither allowed methods nor the description of all calls. With a token, each call
    requires the right that it declares with `@needs`; a call that declares none is closed to everyone. `guarded.calls`
    maps methods to calls; for a view outside the library they must be passed.
    """
    calls = calls or {method: op.view_func for op in _operations(view) for method in op.methods}

    @csrf_exempt
    @login_not_required
    @wraps(view)
    def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        viewer = viewer_of_request(request)
        if viewer is None and view is not unknown_address:
            response = _no_token(request)
        elif viewer is not None and (why := _why_not(viewer, calls.get(request.method))):
            note_refusal(request, viewer, why)
            response = answer(403, "forbidden", why)
        else:
            response = view(request, *args, **kwargs)
        if response.status_code == 405:
            allowed = response.headers.get("Allow", "")
            response = answer(405, "method_not_allowed", f"{request.method} is not allowed here. Allowed: {allowed}.")
            response.headers["Allow"] = allowed
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    guarded.is_call = True
    guarded.calls = calls
    # Views that are not calls: the description of all calls, for any token, and the response for unknown URLs.
    guarded.right = "anyone" if view is unknown_address else "viewer"
    return guarded


def _operations(view: Callable[..., HttpResponse]) -> list[Operation]:
    """Return the calls at the view's URL, which the library stores only in the closure of its view."""
    from ninja.operation import PathView  # imported by the first call: pages do not need the library

    path_view = inspect.getclosurevars(view).nonlocals.get("self") if inspect.isfunction(view) else None
    return path_view.operations if isinstance(path_view, PathView) else []


def _why_not(viewer: Viewer, call: Callable | None) -> str:
    """Return why the token may not make this call; "" if it may. Without a call, the view itself reports that."""
    if call is None:
        return ""
    right = getattr(call, "right", "that no one has")
    if right not in RANK or not viewer.may_anywhere(right):
        return f"This call needs a token with the role {right}. Nothing was changed."
    if not viewer.may_call(call.__name__):
        return f"This token may only call {', '.join(viewer.calls)}, not {call.__name__}. Nothing was changed."
    return ""
