"""Second step of signing in: the two authentication backends for passwords, and the session between the steps.

Between the steps a session names a person without logging them in: `request.user` stays anonymous, so it grants
nothing. A person who has or needs a second factor can only use `BothSteps`: a session of the password alone ends at
once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model, login
from django.contrib.auth.backends import ModelBackend
from django.contrib.sessions.backends.base import SessionBase
from django.db.models import Exists, OuterRef
from django.http import HttpRequest
from django.utils.crypto import constant_time_compare

from jobs_admin import config
from jobs_admin.models import SecondFactor
from jobs_admin.rights import second_factor

PASSWORDS = "dashboard.web.second_step.Passwords"
BOTH_STEPS = "dashboard.web.second_step.BothSteps"
WITHIN_S = 600  # seconds from the password to the code
_STARTED = "second_step"  # session key


def _find_user(user_id: Any) -> Any:
    """Return the account with `has_second_factor`, in one query; None if it does not exist."""
    has_one = Exists(SecondFactor.objects.filter(user=OuterRef("pk")))
    return get_user_model()._default_manager.annotate(has_second_factor=has_one).filter(pk=user_id).first()


class Passwords(ModelBackend):
    """Sessions of people who entered their password and need no second factor."""

    def get_user(self, user_id: Any) -> Any:
        user = _find_user(user_id)
        if user is None or not self.user_can_authenticate(user):
            return None
        return None if user.has_second_factor or second_factor.is_required(user) else user


class BothSteps(ModelBackend):
    """Sessions of people who entered their password and a code. They end when the second factor is removed."""

    def authenticate(self, request: Any, username: str | None = None, password: str | None = None, **more: Any) -> None:
        return None

    def get_user(self, user_id: Any) -> Any:
        user = _find_user(user_id)
        return user if user is not None and user.has_second_factor and self.user_can_authenticate(user) else None


@dataclass(frozen=True, slots=True)
class Started:
    """Sign-in after the correct password."""

    user: Any
    after: str  # the next page
    key: str = ""  # key of the second factor to be set up, encrypted; "" if the person already has one


def is_needed(user: Any) -> bool:
    """Return whether this person needs more than the password. In a host project its own login decides."""
    return config.is_own_project() and (second_factor.is_set_up(user) or second_factor.is_required(user))


def start(request: HttpRequest, user: Any, after: str) -> Started:
    """Store the person in a session with a new key, which protects against session fixation."""
    key = "" if second_factor.is_set_up(user) else second_factor.make_key()
    request.session.flush()
    request.session[_STARTED] = {
        "user": str(user.pk), "hash": user.get_session_auth_hash(), "after": after, "key": key, "at": time.time()
    }  # fmt: skip
    request.session.set_expiry(WITHIN_S)
    return Started(user, after, key)


def read(session: SessionBase) -> Started | None:
    """Return the sign-in started in this session; None after ten minutes, or after a change of password or account."""
    # A host project's session may use the same name.
    started = session.get(_STARTED) if config.is_own_project() else None
    if started is None or not 0 <= time.time() - started["at"] <= WITHIN_S or not config.takes_passwords():
        return None
    user = get_user_model()._default_manager.filter(pk=started["user"], is_active=True).first()
    if user is None or not constant_time_compare(started["hash"], user.get_session_auth_hash()):
        return None
    # A sign-in started without a second factor cannot be completed with one set up meanwhile, and vice versa.
    if second_factor.is_set_up(user) == bool(started["key"]):
        return None
    return Started(user, started["after"], started["key"])


def finish(request: HttpRequest, user: Any, backend: str = BOTH_STEPS) -> None:
    """Log in, in a new session with a new key."""
    request.session.flush()
    login(request, user, backend)
