"""One version takes the place of another: the rows, their numbers, and what an expiry brings back.

Inside one transaction that `hold` begins: two who publish at once would each not see what the other matches.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from django.db import connection
from django.db.models import Max

from jobs_admin.core.policy import Match, Policy, document
from jobs_admin.core.text import representable
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import Viewer
from jobs_admin.models.policy import LONGEST_REASON


def hold() -> None:
    """Block other publishing until the transaction ends. Readers continue. (SQLite does so as soon as it writes.)"""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE jobs_admin_policyversion IN SHARE ROW EXCLUSIVE MODE")


def put_in_force(viewer: Viewer, policy: Policy, reason: str, now: datetime, reverts_to: int | None) -> PolicyVersion:
    """The next version of its name, in the place of the one before."""
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
    """Without a successor: nothing is in force under its name."""
    PolicyVersion.objects.filter(pk=current.pk).update(is_published=False, ended_at=now)


def follower(expired: PolicyVersion, now: datetime) -> PolicyVersion | None:
    """Return the version that returns when this one expires: the one before it that has not expired itself; None:
    nothing.
    """
    number = expired.reverts_to
    while number is not None:
        # Always smaller than the one before it, so that this ends.
        former = PolicyVersion.objects.get(name=expired.name, version=number)
        if former.expires_at is None or former.expires_at > now:
            return former
        number = former.reverts_to
    return None


def read_former(policy: Policy, now: datetime) -> Policy:
    """Return the policy of a former version. One that would have expired by now does not expire."""
    has_passed = policy.expires_at is not None and policy.expires_at <= now
    return replace(policy, expires_at=None) if has_passed else policy


def matching() -> list[Policy]:
    """Return the policies in force, by name and match only: documents are not read while others wait to publish, nor
    need they be readable to match.
    """
    return [_match(one) for one in _MATCHES.filter(is_published=True).order_by("name")]


def coming_back() -> list[Policy]:
    """Return the policies that will be in force again when another expires, as `matching` does."""
    found = []
    for current in _MATCHES.filter(is_published=True, expires_at__isnull=False):
        number = current.reverts_to
        # One that a hand in the database deleted brings nothing back.
        while former := _MATCHES.filter(name=current.name, version=number).first():
            found.append(_match(former))
            number = former.reverts_to
    return found


_MATCHES = PolicyVersion.objects.only("name", "version", "reverts_to", "match_source", "match_queue", "match_task")


def _match(version: PolicyVersion) -> Policy:
    return Policy(version.name, Match(version.match_source, version.match_queue, version.match_task))
