"""Authorization before every act, outside its transaction, so that a refusal stays in the audit.

A source may be a pattern: an act on several sources belongs to all of them, also to those that will come.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction

from jobs_admin import config
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit
from jobs_admin.models.access import EVERY_SOURCE, Viewer


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
    """Raise Refused, and write that into the audit, on a read-only desk and where the viewer lacks the role on a source.

    `source`: one or several, each may be a pattern; None asks for the role on any source. `message` may name the first source
    that lacks it by `{where}`, or by `{seen}` where a viewer without a role on that source must not read its name.
    The refusal is written at `noted_at`, else at the sources that lack the role.
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
    """Raise it, and write it into the audit of each source."""
    note(viewer, act, object, refused.message, sources)
    raise refused


def note(viewer: Viewer, act: str, object: str, message: str, sources: Iterable[str] = ()) -> None:
    """Write a refused act into the audit of each source."""
    with transaction.atomic():
        for source in audited(sources):
            audit.record(viewer, act, object, source=source, reason=message, allowed=False)


def audited(sources: Iterable[str]) -> list[str]:
    """One row of the audit each, so that the admin of one source reads what was done there; "" is every source."""
    return sorted({"" if owner(source) == EVERY_SOURCE else source for source in sources}) or [""]


def owner(source: str) -> str:
    """The source whose operators decide: every source where it is a pattern."""
    return EVERY_SOURCE if "*" in source else source
