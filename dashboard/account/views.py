"""Your account: second factor, recovery codes, sessions and API tokens of the logged-in person, in Redrive's own project."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps

from cryptography.fernet import InvalidToken
from django.contrib.auth import BACKEND_SESSION_KEY, authenticate
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.account import second_factor_pages as pages
from dashboard.web import second_step, sign_on
from dashboard.web.access import USER, can
from dashboard.web.htmx import go, render
from dashboard.web.sign_ins import record_request
from dashboard.web.toasts import add_toast
from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import whole_number
from jobs_admin.models import ApiToken, SecondFactor
from jobs_admin.rights import second_factor, sign_ins, slack_links

_KEY = "second_factor_key"  # session key with the encrypted key that is being set up …
_AT = "second_factor_at"  # … and with the time of the password or code, valid for second_step.WITHIN_S


def _of_own_login(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Return 404 in a host project, which has its own login and accounts."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        if not config.is_own_project():
            raise Http404("Accounts and sessions belong to the project's own login.")
        return view(request, *args, **kwargs)

    return guarded


@require_safe
@can(USER)
@_of_own_login
def index(request: HttpRequest) -> HttpResponse:
    return _page(request)


def _page(request: HttpRequest, slack_code: str = "") -> HttpResponse:
    """Show the account. `slack_code`: a new code, shown only in this response."""
    record_request(request)  # lists the session also after its key changed, as with a new password
    left = second_factor.count_recovery_codes(request.user)
    context = {
        "factor": SecondFactor.objects.filter(user=request.user).first(),
        "has_password": request.user.has_usable_password() and config.takes_passwords(),
        "provider": sign_on.provider_name() if config.signs_on() else "",
        "is_required": second_factor.is_required(request.user),
        "codes_left": left,
        "is_few": left <= second_factor.FEW,
        "tokens": [one for one in ApiToken.objects.filter(owner=request.user).order_by("name") if one.is_in_force],
        "sessions": list(sign_ins.list_open(request.user)),
        "this_key": request.session.session_key,
        "slack": slack_links.read(request.user),
        "slack_code": slack_code,
        "slack_is_on": bool(config.slack_secret()),
        "can_link_slack": second_factor.is_password_enough(request.user),
    }
    return render(request, "redrive/account/index.html", context)


@require_POST
@can(USER)
@_of_own_login
def start(request: HttpRequest) -> HttpResponse:
    """Start the set-up of a second factor, or its replacement, after checking the password or a code."""
    if second_factor.is_set_up(request.user):
        refusal = _check_code(request)
    else:
        refusal = _check_password(request)
    if refusal is not None:
        return refusal
    request.session[_KEY], request.session[_AT] = second_factor.make_key(), time.time()
    return go(request, reverse("redrive:second-factor"))


@require_http_methods(["GET", "HEAD", "POST"])
@can(USER)
@_of_own_login
def set_up(request: HttpRequest) -> HttpResponse:
    account, action = reverse("redrive:account"), reverse("redrive:second-factor")
    sealed = request.session.get(_KEY)
    if sealed is None or not 0 <= time.time() - request.session.get(_AT, 0) <= second_step.WITHIN_S:
        return HttpResponseRedirect(account)
    try:
        if request.method != "POST":
            return pages.set_up(request, request.user, sealed, action, back=account)
        user = request.user
        codes = second_factor.enrol(user, sealed, request.POST.get("code", ""))
        if not codes:
            return pages.set_up(request, user, sealed, action, is_wrong=True, back=account)
    except InvalidToken:  # the payload key was removed meanwhile
        del request.session[_KEY]
        return HttpResponseRedirect(account)
    second_step.finish(request, user)
    return pages.recovery_codes(request, codes, account)


@require_POST
@can(USER)
@_of_own_login
def remove(request: HttpRequest) -> HttpResponse:
    if second_factor.is_required(request.user):
        return _refuse(request, "Your role requires a second factor. Nothing was changed. You can replace yours.")
    refusal = _check_code(request)
    if refusal is not None:
        return refusal
    user = request.user
    second_factor.remove(request.viewer, user)
    second_step.finish(request, user, second_step.PASSWORDS)
    add_toast(request, "Your second factor is removed. Your other sessions have ended.")
    return go(request, reverse("redrive:account"))


@require_POST
@can(USER)
@_of_own_login
def renew_recovery_codes(request: HttpRequest) -> HttpResponse:
    refusal = _check_code(request)
    if refusal is not None:
        return refusal
    codes = second_factor.renew_recovery_codes(request.user)
    if not codes:
        return _refuse(request, "Your second factor was removed meanwhile. Nothing was changed.")
    return pages.recovery_codes(request, codes, reverse("redrive:account"))


@require_POST
@can(USER)
@_of_own_login
def change_password(request: HttpRequest) -> HttpResponse:
    """Set a new password after checking the current one; end the person's other sessions."""
    refusal = _check_password(request)
    if refusal is not None:
        return refusal
    user, new = request.user, request.POST.get("new_password", "")
    if new != request.POST.get("repeated", ""):
        return _refuse(request, "The two new passwords differ. Nothing was changed.")
    try:
        validate_password(new, user)
    except ValidationError as refused:
        return _refuse(request, f"{' '.join(refused.messages)} Nothing was changed.")
    backend = request.session[BACKEND_SESSION_KEY]
    sign_ins.change_password(request.viewer, user, new)
    second_step.finish(request, user, backend)
    add_toast(request, "Your password is changed. Your other sessions have ended.")
    return go(request, reverse("redrive:account"))


@require_POST
@can(USER)
@_of_own_login
def end_sessions(request: HttpRequest) -> HttpResponse:
    """End one session of the person, or all but this one."""
    chosen = request.POST.get("session", "")
    pk = None if chosen == "others" else whole_number(chosen) or 0
    ended = sign_ins.end(request.viewer, request.user, pk, but=request.session.session_key)
    add_toast(request, f"{ended} session{'' if ended == 1 else 's'} ended." if ended else "No such session is open.")
    return go(request, reverse("redrive:account"))


@require_POST
@can(USER)
@_of_own_login
def slack(request: HttpRequest) -> HttpResponse:
    """Create a code, confirm the Slack user who sent it, or unlink."""
    step = request.POST.get("step", "")
    if step != "unlink" and not (config.slack_secret() and second_factor.is_password_enough(request.user)):
        return _refuse(request, "Your account cannot be linked to Slack. Nothing was changed.")
    try:
        if step == "code":
            return _page(request, slack_links.make_code(request.viewer, request.user))
        if step == "confirm":
            if (refusal := _check_password(request)) is not None:
                return refusal
            request.user.refresh_from_db()  # checking a password may upgrade its hash
            team, member = request.POST.get("team", ""), request.POST.get("member", "")
            slack_links.confirm(request.viewer, request.user, team, member)
            add_toast(request, "Linked. You can approve and reject replays in Slack.")
        elif step == "unlink":
            slack_links.unlink(request.viewer, request.user)
            add_toast(request, "Unlinked from Slack.")
        else:
            return _refuse(request, "Choose what to do. Nothing was changed.")
    except Refused as refused:
        return _refuse(request, refused.message)
    return go(request, reverse("redrive:account"))


def _check_password(request: HttpRequest) -> HttpResponse | None:
    """Return the refusal of the password; None if it is correct. django-axes counts, and may respond instead."""
    user = request.user
    if not (user.has_usable_password() and config.takes_passwords()):
        return _refuse(request, "Your account has no password here. Nothing was changed.")
    found = authenticate(request, username=user.get_username(), password=request.POST.get("password", ""))
    return (
        None if found is not None and found.pk == user.pk else _refuse(request, "Wrong password. Nothing was changed.")
    )


def _check_code(request: HttpRequest) -> HttpResponse | None:
    """Return the refusal of the code; None if it was accepted, and thereby used up."""
    result = second_factor.check(request.user, request.POST.get("code", ""), viewer=request.viewer)
    return None if result.is_accepted else _refuse(request, pages.REFUSALS[result] + " Nothing was changed.")


def _refuse(request: HttpRequest, text: str) -> HttpResponse:
    add_toast(request, text, level="error")
    return go(request, reverse("redrive:account"))
