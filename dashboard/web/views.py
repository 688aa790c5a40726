"""Pages that belong to no noun: login, refusals and errors, health, metrics, and `/.well-known/security.txt`.

htmx gets the sentence of a refusal or an error alone.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import redis
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import LoginView, LogoutView
from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard.web.access import READS, needs, record_refusal, viewer_of_request
from dashboard.web.htmx import render_error
from dashboard.web.middleware.entrance import page_at, page_of, turned_away
from jobs_admin import config
from jobs_admin.models import Source
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.queues import liveness

FAILED_ROUNDS_LIMIT = 3  # in a row: about two seconds; one alone is a connection that broke
NO_DATABASE = (
    "The desk's database is unreachable, locked or full. Workers and queues are not affected: reports wait until the database is back. "
    "Check the database; the error is in the desk's log."
)
_EXPIRES_AFTER = timedelta(days=30)  # whoever reads security.txt later asks again


class Login(LoginView):
    """The login. `next` leads only to pages of this desk that can be read."""

    template_name = "redrive/registration/login.html"
    redirect_authenticated_user = True

    def get_redirect_url(self) -> str:
        return page_at(self.request, super().get_redirect_url())


class Logout(LogoutView):
    """Ends the session; a POST, so that no foreign page can do it."""


def locked(request: HttpRequest, response: HttpResponse | None = None, credentials=None) -> HttpResponse:
    """Return the answer of axes after too many wrong passwords."""
    return render(request, "redrive/registration/locked.html", status=429)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    # Django's own 404 carries a dict of tried addresses; ours carries a sentence.
    message = exception.args[0] if exception.args and isinstance(exception.args[0], str) else ""
    return render_error(request, 404, message or "The record may have been pruned, or the address is misspelled.")


def not_allowed(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Refused; an act that was refused is written down."""
    record_refusal(request, str(exception))
    return render_error(request, 403, str(exception) or "You are not allowed to do this.")


def failed(request: HttpRequest) -> HttpResponse:
    """Return the page for a request that ended by an exception; without a database, one that does not read it."""
    if not _is_without_database(sys.exc_info()[1]):
        return render_error(request, 500, "The request failed. The error was logged.")
    if request.resolver_match and getattr(request.resolver_match.func, "is_call", False):
        from dashboard.web.api import errors  # not before the apps are loaded

        return errors.answer(503, "unreachable", NO_DATABASE)
    if request.headers.get("HX-Request"):
        return HttpResponse(NO_DATABASE, content_type="text/plain; charset=utf-8", status=503)
    is_change = request.method not in READS
    text = render_to_string("redrive/no_database.html", {"sentence": NO_DATABASE, "is_change": is_change})
    return HttpResponse(text, status=503)


# SQLite's primary codes: busy, locked, input or output failed, full, cannot open. PostgreSQL's classes: connection, resources,
# operator intervention; a connection that was never made has no state.
_SQLITE_CODES = frozenset({5, 6, 10, 13, 14})
_SQL_STATES = ("08", "53", "57P")


def _is_without_database(error: BaseException | None) -> bool:
    """Return whether the database did not answer, or could not store; not for a statement that it refuses."""
    if not isinstance(error, (OperationalError, InterfaceError)):
        return False
    code, state = getattr(error.__cause__, "sqlite_errorcode", None), getattr(error.__cause__, "sqlstate", None)
    return code & 0xFF in _SQLITE_CODES if code is not None else state is None or state.startswith(_SQL_STATES)


def took_too_long(request: HttpRequest, sentence: str) -> HttpResponse:
    """The request's time was over (`dashboard.web.limits`)."""
    return render_error(request, 503, sentence)


def forgery(request: HttpRequest, reason: str = "") -> HttpResponse:
    """The form is too old, or came from another site; or one of ours came from a page whose session ended."""
    if not request.user.is_authenticated and page_of(request):
        return turned_away(request)
    return render_error(request, 403, "This form has expired or was not sent from this desk. Reload the page.")


@require_safe
@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    """Liveness: the process answers. Database and Redis are not checked: a restart of this process would not fix those."""
    return HttpResponse("ok", content_type="text/plain; charset=utf-8")


@require_safe
@login_not_required
def readyz(request: HttpRequest) -> HttpResponse:
    """Readiness: 200 if failures are captured and filed, else 503. The failing part is shown to a token only.

    With `?strict=1` every configured source has to be reachable, sampled and read too, its reports filed in time, and the
    audit's end the anchored one.
    """
    now = datetime.now(UTC)
    checks = _check_readiness(now)
    viewer = viewer_of_request(request) if checks["database"]["ok"] else None
    if request.GET.get("strict") == "1" and checks["database"]["ok"]:
        checks["sources"] = _check_sources(viewer, now)
        with suppress(redis.RedisError, config.BadConfiguration):  # a check of its own
            stall = liveness.stalled_audit()
            checks["audit"] = {"ok": stall is None, **({"why": stall.why} if stall else {})}
    is_ready = all(check["ok"] for check in checks.values())
    answer: dict[str, object] = {"ready": is_ready}
    if viewer is not None:
        answer["checks"] = checks
    return JsonResponse(answer, status=200 if is_ready else 503, headers={"Cache-Control": "no-store"})


def _check_readiness(now: datetime) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {"database": _check_database()}
    try:
        failed = liveness.failed_rounds("ingest")
        found["redis"] = {"ok": True}
        lag_s = _least_lag_s(now)
        found["ingest"] = {
            "ok": lag_s <= liveness.LATE_REPORT_S and failed < FAILED_ROUNDS_LIMIT,
            "lag_s": round(lag_s, 1),
            "failed_rounds": failed,
        }
        late = liveness.find_stale(now)
        found["watch"] = {"ok": late is None, **({"why": late.text} if late else {})}
    except (redis.RedisError, config.BadConfiguration) as error:
        found["redis"] = {"ok": False, "why": f"The store does not answer ({type(error).__name__})."}
    return found


def _least_lag_s(now: datetime) -> float:
    """Return how long reports wait in the stream where they wait least; 0 where none waits.

    Where ingest files nothing, they wait in every stream. One stream alone says nothing of ingest: the times in it are its workers'
    to write.
    """
    waiting = [lag for lag in liveness.ingest_lags_s(now).values() if lag]
    return min(waiting, default=0.0)


def _check_sources(viewer: Viewer | None, now: datetime) -> dict[str, object]:
    """Check of all sources: those that cannot be reached or read, or are filed late, named only where the viewer may see them."""
    away = Source.objects.filter(is_configured=True, is_reachable=False)
    why = {source.name: f"The source is unreachable: {source.why_unreachable}" for source in away}
    with suppress(redis.RedisError, config.BadConfiguration):  # a check of its own
        why |= liveness.late_sources(now)
    why |= {name: stall.why for name, stall in liveness.stalled_sources(now).items() if stall is not None}
    named = {name: text for name, text in why.items() if viewer is not None and viewer.may(VIEWER, name)}
    return {"ok": not why, **({"not_read": named} if named else {})}


def _check_database() -> dict[str, object]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM jobs_admin_failurecount LIMIT 1")
        return {"ok": True}
    except DatabaseError as error:
        return {"ok": False, "why": f"The database does not answer ({type(error).__name__})."}


healthz.right = readyz.right = "anyone"


@require_safe
@needs(VIEWER)
def metrics_text(request: HttpRequest) -> HttpResponse:
    from dashboard.web import metrics  # with Prometheus' library, which few desks are asked for

    viewer = viewer_of_request(request)
    assert viewer is not None  # the door lets nobody else in
    return HttpResponse(metrics.text(viewer), content_type=metrics.CONTENT_TYPE)


@require_safe
@login_not_required
def security_txt(request: HttpRequest) -> HttpResponse:
    """The contacts of REDRIVE_SECURITY_CONTACT (RFC 9116). Raises Http404 where none is set. Asks neither database nor store."""
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
