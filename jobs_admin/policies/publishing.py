"""Put a policy in force, restore a former version, withdraw one. Former versions are never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from jobs_admin.core import policy as core
from jobs_admin.core.figures import dated
from jobs_admin.core.matching import equal
from jobs_admin.core.policy import Policy, Problem
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.db import audit
from jobs_admin.db.authorizing import audited, authorize, may_write, note
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.policies import pushing, reading, succession
from jobs_admin.policies.changes import conflicts, difference


def read(document: object) -> Policy:
    """Return the policy in a document, with or without a name. Raises Refused with all problems."""
    try:
        return core.parse(document)
    except Refused as refused:
        message = f"{refused} Nothing was changed."
        raise Refused(refused.code, message, refused.field, **refused.details) from refused


def may_publish(viewer: Viewer, source: str) -> bool:
    """Return whether the viewer may publish or withdraw policies for this source, which may be a pattern."""
    return may_write(viewer, OPERATOR, source)


def check(viewer: Viewer, name: str, document: object) -> Policy:
    """Return the policy that publishing this would put in force. Raises Refused for invalid content or match."""
    policy = _read(name, document, timezone.now())
    _must_match_alone(viewer, policy)
    return policy


def publish(
    viewer: Viewer, name: str, document: object, *, expected_version: int | None = None, reason: str = ""
) -> PolicyVersion:
    """Put the document in force as the next version of this name. An unchanged document creates no version.

    `expected_version`: the version in force on which the edit is based; None or 0 if there was none. Raises Refused,
    and NotFound if a hidden policy has this name.
    """
    now = timezone.now()
    policy = _read(name, document, now)

    def change(before: PolicyVersion | None) -> PolicyVersion:
        if before is not None and before.document == core.document(policy):
            return before
        _not_stale(viewer, before, expected_version, policy)
        return _put_in_force(viewer, "policy.publish", policy, before, reason, now)

    return _changed(viewer, "policy.publish", name, policy.match.source, change)


def put_back(
    viewer: Viewer, name: str, version: int, *, expected_version: int | None = None, reason: str = ""
) -> PolicyVersion:
    """Put a former version in force again, as the next version. Raises Refused, and NotFound."""
    now = timezone.now()
    former = reading.version(viewer, name, version)
    policy = succession.read_former(read(former.document), now)

    def change(before: PolicyVersion | None) -> PolicyVersion:
        if before is not None and before.version == former.version:
            message = f"{former} is already in force. Nothing was changed."
            raise Refused("invalid", message, "version")
        _not_stale(viewer, before, expected_version, policy)
        text = f"Version {version} restored. {reason}".strip()
        return _put_in_force(viewer, "policy.put_back", policy, before, text, now)

    return _changed(viewer, "policy.put_back", name, policy.match.source, change)


def withdraw(viewer: Viewer, name: str, *, expected_version: int | None = None, reason: str = "") -> PolicyVersion:
    """Take a name out of force; any of its versions can be restored. Raises Refused, and NotFound."""
    seen = reading.get(viewer, name)

    def change(before: PolicyVersion | None) -> PolicyVersion:
        _not_stale(viewer, before, expected_version or seen.version, None)
        assert before is not None  # otherwise the edit is stale
        succession.end(before, timezone.now())
        _record(viewer, "policy.withdraw", before, None, reason)
        return before

    return _changed(viewer, "policy.withdraw", name, seen.match_source, change)


def _changed(
    viewer: Viewer, act: str, name: str, source: str, change: Callable[[PolicyVersion | None], PolicyVersion]
) -> PolicyVersion:
    """Change the version in force under the name, under a lock against other publishing, and push it to the workers."""
    while True:
        # Checked before the transaction, whose rollback would remove the audit of a refusal.
        former = _in_force(name)
        if former is not None and not viewer.sees_any_of(former.match_source):
            note(viewer, act, f"policy:{name}", "The policy of this name is not visible to you.", [former.match_source])
            raise NotFound("Policy not found, or not visible to you.")
        touched = [source, *([former.match_source] if former else [])]
        message = "This policy needs the role {role} on {where}. Nothing was changed."
        authorize(viewer, OPERATOR, touched, act, f"policy:{name}", message=message, field="match.source")
        with transaction.atomic():
            succession.lock_publishing()
            before = _in_force(name)
            if before is None or before.match_source in touched:
                made = change(before)
                transaction.on_commit(pushing.push_soon)
                return made


def _in_force(name: str) -> PolicyVersion | None:
    return PolicyVersion.objects.filter(name=name, is_published=True).first()


def _put_in_force(
    viewer: Viewer, act: str, policy: Policy, before: PolicyVersion | None, reason: str, now: datetime
) -> PolicyVersion:
    _must_match_alone(viewer, policy)
    reverts_to = before.version if before is not None else None
    made = succession.put_in_force(viewer, policy, reason, now, reverts_to)
    _record(viewer, act, before, made, reason)
    return made


def _record(viewer: Viewer, act: str, before: PolicyVersion | None, after: PolicyVersion | None, reason: str) -> None:
    """Audit the difference between the versions, which have the complete documents.

    If its source changed, each source has a row of its own.
    """
    changes = difference(before and before.document, after and after.document)
    was = before and {"version": before.version, **{c.field: c.before for c in changes if c.before is not None}}
    became = after and {"version": after.version, **{c.field: c.after for c in changes if c.after is not None}}
    named = after or before
    assert named is not None
    sides = {"before": (before, was), "after": (after, became)}
    for source in audited(one.match_source for one in (before, after) if one is not None):
        of_source = {
            side: values for side, (one, values) in sides.items() if one and source in audited([one.match_source])
        }
        audit.record(viewer, act, f"policy:{named.name}", source=source, reason=reason, **of_source)


def _read(name: str, document: object, now: datetime) -> Policy:
    if isinstance(document, Mapping):
        document = {**document, "name": document.get("name") or name}
    policy = read(document)
    if not policy.name:
        raise _invalid("name", "Enter a name.", "1 to 63 of a-z, 0-9, -, _ and .")
    if policy.name != name:
        raise _invalid("name", f"The document has the name {policy.name!r}, not {name!r}.", name)
    if policy.expires_at is not None and policy.expires_at <= now:
        raise _invalid("expires_at", f"expires_at {dated(policy.expires_at, now)} UTC has passed.", "in the future")
    return policy


def _invalid(field: str, message: str, bound: str) -> Refused:
    return Refused("invalid", f"{message} Nothing was changed.", field, problems=[Problem(field, message, bound)])


def _not_stale(viewer: Viewer, before: PolicyVersion | None, expected: int | None, yours: Policy | None) -> None:
    present = before.version if before else 0
    if present == (expected or 0):
        return
    if before is None:
        message = f"No version is in force: the policy was withdrawn after version {expected}. Nothing was changed."
    elif not expected:
        message = f"The policy {before.name} already exists (version {before.version}). Nothing was changed."
    else:
        message = (
            f"{before.published_by} published version {before.version} after version {expected}. Nothing was changed. "
            "Review the differences and publish again."
        )
    named = before.name if before else (yours.name if yours else "")
    was = PolicyVersion.objects.filter(name=named, version=expected or 0).first()
    if was is not None and not viewer.sees_any_of(was.match_source):
        was = None  # any number can be requested, and that version may have had another source
    sent = core.document(yours) if yours is not None else {}
    current = before and {"version": before.version, "by": before.published_by, "at": before.published_at}
    difference = conflicts(was and was.document, before and before.document, sent)
    raise Refused("stale", message, "expected_version", current=current, difference=difference)


def _must_match_alone(viewer: Viewer, policy: Policy) -> None:
    """Raise Refused if two policies would match equally, now or after another one expires."""
    for others, when in ((succession.matching(), "matches the same jobs"), (succession.coming_back(), _LATER)):
        other = equal(policy, [one for one in others if one.name != policy.name])
        if other is not None:
            named = other.name if viewer.sees_any_of(other.match.source) else "A policy that you cannot see"
            message = f"{named} {when} with the same precision. Nothing was changed."
            raise Refused("equal_match", message, "match", policy=named)


_LATER = "will match the same jobs again when its current version expires"
