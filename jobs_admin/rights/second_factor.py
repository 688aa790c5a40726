"""Second factor of accounts with a password: codes of an authenticator app (TOTP, RFC 6238), and recovery codes.

A code is accepted once, within its 30-second step, the step before or the step after. Attempts are counted per account,
regardless of session and address, before the code is checked, so that concurrent attempts cannot share one.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from cryptography.fernet import InvalidToken
from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction
from django.db.models import Case, F, Q, QuerySet, Value, When
from django.utils import timezone

from jobs_admin import config
from jobs_admin.db import audit
from jobs_admin.models import RecoveryCode, Role, SecondFactor
from jobs_admin.models.access import ADMIN, Viewer, viewer_of
from jobs_admin.rights import sign_ins

ISSUER = "Redrive"
LOCKED_AFTER, LOCKED_FOR = 10, timedelta(minutes=15)  # consecutive attempts
BLOCKED_AFTER = 100  # until an admin resets the second factor: NIST SP 800-63B, 5.2.2
RECOVERY_CODES, FEW = 10, 3
_DRIFT = 1  # steps in each direction
_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
_LENGTH = 16  # letters: 79 bits, so a hash without salt is sufficient, as for tokens
_SIGN_IN = Viewer("sign-in")  # the sender of a wrong code is unknown


class Result(Enum):
    """Result of checking a code."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"  # accepted, a recovery code
    WRONG = "wrong"  # or already used
    LOCKED = "locked"  # for LOCKED_FOR
    BLOCKED = "blocked"
    UNREADABLE = "unreadable"  # the key was encrypted with a key that is not in REDRIVE_PAYLOAD_KEYS

    @property
    def is_accepted(self) -> bool:
        return self in {Result.ACCEPTED, Result.RECOVERED}


def find_required() -> QuerySet[Any]:
    """Return the accounts with a role in REDRIVE_SECOND_FACTOR_FOR. Superusers and staff count as admins."""
    accounts = get_user_model()._default_manager
    roles = config.setting("SECOND_FACTOR_FOR")
    if not roles:
        return accounts.none()
    has_role = Q(pk__in=Role.objects.filter(role__in=roles).values("user"))
    return accounts.filter(has_role | Q(is_superuser=True) | Q(is_staff=True) if ADMIN in roles else has_role)


def is_required(user: Any) -> bool:
    return find_required().filter(pk=user.pk).exists()


def is_set_up(user: Any) -> bool:
    return SecondFactor.objects.filter(user=user).exists()


def is_password_enough(user: Any) -> bool:
    """Return whether the password alone logs this person in."""
    return user.has_usable_password() and config.takes_passwords() and not is_set_up(user) and not is_required(user)


def make_key() -> str:
    """Return a new 160-bit key, encrypted, as a session stores it until the first code confirms it."""
    import pyotp  # needed by few requests

    return _seal(pyotp.random_base32(32))


def open_key(sealed: str) -> str:
    """Return the key in Base32. Raises InvalidToken."""
    return config.payload_keys().decrypt(sealed.encode()).decode()


def build_uri(user: Any, key: str) -> str:
    """Return the `otpauth://` link that an authenticator app reads."""
    import pyotp

    return pyotp.TOTP(key).provisioning_uri(name=user.get_username(), issuer_name=ISSUER)


def enrol(user: Any, sealed: str, code: str, *, replaces: bool = True) -> list[str]:
    """Set up the second factor, end the person's sessions, and return the recovery codes.

    Empty if the code is wrong, or if the person already has a second factor and `replaces` is False.
    """
    step = _find_step(sealed, _plain(code), timezone.now())
    if step is None:
        return []
    try:
        with transaction.atomic():
            replaced, _ = SecondFactor.objects.filter(user=user).delete() if replaces else (0, {})
            factor = SecondFactor.objects.create(user=user, sealed=_seal(open_key(sealed)), last_step=step)
            codes = _make_recovery_codes(factor)
            # Deleted, because a session that is only refused would become valid again with the next change.
            sign_ins.drop(viewer_of(user), user)
            _record(viewer_of(user), "second_factor.enrol", user, after={"replaced": bool(replaced)})
    except IntegrityError:  # concurrent requests
        return []
    return codes


def check(user: Any, code: str, *, viewer: Viewer = _SIGN_IN, now: datetime | None = None) -> Result:
    """Check a code of the app or a recovery code, and use it up. `viewer`: its sender."""
    now = now or timezone.now()
    factor = SecondFactor.objects.filter(user=user).first()
    if factor is None:
        return Result.WRONG
    is_open = _take_attempt(factor, now)
    factor = SecondFactor.objects.filter(pk=factor.pk).first()  # including concurrent attempts
    if factor is None:  # removed concurrently
        return Result.WRONG
    # No one guesses 79 bits: a person with the password must not be able to lock out one with a recovery code.
    if len(_plain(code)) == _LENGTH and _use_recovery_code(factor, _plain(code), now):
        return Result.RECOVERED
    if not is_open:
        return Result.BLOCKED if factor.attempts >= BLOCKED_AFTER else Result.LOCKED
    try:
        result = Result.ACCEPTED if _use_code(factor, _plain(code), now) else Result.WRONG
    except InvalidToken:
        result = Result.UNREADABLE
    if result is not Result.ACCEPTED:
        act = "login.second_factor" if viewer is _SIGN_IN else "second_factor.check"
        with transaction.atomic():
            _record(viewer, act, user, reason=_why_refused(result, factor.attempts), allowed=False)
    return result


def _take_attempt(factor: SecondFactor, now: datetime) -> bool:
    """Count an attempt, in one statement; return False if the account has none left."""
    is_open = Q(retry_at=None) | Q(retry_at__lte=now)
    last = range(LOCKED_AFTER - 1, BLOCKED_AFTER, LOCKED_AFTER)  # 10th, 20th … attempt
    retry_at = Case(When(attempts__in=last, then=Value(now + LOCKED_FOR)), default=None)
    open_factors = SecondFactor.objects.filter(is_open, pk=factor.pk, attempts__lt=BLOCKED_AFTER)
    return bool(open_factors.update(attempts=F("attempts") + 1, retry_at=retry_at))


def _use_code(factor: SecondFactor, code: str, now: datetime) -> bool:
    step = _find_step(factor.sealed, code, now)
    if step is None:
        return False
    # Of two requests with the same code, the second finds the step already used.
    unused = SecondFactor.objects.filter(pk=factor.pk, last_step__lt=step)
    return bool(unused.update(last_step=step, **_NO_ATTEMPTS))


def _plain(code: str) -> str:
    return re.sub(r"[\s-]", "", code[:100]).lower()


def _use_recovery_code(factor: SecondFactor, code: str, now: datetime) -> bool:
    with transaction.atomic():
        unused_codes = RecoveryCode.objects.filter(factor=factor.pk, sha256=_hash(code), used_at=None)
        if not unused_codes.update(used_at=now):
            return False
        SecondFactor.objects.filter(pk=factor.pk).update(**_NO_ATTEMPTS)
        left = count_recovery_codes(factor.user)
        _record(viewer_of(factor.user), "second_factor.recover", factor.user, after={"recovery_codes": left})
    return True


_NO_ATTEMPTS: dict[str, Any] = {"attempts": 0, "retry_at": None}


def _find_step(sealed: str, code: str, now: datetime) -> int | None:
    """Return the 30-second step to which the code belongs; None if it belongs to no current step. Raises InvalidToken."""
    import pyotp
    from pyotp.exceptions import OTPVerificationError

    if not re.fullmatch("[0-9]{6}", code):
        return None
    try:
        return pyotp.TOTP(open_key(sealed)).verify_and_get_timecode(code, for_time=now, valid_window=_DRIFT)
    except OTPVerificationError:
        return None


def _why_refused(result: Result, attempts: int) -> str:
    if result is Result.UNREADABLE:
        return "The key of the second factor was encrypted with a key that is not in REDRIVE_PAYLOAD_KEYS."
    if attempts >= BLOCKED_AFTER:
        return f"Wrong code, the {attempts}th in a row: blocked until an admin resets the second factor."
    locked = f": locked for {LOCKED_FOR.seconds // 60} minutes" if attempts % LOCKED_AFTER == 0 else ""
    return f"Wrong, expired or used code, attempt {attempts}{locked}."


def count_recovery_codes(user: Any) -> int:
    """Return the number of recovery codes left."""
    return RecoveryCode.objects.filter(factor__user=user, used_at=None).count()


def renew_recovery_codes(user: Any) -> list[str]:
    """Return ten new recovery codes; earlier ones become invalid. Empty if the second factor was removed meanwhile."""
    with transaction.atomic():
        factor = SecondFactor.objects.select_for_update().filter(user=user).first()
        if factor is None:
            return []
        factor.recovery_codes.all().delete()
        codes = _make_recovery_codes(factor)
        _record(viewer_of(user), "second_factor.renew_recovery_codes", user)
    return codes


def _make_recovery_codes(factor: SecondFactor) -> list[str]:
    codes = ["".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH)) for _ in range(RECOVERY_CODES)]
    RecoveryCode.objects.bulk_create(RecoveryCode(factor=factor, sha256=_hash(code)) for code in codes)
    return ["-".join(code[at : at + 4] for at in range(0, _LENGTH, 4)) for code in codes]


def remove(viewer: Viewer, user: Any, act: str = "second_factor.remove") -> bool:
    """Remove the second factor and end the person's sessions; return False if there is none."""
    with transaction.atomic():
        removed, _ = SecondFactor.objects.filter(user=user).delete()
        if removed:
            sign_ins.drop(viewer, user)
            _record(viewer, act, user)
    return bool(removed)


def _record(viewer: Viewer, act: str, user: Any, **more: Any) -> None:
    audit.record(viewer, act, f"user:{user.get_username()}", **more)


def _seal(key: str) -> str:
    return config.payload_keys().encrypt(key.encode()).decode()


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode(errors="replace")).hexdigest()
