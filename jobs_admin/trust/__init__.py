"""Verification of reports: signed with a key of their source, or unsigned while that is still accepted.

The tables are read once per second (`current`); reports are then verified without a query. Only the desk's clock
counts; times in a report are ignored.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from cryptography.fernet import InvalidToken
from django.conf import settings
from django.db.models import Q

from jobs_admin import config
from jobs_admin.core.figures import dated
from jobs_admin.core.report_signature import KEY, SIGNATURE, BadSourceKey, SigningKey, is_key_id, is_signed_with, sign
from jobs_admin.models import Source, SourceKey, UnsignedReports

# After the first signed report of a source, its unsigned reports are accepted only this long, for the rollout to a
# fleet.
UNSIGNED_AFTER_SIGNED = timedelta(days=1)
_NOTED_EVERY = timedelta(minutes=1)
_CACHED_S = 1.0
_DESK = "desk"  # id of the key of the desk itself


class Cause(StrEnum):
    """Reason why a report is not filed."""

    UNFILED = ""  # accepted, but unreadable, or not written
    UNSIGNED = "unsigned"
    SIGNATURE = "signature"  # wrong, or with a key that is unknown, revoked or another source's
    UNKNOWN = "unknown"  # from a source that has to be accepted first
    ACCEPTED = "accepted"  # refused, and since then accepted by an operator for filing


class ReportRefused(ValueError):
    """The report is refused. Nothing was changed; store it raw."""

    def __init__(self, source: str, cause: Cause, why: str) -> None:
        super().__init__(why)
        self.source = source
        self.cause = cause


@dataclass(frozen=True, slots=True)
class _Key:
    key: SigningKey | None  # None: no key of REDRIVE_PAYLOAD_KEYS decrypts it
    source: str
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Known:
    signed_since: datetime | None = None
    unsigned_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Trust:
    """Keys and sources at one time."""

    keys: Mapping[str, _Key]  # by id
    sources: Mapping[str, _Known]
    unsigned_until: datetime | None  # None: never

    @property
    def keys_in_force(self) -> list[str]:
        """Return the ids of keys that were not revoked."""
        return sorted(key_id for key_id, one in self.keys.items() if one.revoked_at is None)

    @property
    def unreadable_keys(self) -> list[str]:
        """Return the ids of keys in force that no key of REDRIVE_PAYLOAD_KEYS decrypts."""
        return [key_id for key_id in self.keys_in_force if self.keys[key_id].key is None]

    def check(self, entry: Mapping[bytes, bytes], source: str, now: datetime) -> str:
        """Return the id of the key that signed the entry; "" if it may be unsigned. Raises ReportRefused."""
        if entry.get(KEY) == _DESK.encode() and is_signed_with(entry, _desk_key()):
            return _DESK
        if source not in self.sources:  # before the signature: invented names are limited like all unknown sources
            raise ReportRefused(
                source, Cause.UNKNOWN, f"the source {source} is not known here and has not been accepted"
            )
        if KEY in entry or SIGNATURE in entry:
            return self._signed(entry, source, now)
        if why := self.why_not_unsigned(source, now):
            raise ReportRefused(source, Cause.UNSIGNED, f"the report is not signed, and {why}")
        return ""

    def why_not_unsigned(self, source: str, now: datetime) -> str:
        """Return why the source may send no unsigned reports; "" if it may."""
        if self.unsigned_until is None or now >= self.unsigned_until:
            ended = f" since {dated(self.unsigned_until, now)} UTC" if self.unsigned_until else ""
            return f"unsigned reports are not accepted{ended}"
        if self.must_sign(source, now):
            since = self.sources[source].signed_since
            return f"workers of {source} have been signing since {dated(since, now)} UTC"
        return ""

    def must_sign(self, source: str, now: datetime) -> bool:
        """Return whether the source must sign even while unsigned reports are accepted: it has signed for a day."""
        since = self.sources.get(source, _Known()).signed_since
        return since is not None and now >= since + UNSIGNED_AFTER_SIGNED

    def has_key(self, key_id: str, source: str) -> bool:
        """Return whether reports of the source signed with this key are accepted."""
        known = self.keys.get(key_id)
        return known is not None and known.source == source and known.revoked_at is None and known.key is not None

    def last_believed(self, source: str) -> datetime | None:
        """Return when a report of the source was last accepted, to the minute; None for never."""
        used = [one.last_used_at for one in self.keys.values() if one.source == source]
        return max(
            (at for at in (*used, self.sources.get(source, _Known()).unsigned_at) if at is not None), default=None
        )

    def _signed(self, entry: Mapping[bytes, bytes], source: str, now: datetime) -> str:
        key_id = entry.get(KEY, b"").decode("ascii", "replace")[:20]
        known = self.keys.get(key_id)
        if known is None:
            why = f"it is signed with a key that is not known here ({_displayable_id(key_id)})"
        elif known.source != source:
            why = f"it is signed with a key of another source ({key_id})"
        elif known.revoked_at is not None:
            why = f"its key {key_id} was revoked on {dated(known.revoked_at, now)} UTC"
        elif known.key is None:
            why = f"its key {key_id} cannot be opened with REDRIVE_PAYLOAD_KEYS"
        elif not is_signed_with(entry, known.key):
            why = f"its signature is wrong (key {key_id}): it was changed on its way or forged"
        else:
            return key_id
        raise ReportRefused(source, Cause.SIGNATURE, why)


def _displayable_id(key_id: str) -> str:
    """Return the id, or a placeholder for an invalid one, which comes from outside and is never displayed."""
    return key_id if key_id == _DESK or is_key_id(key_id) else "its id is none that a key can have"


def read() -> Trust:
    """Read the tables."""
    rows = SourceKey.objects.values_list("key_id", "source", "sealed", "revoked_at", "last_used_at")
    found = {
        key_id: _Key(None if revoked else _opened(sealed), source, revoked, used)
        for key_id, source, sealed, revoked, used in rows
    }
    sources = {name: _Known() for name in (*config.sources(), *(key.source for key in found.values()))}
    for name, signed, unsigned in Source.objects.values_list("name", "signed_since", "unsigned_at"):
        sources[name] = _Known(signed, unsigned)
    until = UnsignedReports.objects.values_list("until", flat=True).first()
    return Trust(found, sources, until)


_cached: tuple[float, Trust] | None = None


def current() -> Trust:
    """Return the content of the tables, at most a second old."""
    global _cached
    now = time.monotonic()
    if _cached is None or not 0 <= now - _cached[0] < _CACHED_S:
        _cached = now, read()
    return _cached[1]


def forget() -> None:
    """Clear the cache after a change by this process."""
    global _cached
    _cached = None


def note(trust: Trust, used: Iterable[tuple[str, str]], now: datetime) -> None:
    """Record, to the minute, which sources sign and with which keys.

    `used`: source and key id ("": unsigned) of reports that are being filed, in the same transaction.
    """
    for source, key_id in sorted(set(used)):
        known = trust.sources.get(source, _Known())
        if key_id == _DESK:
            continue
        if not key_id:
            if _is_old(known.unsigned_at, now):
                Source.objects.filter(_older("unsigned_at", now), name=source).update(unsigned_at=now)
            continue
        if known.signed_since is None:
            Source.objects.filter(name=source, signed_since=None).update(signed_since=now)
        if key_id not in trust.keys or _is_old(trust.keys[key_id].last_used_at, now):
            SourceKey.objects.filter(_older("last_used_at", now), key_id=key_id).update(last_used_at=now)


def _is_old(at: datetime | None, now: datetime) -> bool:
    return at is None or now - at >= _NOTED_EVERY


def _older(column: str, now: datetime) -> Q:
    return Q(**{column: None}) | Q(**{f"{column}__lte": now - _NOTED_EVERY})


def seal(key: SigningKey) -> str:
    """Return the key in the table's encrypted form."""
    return config.payload_keys().encrypt(str(key).encode()).decode()


def _opened(sealed: str) -> SigningKey | None:
    try:
        return SigningKey.parse(config.payload_keys().decrypt(sealed.encode()).decode())
    except (InvalidToken, BadSourceKey):
        return None


def sign_as_desk(entry: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the entry signed by the desk itself, for entries that it writes to the stream on behalf of a source."""
    return sign(entry, _desk_key())


def _desk_key() -> SigningKey:
    secret = hmac.new(settings.SECRET_KEY.encode(), b"redrive desk reports 1", hashlib.sha256).digest()
    return SigningKey("", _DESK, secret)
