"""Second step of signing in: the code, or the set-up of a required second factor."""

from __future__ import annotations

from cryptography.fernet import InvalidToken
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from dashboard.account import second_factor_pages as pages
from dashboard.web import second_step
from dashboard.web.htmx import render
from dashboard.web.toasts import add_toast
from jobs_admin.models import SecondFactor
from jobs_admin.rights import second_factor


@require_http_methods(["GET", "HEAD", "POST"])
@login_not_required
@never_cache
def code(request: HttpRequest) -> HttpResponse:
    """Log in a person whose password was correct, by a code of their app or a recovery code."""
    started = _started(request)
    if started is None or started.key:
        return HttpResponseRedirect(reverse("redrive:login"))
    if request.method != "POST":
        return _code_page(request, started)
    earlier = SecondFactor.objects.filter(user=started.user).values_list("attempts", flat=True).first() or 0
    result = second_factor.check(started.user, request.POST.get("code", ""))
    if not result.is_accepted:
        return _code_page(request, started, pages.REFUSALS[result] + " You are not logged in.", 422)
    second_step.finish(request, started.user)
    if earlier >= second_factor.LOCKED_AFTER:
        text = (
            f"At least {earlier} wrong codes were sent for your account before this sign-in. "
            "If they were not yours, change your password."
        )
        add_toast(request, text, level="warning")
    _warn_of_few(request)
    return HttpResponseRedirect(started.after or reverse("redrive:overview"))


@require_http_methods(["GET", "HEAD", "POST"])
@login_not_required
@never_cache
def set_up(request: HttpRequest) -> HttpResponse:
    """Set up the required second factor, then log in."""
    started = _started(request)
    if started is None or not started.key:
        return HttpResponseRedirect(reverse("redrive:login"))
    action = reverse("redrive:login-set-up")
    try:
        if request.method != "POST":
            return pages.set_up(request, started.user, started.key, action)
        codes = second_factor.enrol(started.user, started.key, request.POST.get("code", ""), replaces=False)
        if not codes:
            return pages.set_up(request, started.user, started.key, action, is_wrong=True)
    except InvalidToken:  # the payload key was removed meanwhile
        return HttpResponseRedirect(reverse("redrive:login"))
    second_step.finish(request, started.user)
    return pages.recovery_codes(request, codes, started.after or reverse("redrive:overview"))


def _started(request: HttpRequest) -> second_step.Started | None:
    return None if request.user.is_authenticated else second_step.read(request.session)


def _code_page(
    request: HttpRequest, started: second_step.Started, refusal: str = "", status: int = 200
) -> HttpResponse:
    context = {"name": started.user.get_username(), "refusal": refusal}
    return render(request, "redrive/account/code.html", context, status)


def _warn_of_few(request: HttpRequest) -> None:
    left = second_factor.count_recovery_codes(request.user)
    if left <= second_factor.FEW:
        text = f"You have {left} recovery code{'' if left == 1 else 's'} left. Create new ones."
        add_toast(request, text, level="warning", link=reverse("redrive:account"), link_text="Your account")


code.right = set_up.right = "anyone"
