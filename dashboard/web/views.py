"""Pages that belong to no noun: login, health, metrics, and `/.well-known/security.txt`."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import redis
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import LoginView, LogoutView, redirect_to_login
from django.db import DatabaseError, connection
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import resolve_url
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_safe

from dashboard.web.access import needs, viewer_of_request
from dashboard.web.htmx import render_error
from dashboard.web.middleware.entrance import page_at, page_of, turned_away
from dashboard.web.templates import render
from jobs_admin import config
from jobs_admin.models import Source
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.queues import liveness

FAILED_ROUNDS_LIMIT = 3  # in a row: about two seconds; one alone is a connection that broke
_EXPIRES_AFTER = timedelta(days=30)  # whoever reads security.txt later asks again


class Login(LoginView):
    """The login, or the way to that of the project. `next` leads only to pages of this desk that can be read."""

    template_name = "redrive/registration/login.html"
    redirect_authenticated_user = True

    @method_decorator(login_not_required)
    def dispatch(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        login = resolve_url(settings.LOGIN_URL)
        if login != request.path:
            return redirect_to_login(self.get_redirect_url() or reverse("redrive:overview"), login)
        return super().dispatch(request, *args, **kwargs)

    def render_to_response(self, context: dict, **response: object) -> HttpResponse:
        return render(self.request, self.template_name, context)

    def get_redirect_url(self) -> str:
        return page_at(self.request, super().get_redirect_url())


class Logout(LogoutView):
    """Ends the session; a POST, so that no foreign page can do it."""

    def get_default_redirect_url(self) -> str:
        return resolve_url(settings.LOGOUT_REDIRECT_URL or settings.LOGIN_URL)


def locked(request: HttpRequest, response: HttpResponse | None = None, credentials=None) -> HttpResponse:
    """Return the answer of axes after too many wrong passwords."""
    return render(request, "redrive/registration/locked.html", status=429)


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
    contacts = config.setting("SECURITY_CONTACT")
    if not contacts:
        raise Http404
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    lines = [f"Contact: {contact}" for contact in contacts]
    lines.append(f"Expires: {today + _EXPIRES_AFTER:%Y-%m-%dT%H:%M:%SZ}")
    if config.setting("URL").startswith("https://"):
        lines.append(f"Canonical: {config.setting('URL')}{reverse('redrive:security-txt')}")
    return HttpResponse("\n".join([*lines, ""]), content_type="text/plain; charset=utf-8")


security_txt.right = "anyone"
