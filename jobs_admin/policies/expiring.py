"""A version that was for a time ends, and the one before is in force again."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from jobs_admin import audit
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import ENGINE
from jobs_admin.policies import pushing, rights, succession


def step(now: datetime) -> bool:
    """One round of `watch`: end what has expired, then repair what Redis says. Whether there was something to do."""
    ended = expire(now)
    return pushing.push() or ended


def expire(now: datetime) -> bool:
    """Raises IntegrityError where the version before can not come back; then the expired one stays in force."""
    due = PolicyVersion.objects.filter(is_published=True, expires_at__lte=now)
    names = list(due.values_list("name", flat=True))
    for name in names:
        with transaction.atomic():
            succession.hold()
            # Asked again: somebody else may have expired or published it meanwhile.
            if (current := due.filter(name=name).first()) is not None:
                _revert(current, now)
    return bool(names)


def _revert(current: PolicyVersion, now: datetime) -> None:
    former = succession.follower(current, now)
    if former is None:
        succession.end(current, now)
        after = None
        reason = f"Version {current.version} has expired; there was none before it."
    else:
        reason = f"Version {current.version} has expired: version {former.version} again."
        policy = succession.again(former, now)
        after = succession.put_in_force(ENGINE, policy, reason, now, former.reverts_to).version
    for source in rights.audited([current.match_source, *([former.match_source] if former else [])]):
        audit.record(
            ENGINE,
            "policy.expire",
            f"policy:{current.name}",
            source=source,
            reason=reason,
            before={"version": current.version},
            after=after and {"version": after},
        )
