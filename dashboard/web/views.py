"""Login, health checks, metrics, and `/.well-known/security.txt`."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import redis
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView, redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connection
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import resolve_url
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_safe

from dashboard.web import second_step, sign_on
from dashboard.web.access import needs, viewer_of_request
from dashboard.web.htmx import render, render_error
from dashboard.web.middleware.entrance import page_at, page_of, turned_away
from jobs_admin import config
from jobs_admin.models import Source
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.queues import liveness
from jobs_admin.rights.sign_on import admit

FAILED_ROUNDS_LIMIT = 3  # consecutive rounds: about two seconds; a single one may be a broken connection
_EXPIRES_AFTER = timedelta(days=30)  # requested again by readers of security.txt afterwards


class Login(LoginView):
    """Login page, or redirect to the project's. `next` only leads to readable pages of this desk."""

    template_name = "redrive/registration/login.html"
    redirect_authenticated_user = True

    @method_decorator(login_not_required)
    def dispatch(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        page = resolve_url(settings.LOGIN_URL)
        if page != request.path:
            return redirect_to_login(self.get_redirect_url() or reverse("redrive:overview"), page)
        return super().dispatch(request, *args, **kwargs)

    def post(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        if not config.takes_passwords():
            raise PermissionDenied(f"Passwords are switched off. Sign in with {sign_on.provider_name()}.")
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Log in, or continue to the second step without being logged in."""
        user = form.get_user()
        if not second_step.is_needed(user):
            if config.is_own_project():
                self.request.session.flush()  # with what a started sign-in left there, such as its short expiry
            return super().form_valid(form)
        started = second_step.start(self.request, user, self.get_redirect_url())
        return _uncached(HttpResponseRedirect(reverse("redrive:login-set-up" if started.key else "redrive:login-code")))

    def get_context_data(self, **more: object) -> dict:
        provider = sign_on.provider_name() if config.signs_on() else ""
        found = {"provider": provider, "takes_passwords": config.takes_passwords()}
        return super().get_context_data(**found, **more)

    def render_to_response(self, context: dict, **response: object) -> HttpResponse:
        return render(self.request, self.template_name, context)

    def get_redirect_url(self) -> str:
        return page_at(self.request, super().get_redirect_url())


class Logout(LogoutView):
    """Logout by POST, so that no foreign page can trigger it."""

    def get_default_redirect_url(self) -> str:
        return resolve_url(settings.LOGOUT_REDIRECT_URL or settings.LOGIN_URL)


@require_safe
@login_not_required
def start_sign_on(request: HttpRequest) -> HttpResponse:
    """Redirect to the OpenID provider, or to the login if there is none or it does not answer."""
    after = page_at(request, request.GET.get("next", ""))
    if _is_no_sign_on(request):
        return _to_login(after)
    try:
        return _uncached(HttpResponseRedirect(sign_on.start(request.session, after)))
    except sign_on.SignOnError as error:
        return _refuse_sign_on(request, error, after)


@require_safe
@login_not_required
def finish_sign_on(request: HttpRequest) -> HttpResponse:
    """Log in the person in the provider's answer, or show the reason of a refusal on the login page."""
    if _is_no_sign_on(request):
        return _to_login()
    try:
        person, after = sign_on.finish(request.session, request.GET)
    except sign_on.SignOnError as error:
        return _refuse_sign_on(request, error)
    admission = admit(person)
    if admission.user is None:
        messages.error(request, admission.why)
        return _to_login(after)
    second_step.finish(request, admission.user, sign_on.BACKEND)
    return _uncached(HttpResponseRedirect(after or reverse("redrive:overview")))


def _is_no_sign_on(request: HttpRequest) -> bool:
    """Return whether the request starts or finishes nothing; a HEAD of a link scanner must not use up an answer."""
    return not config.signs_on() or request.user.is_authenticated or request.method == "HEAD"


def _refuse_sign_on(request: HttpRequest, error: sign_on.SignOnError, after: str = "") -> HttpResponse:
    sign_on.record_refusal(error)
    messages.error(request, str(error))
    return _to_login(after)


def _to_login(after: str = "") -> HttpResponse:
    """Redirect to the login, which redirects logged-in users to `after`."""
    to = reverse("redrive:login")
    return _uncached(HttpResponseRedirect(f"{to}?{urlencode({'next': after})}" if after else to))


def _uncached(response: HttpResponse) -> HttpResponse:
    response.headers["Cache-Control"] = "no-store"
    return response


start_sign_on.right = finish_sign_on.right = "anyone"


def locked(request: HttpRequest, response: HttpResponse | None = None, credentials=None) -> HttpResponse:
    """Return the response of axes after too many wrong passwords."""
    return render(request, "redrive/registration/locked.html", status=429)


def forgery(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Return the response to a failed CSRF check: an old form, one of another site, or one of an ended session."""
    if not request.user.is_authenticated and page_of(request):
        return turned_away(request)
    return render_error(request, 403, "This form has expired or was not sent from this desk. Reload the page.")


@require_safe
@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    """Liveness: the process answers. Database and Redis are not checked: a restart of this process is no fix."""
    return HttpResponse("ok", content_type="text/plain; charset=utf-8")


@require_safe
@login_not_required
def readyz(request: HttpRequest) -> HttpResponse:
    """Readiness: 200 if failures are captured and filed, else 503. Only a token sees the failing part.

    With `?strict=1` every configured source must also be reachable, sampled and read, its reports filed in time, and
    the end of the audit must match its anchor.
    """
    now = datetime.now(UTC)
    checks = _check_readiness(now)
    viewer = viewer_of_request(request) if checks["database"]["ok"] else None
    if request.GET.get("strict") == "1" and checks["database"]["ok"]:
        checks["sources"] = _check_sources(viewer, now)
        with suppress(redis.RedisError, config.BadConfiguration):  # has its own check
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
    """Return the shortest time that reports of any stream have been waiting, in seconds; 0 if none are waiting.

    If ingest files nothing, reports wait in every stream. A single stream proves nothing about ingest, because workers
    write the times in it. Streams in which reports without room are left do not count.
    """
    waiting = {name: lag for name, lag in liveness.ingest_lags_s(now).items() if lag}
    left = liveness.sources_without_room(now) if waiting else set()
    return min((lag for name, lag in waiting.items() if name not in left), default=0.0)


def _check_sources(viewer: Viewer | None, now: datetime) -> dict[str, object]:
    """Check all sources: those that are unreachable, not read or filed late are named only to viewers who see them."""
    away = Source.objects.filter(is_configured=True, is_reachable=False)
    why = {source.name: f"The source is unreachable: {source.why_unreachable}" for source in away}
    with suppress(redis.RedisError, config.BadConfiguration):  # has its own check
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
    from dashboard.web import metrics  # imports Prometheus' library, which few desks need

    viewer = viewer_of_request(request)
    assert viewer is not None  # guaranteed by the right of the view
    return HttpResponse(metrics.text(viewer), content_type=metrics.CONTENT_TYPE)


@require_safe
@login_not_required
def security_txt(request: HttpRequest) -> HttpResponse:
    """Return the contacts of REDRIVE_SECURITY_CONTACT (RFC 9116) without a query. Raises Http404 if none are set."""
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
