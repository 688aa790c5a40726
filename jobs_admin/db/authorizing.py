"""Authorization before every act, outside its transaction, so that a refusal stays in the audit.

A source may be a pattern: an act on several sources belongs to all of them, including future ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from django.db import transaction

from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.db import audit
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer


def authorize(
    viewer: Viewer,
    role: str,
    source: str | Iterable[str] | None,
    act: str,
    object: str = "",
    *,
    message: str = "This needs the role {role} on {where}. Nothing was changed.",
    field: str | None = None,
    noted_at: Iterable[str] = (),
) -> None:
    """Raise Refused, and record that in the audit, on a read-only desk or if the viewer lacks the role on a source.

    `source`: one or several, each may be a pattern; None requires the role on any source. `message` may name the first
    source that lacks it by `{where}`, or by `{seen}` if a viewer without a role on that source must not read its name.
    The refusal is recorded at `noted_at`, else at the sources that lack the role.
    """
    sources = None if source is None else [source] if isinstance(source, str) else list(source)
    if config.is_read_only():
        refuse(viewer, act, object, Refused("read_only", config.READ_ONLY), noted_at or sources or ())
    if sources is None:
        lacking = [] if viewer.may_anywhere(role) else [""]
    else:
        lacking = [one for one in sources if not viewer.may(role, owner(one))]
    if lacking:
        where = "every source" if owner(lacking[0]) == EVERY_SOURCE else lacking[0] or "any source"
        seen = where if viewer.role_on(owner(lacking[0])) else "a source"
        text = message.format(role=role, where=where, seen=seen)
        refuse(viewer, act, object, Refused("forbidden", text, field), noted_at or lacking)


def may_write(viewer: Viewer, role: str, source: str) -> bool:
    """Return whether `authorize` would let the viewer act."""
    return not config.is_read_only() and viewer.may(role, owner(source))


def refuse(viewer: Viewer, act: str, object: str, refused: Refused, sources: Iterable[str] = ()) -> None:
    """Record a refusal in the audit of each source, and raise it."""
    note(viewer, act, object, refused.message, sources)
    raise refused


def note(viewer: Viewer, act: str, object: str, message: str, sources: Iterable[str] = ()) -> None:
    """Record a refused act in the audit of each source."""
    with transaction.atomic():
        for source in audited(sources):
            audit.record(viewer, act, object, source=source, reason=message, allowed=False)


def audited(sources: Iterable[str]) -> list[str]:
    """Return the sources that each get an audit row, so that the admin of one reads its acts; "" is every source."""
    return sorted({"" if owner(source) == EVERY_SOURCE else source for source in sources}) or [""]


def owner(source: str) -> str:
    """Return the source whose operators decide: every source if it is a pattern."""
    return EVERY_SOURCE if "*" in source else source


def second_person_refusal(
    viewer: Viewer, subject: str, actor: str, hands: Collection[tuple[str, int | None]], sources: Sequence[str]
) -> str:
    """Return why the viewer cannot be the second person; "" if they can.

    `hands`: (name, user) of each who started the subject, including `actor`.
    """
    name, person = representable(viewer.name)[:150], viewer.person_id
    if any(name == starter or (person is not None and person == user) for starter, user in hands):
        return f"You started {subject} yourself, so another operator must approve it."
    if person is None and any(user is not None for _, user in hands):
        return (
            f"{subject[0].upper()}{subject[1:]} was started by {actor}, who may own this token. "
            "Another operator must approve it, logged in or with their own token."
        )
    if person is not None and any(user is None for _, user in hands) and not _is_admin(viewer, sources):
        return (
            f"{subject[0].upper()}{subject[1:]} was started by {actor}, whose identity is unknown. "
            "An admin of all its sources must approve it, or another token without an owner."
        )
    return ""


def _is_admin(viewer: Viewer, sources: Sequence[str]) -> bool:
    return all(viewer.may(ADMIN, source) for source in sources)
