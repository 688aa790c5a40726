"""A version that was for a time ends, and the one before is in force again."""

from __future__ import annotations

import logging
from datetime import datetime

from django.db import IntegrityError, transaction

from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.db.authorizing import audited
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import ENGINE
from jobs_admin.policies import pushing, succession

log = logging.getLogger(__name__)


def step(now: datetime) -> bool:
    """One round of `watch`: end what has expired, then repair what Redis says. Whether there was something to do."""
    ended = expire(now)
    return pushing.push() or ended


def expire(now: datetime) -> bool:
    """End each expired version. Return whether there was one. If the version before it cannot return, because it cannot
    be read or the database refuses it, the expired one stays in force: the others end nevertheless.
    """
    due = PolicyVersion.objects.filter(is_published=True, expires_at__lte=now)
    ended = False
    for name in list(due.values_list("name", flat=True)):
        try:
            with transaction.atomic():
                succession.hold()
                # Asked again: somebody else may have expired or published it meanwhile.
                if (current := due.filter(name=name).first()) is not None:
                    _revert(current, now)
                    ended = True
        except (Refused, PolicyVersion.DoesNotExist, IntegrityError) as error:
            _log_once(name, error)
    return ended


_logged: set[str] = set()  # of this process: the step comes back every second


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
    former = succession.follower(current, now)
    if former is None:
        succession.end(current, now)
        after = None
        reason = f"Version {current.version} has expired; there was no earlier version."
    else:
        reason = f"Version {current.version} has expired; version {former.version} restored."
        policy = succession.read_former(former.policy, now)
        after = succession.put_in_force(ENGINE, policy, reason, now, former.reverts_to).version
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
