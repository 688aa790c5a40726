"""The part of a group that a viewer may read: its text, its times, and its annotations.

The row of a group covers all its sources. A viewer of all of them reads it as it is. For any other viewer the group is
partial and is reduced to its parts (`GroupSource`) in visible sources. Its title is that of the earliest part, so that
a merge does not rename the group for viewers whose group was the target. Its state is the group's; who set the state,
the assignee, the note, the runbook and the issue are visible to viewers of a source that the group had when they were written,
according to the audit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from django.contrib.auth import get_user_model
from django.db.models import Case, DateTimeField, Exists, F, OuterRef, Q, Subquery, Value, When
from django.db.models.functions import Coalesce, Concat

from jobs_admin.models import AuditEvent, Failure, FailureCount, Group, GroupAlias, GroupSource, Release, ReplayItem
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.search import scope as scopes

CHANGE = "group.change"  # the audit's act with the annotations of a group
_AT_ONCE = 5_000  # groups whose parts one statement reads
_UNKNOWN = "Unknown error"


def partial(viewer: Viewer, pks: Collection[int]) -> set[int]:
    """Return the groups that have, or had, failures of sources out of the viewer's sight."""
    if viewer.sources() is None or not pks:
        return set()
    counted, parts = (
        model.objects.filter(~scopes.visible(viewer), group_id__in=pks).order_by().values_list("group_id", flat=True)
        for model in (FailureCount, GroupSource)
    )
    return set(counted.union(parts))


def is_partial(viewer: Viewer, group: Group) -> bool:
    return bool(partial(viewer, [group.pk]))


def restrict(viewer: Viewer, groups: Iterable[Group]) -> set[int]:
    """Reduce the partial groups among these, in memory, to what the viewer may read; return their ids.

    Counts are not changed: `group_numbers` returns those of a viewer. The number of queries does not depend on the
    number of groups.
    """
    groups = list(groups)
    if viewer.sources() is None:
        return set()
    found: set[int] = set()
    for start in range(0, len(groups), _AT_ONCE):
        some = groups[start : start + _AT_ONCE]
        pks = partial(viewer, [group.pk for group in some])
        if pks:
            found |= pks
            _restrict(viewer, [group for group in some if group.pk in pks])
    return found


def read(viewer: Viewer, pks: Iterable[int]) -> dict[int, Group]:
    """Return id -> group, as the viewer may read it."""
    found = Group.objects.in_bulk(list(pks))
    restrict(viewer, found.values())
    return found


def viewer_of_sources(sources: Iterable[str]) -> Viewer:
    """Return the viewer of exactly these sources, for text stored for everyone who sees them."""
    return Viewer(name="", roles=dict.fromkeys(sources, VIEWER))


def _restrict(viewer: Viewer, groups: list[Group]) -> None:
    parts: dict[int, list[GroupSource]] = defaultdict(list)
    pks = [group.pk for group in groups]
    sources = viewer.sources() or ()
    for part in GroupSource.objects.filter(group__in=pks).order_by("pk"):
        parts[part.group_id].append(part)
    for group in groups:
        if group.pk in parts:  # else a group without failures, to which a fingerprint was assigned
            mine = [part for part in parts[group.pk] if part.source in sources]
            _reduce(group, mine or _part_of_latest(viewer, group))
        group.muted_until_count = None  # it counts attempts at every source
    _restrict_words(viewer, groups)
    _restrict_origins(viewer, groups)


def _reduce(group: Group, parts: list[GroupSource]) -> None:
    shown, first = parts[0], min(parts, key=lambda part: part.first_seen)
    group.error_type, group.message, group.culprit = shown.error_type, shown.message, shown.culprit
    group.first_seen, group.first_release = first.first_seen, first.first_release
    group.last_seen = max(part.last_seen for part in parts)


def _part_of_latest(viewer: Viewer, group: Group) -> list[GroupSource]:
    """Return a part made from the latest visible failure, for a group without failures filed since it was created."""
    latest = Failure.objects.filter(scopes.visible(viewer), group=group.pk).order_by("-pk").first()
    if latest is None:
        return [GroupSource(error_type=_UNKNOWN, first_seen=group.first_seen, last_seen=group.first_seen)]
    return [
        GroupSource(
            error_type=latest.error_type or _UNKNOWN,
            message=latest.message[:500],
            first_seen=latest.first_failed_at,
            first_release=latest.release,
            last_seen=latest.failed_at,
        )
    ]


_WORDS = ("state", "assignee", "note", "runbook_url", "issue_url", "dependency")


def _restrict_words(viewer: Viewer, groups: list[Group]) -> None:
    """Remove annotations written in acts that the audit of no visible source contains."""
    written = [g for g in groups if g.state_by or g.assignee_id or any(getattr(g, word) for word in _WORDS[2:])]
    if not written:
        return
    named = {f"group:{group.fingerprint}": group.pk for group in written}
    for name, pk in GroupAlias.objects.filter(group__in=[g.pk for g in written]).values_list("fingerprint", "group"):
        named[f"group:{name}"] = pk
    visible_words: dict[tuple[int, str], dict[str, object]] = {}
    events = AuditEvent.objects.filter(scopes.visible(viewer), object__in=named, act=CHANGE, allowed=True)
    for name, after in events.order_by("-pk").values_list("object", "after").iterator():
        for word in _WORDS:
            if word in (after or {}):
                visible_words.setdefault((named[name], word), after)
    users = get_user_model()._default_manager.in_bulk({group.assignee_id for group in written if group.assignee_id})
    for group in written:
        of_state, of_assignee, *of_texts = (visible_words.get((group.pk, word), {}) for word in _WORDS)
        if (of_state.get("state"), of_state.get("state_by", "")) != (group.state, group.state_by):
            group.state_by = ""
        user = users.get(group.assignee_id)
        is_visible = user is not None and of_assignee.get("assignee") == user.get_username()
        if not is_visible and (group.assignee_id is None or group.assignee_id != viewer.user_id):
            group.assignee = None
        for word, written_there in zip(_WORDS[2:], of_texts, strict=True):
            if written_there.get(word) != getattr(group, word):
                setattr(group, word, "")


def _restrict_origins(viewer: Viewer, groups: list[Group]) -> None:
    """Remove the first release of a group, and the release or replay of a regression, if in no visible source."""
    after = {group.regressed_after.partition(":")[::2] for group in groups}
    releases = {name for kind, name in after if kind == "release"} | {group.first_release for group in groups} - {""}
    replays = {int(name) for kind, name in after if kind == "replay" and name.isdecimal()}
    own = set()
    if releases:
        known = Release.objects.filter(scopes.visible(viewer), version__in=releases)
        own |= {("release", version) for version in known.values_list("version", flat=True)}
    if replays:
        items = ReplayItem.objects.filter(replay__in=replays, failure__source__in=viewer.sources() or ())
        own |= {("replay", str(pk)) for pk in items.order_by().values_list("replay", flat=True).distinct()}
    for group in groups:
        if group.regressed_after.partition(":")[::2] not in own:
            group.regressed_after = ""
        if ("release", group.first_release) not in own:
            group.first_release = ""


# -- in SQL -------------------------------------------------------------------------------------------------------


def reads(viewer: Viewer, condition: Q) -> Q:
    """Return the groups whose visible text meets a condition on `error_type`, `message` and `culprit`."""
    if viewer.sources() is None:
        return condition
    first = GroupSource.objects.filter(scopes.visible(viewer), group=OuterRef("group")).order_by("pk")
    part = GroupSource.objects.filter(condition, pk=Subquery(first.values("pk")[:1]), group=OuterRef("pk"))
    elsewhere = _is_partial(viewer) & Q(Exists(GroupSource.objects.filter(group=OuterRef("pk"))))
    return (condition & ~elsewhere) | (elsewhere & Exists(part))


def seen_at(viewer: Viewer, column: str):
    """Return `first_seen` or `last_seen` as the viewer reads it, as an expression over groups."""
    if viewer.sources() is None:
        return F(column)
    parts = GroupSource.objects.filter(scopes.visible(viewer), group=OuterRef("pk"))
    own = parts.order_by(column if column == "first_seen" else f"-{column}").values(column)[:1]
    read = Coalesce(Subquery(own), F(column), output_field=DateTimeField())
    return Case(When(_is_partial(viewer), then=read), default=F(column), output_field=DateTimeField())


def assigned(viewer: Viewer, username: str) -> Q:
    """Return the groups of an assignee, as far as the viewer may read it; "" selects unassigned groups."""
    if not username:
        return Q(assignee__isnull=True)
    theirs = Q(**{f"assignee__{get_user_model().USERNAME_FIELD}": username})
    if viewer.sources() is None:
        return theirs
    events = AuditEvent.objects.filter(
        scopes.visible(viewer), object=Concat(Value("group:"), OuterRef("fingerprint")), act=CHANGE, allowed=True,
        after__assignee=username,
    )  # fmt: skip
    return theirs & (Q(assignee_id=viewer.user_id or 0) | ~_is_partial(viewer) | Exists(events))


def _is_partial(viewer: Viewer) -> Q:
    elsewhere = {"group_id": OuterRef("pk")}
    counted, parts = (
        model.objects.filter(~scopes.visible(viewer), **elsewhere) for model in (FailureCount, GroupSource)
    )
    return Q(Exists(counted)) | Q(Exists(parts))
