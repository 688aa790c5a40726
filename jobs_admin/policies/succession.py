"""Succession of versions, by an act or by expiry: rows, numbers, and the version that returns.

Call it inside one transaction, after `lock_publishing`: concurrent publishers would not see each other's matches.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime

from django.db import IntegrityError, connection, transaction
from django.db.models import Max

from jobs_admin.core.policy import Match, Policy, document
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.db import audit
from jobs_admin.db.authorizing import audited
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.models.policy import LONGEST_REASON
from jobs_admin.policies import pushing

log = logging.getLogger(__name__)


def lock_publishing() -> None:
    """Block other publishing until the transaction ends. Readers continue. (SQLite blocks at the first write.)"""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE jobs_admin_policyversion IN SHARE ROW EXCLUSIVE MODE")


def put_in_force(viewer: Viewer, policy: Policy, reason: str, now: datetime, reverts_to: int | None) -> PolicyVersion:
    """Insert the next version of its name, replacing the previous one."""
    former = PolicyVersion.objects.filter(name=policy.name)
    last = former.aggregate(Max("version"))["version__max"] or 0
    former.filter(is_published=True).update(is_published=False, ended_at=now)
    return PolicyVersion.objects.create(
        document=document(policy),
        version=last + 1,
        published_at=now,
        published_by=representable(viewer.name)[:150],
        reason=representable(" ".join(reason.split()))[:LONGEST_REASON],
        expires_at=policy.expires_at,
        reverts_to=reverts_to if policy.expires_at else None,
    )


def end(current: PolicyVersion, now: datetime) -> None:
    """End the version without a successor: nothing is in force under its name."""
    PolicyVersion.objects.filter(pk=current.pk).update(is_published=False, ended_at=now)


def follower(expired: PolicyVersion, now: datetime) -> PolicyVersion | None:
    """Return the version that returns when this one expires: the latest unexpired one before it; None: nothing."""
    number = expired.reverts_to
    while number is not None:
        # The number always decreases, so the loop ends.
        former = PolicyVersion.objects.get(name=expired.name, version=number)
        if former.expires_at is None or former.expires_at > now:
            return former
        number = former.reverts_to
    return None


def read_former(policy: Policy, now: datetime) -> Policy:
    """Return the policy of a former version, without its expiry if that is in the past."""
    has_passed = policy.expires_at is not None and policy.expires_at <= now
    return replace(policy, expires_at=None) if has_passed else policy


def step(now: datetime) -> bool:
    """Run a round of `watch`: end expired versions, then repair Redis. Return whether anything changed."""
    ended = expire(now)
    return pushing.push() or ended


def expire(now: datetime) -> bool:
    """End each expired version. Return whether there was one.

    If the version before it cannot return, because it is unreadable or the database refuses it, the expired one stays
    in force; the others end nevertheless.
    """
    due = PolicyVersion.objects.filter(is_published=True, expires_at__lte=now)
    ended = False
    for name in list(due.values_list("name", flat=True)):
        try:
            with transaction.atomic():
                lock_publishing()
                # Read again: another process may have expired or replaced it meanwhile.
                if (current := due.filter(name=name).first()) is not None:
                    _revert(current, now)
                    ended = True
        except (Refused, PolicyVersion.DoesNotExist, IntegrityError) as error:
            _log_once(name, error)
    return ended


_logged: set[str] = set()  # per process: the step repeats every second


def _log_once(name: str, error: Exception) -> None:
    if name not in _logged:
        _logged.add(name)
        log.warning(
            "The policy %s has expired and stays in force: the version before cannot be restored (%s). Publish "
            "another version, or withdraw the policy.",
            name,
            str(error)[:200],
        )


def _revert(current: PolicyVersion, now: datetime) -> None:
    former = follower(current, now)
    if former is None:
        end(current, now)
        after = None
        reason = f"Version {current.version} has expired; there was no earlier version."
    else:
        reason = f"Version {current.version} has expired; version {former.version} restored."
        policy = read_former(former.policy, now)
        after = put_in_force(ENGINE, policy, reason, now, former.reverts_to).version
    for source in audited([current.match_source, *([former.match_source] if former else [])]):
        audit.record(
            ENGINE,
            "policy.expire",
            f"policy:{current.name}",
            source=source,
            reason=reason,
            before={"version": current.version},
            after=after and {"version": after},
        )


def matching() -> list[Policy]:
    """Return the policies in force, by name and match only.

    Documents are not read while others wait to publish, and need not be readable to match.
    """
    return [_match(one) for one in _MATCHES.filter(is_published=True).order_by("name")]


def coming_back() -> list[Policy]:
    """Return the policies that will be in force again when another expires, by name and match only."""
    found = []
    for current in _MATCHES.filter(is_published=True, expires_at__isnull=False):
        number = current.reverts_to
        # If the row was deleted in the database, nothing returns.
        while former := _MATCHES.filter(name=current.name, version=number).first():
            found.append(_match(former))
            number = former.reverts_to
    return found


_MATCHES = PolicyVersion.objects.only("name", "version", "reverts_to", "match_source", "match_queue", "match_task")


def _match(version: PolicyVersion) -> Policy:
    return Policy(version.name, Match(version.match_source, version.match_queue, version.match_task))
