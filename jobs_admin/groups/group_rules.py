"""Grouping rules by operators: merge these groups, split this one, ignore that frame.

Previewed, then saved or withdrawn.

A rule applies to failures that arrive after it is saved; earlier ones are moved by the step `regroup` of `watch`
(jobs_admin/groups/regrouping.py), in small transactions, and the rule has its progress.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, OperationalError, transaction
from django.db.models import Exists, Max, OuterRef, QuerySet
from django.utils import timezone

from jobs_admin import config
from jobs_admin.core import fingerprint as prints
from jobs_admin.core.fingerprint import Rules, Split, apart
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.core.trace_path import ignores
from jobs_admin.db import audit, grouping_rules
from jobs_admin.db.authorizing import refuse
from jobs_admin.db.grouping_rules import facts_of, printed
from jobs_admin.groups import merging
from jobs_admin.groups.rule_previews import Draft, Preview, build_preview
from jobs_admin.ingest.group_sightings import Part, write_parts
from jobs_admin.models import Failure, FailureCount, Group, GroupAlias, GroupRule, GroupSource
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, VIEWER, Viewer
from jobs_admin.models.group import TAKEN_IN, GroupRuleKind
from jobs_admin.rights import group_sight
from jobs_admin.search import scope as scopes

MOST_MERGED = 50  # groups in one rule
# Columns of a group that operators set: cleared by a merge, restored when the merge is withdrawn.
STORED_FIELDS = (
    "fingerprint", "error_type", "message", "culprit", "state", "state_by", "state_since", "regressed_after",
    "mute_ended", "resolved_at", "muted_until", "muted_until_count", "assignee_id", "note", "runbook_url", "issue_url",
    "first_seen", "first_release", "last_seen",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A rule in the list of rules."""

    rule: GroupRule
    summary: str  # `merge 3 groups into ConnectionError: …`
    progress: float  # 0 to 1, of the known failures; 1 when it is applied
    may_withdraw: bool
    merged: tuple[str, ...] = ()  # for a merge: the groups that it merged; for viewers of every source of the rule


def preview(viewer: Viewer, kind: str, *, groups: Sequence[str] = (), by: str = "", frame: str = "") -> Preview:
    """Return which groups would become which. Changes nothing. Raises Refused for a rule that could not be saved.

    merge: the first of `groups` receives the others. split: one group, `by` one of core.fingerprint.SPLITS. ignore:
    `frame`, a glob over `file in function`. Requires the same role as saving, because it shows all those groups.
    """
    draft = _draft(viewer, kind, groups, by, frame)
    _may(viewer, "rule.preview", draft)
    return build_preview(draft)


def save(
    viewer: Viewer, kind: str, *, groups: Sequence[str] = (), by: str = "", frame: str = "", note: str = ""
) -> GroupRule:
    """Put the rule in force. Requires the role operator on every source of its groups. Raises Refused."""
    if config.is_read_only():
        raise Refused("read_only", config.READ_ONLY)
    draft = _draft(viewer, kind, groups, by, frame)
    _may(viewer, "rule.save", draft)
    rule = GroupRule(
        kind=draft.kind,
        group=draft.groups[0] if draft.groups else None,
        others=[group.fingerprint for group in draft.groups[1:]],
        by=draft.by,
        frame=draft.frame,
        note=representable(note).strip()[:500],
        author=representable(viewer.name)[:150],
    )
    try:
        with transaction.atomic():
            if draft.kind == GroupRuleKind.MERGE:
                rule.before = _take_in(draft.groups[0], draft.groups[1:])
            rule.before |= {"sources": {"of": draft.sources}}
            rule.save()
            for source in draft.sources or [""]:
                audit.record(
                    viewer, "rule.save", f"rule:{rule.pk}", source=source, reason=rule.note, after=_plain(rule)
                )
    except (IntegrityError, OperationalError) as error:
        if isinstance(error, OperationalError) and not _is_deadlock(error):
            raise
        message = "One of these groups was changed by someone else. Nothing was changed. Reload the page."
        raise Refused("conflict", message, "groups") from error
    grouping_rules.forget()
    return rule


def _is_deadlock(error: OperationalError) -> bool:
    """Return whether PostgreSQL ended the transaction because of a deadlock between two acts: nothing was written."""
    return getattr(error.__cause__, "sqlstate", "") in ("40P01", "40001")


def withdraw(viewer: Viewer, rule: GroupRule) -> GroupRule:
    """Withdraw a rule: groups that it merged return with their state and note, and their failures follow.

    Requires the same role as saving it. Raises Refused.
    """
    if config.is_read_only():
        raise Refused("read_only", config.READ_ONLY)
    _may_on(viewer, "rule.withdraw", _sources_of(rule), f"rule {rule.pk}")
    if rule.kind == GroupRuleKind.MERGE and rule.group and (existing := _split_of([rule.group])):
        message = f"The merged group is split by {existing.by}. Nothing was changed. Withdraw that rule first."
        raise Refused("conflict", message)
    with transaction.atomic():
        if _is_nested(rule, _parting()):
            message = "Another merge of these groups is being withdrawn. Withdraw this one afterwards."
            raise Refused("conflict", f"{message} Nothing was changed.")
        changed = GroupRule.objects.filter(pk=rule.pk, is_withdrawn=False).update(
            is_withdrawn=True, is_applied=False, applied_to=0, since=timezone.now()
        )
        if not changed:
            raise Refused("conflict", "This rule has already been withdrawn. Nothing was changed.")
        rule.refresh_from_db()
        _give_back(rule)
        for source in _sources_of(rule) or [""]:
            audit.record(viewer, "rule.withdraw", f"rule:{rule.pk}", source=source, before=_plain(rule))
    grouping_rules.forget()
    return rule


def listing(viewer: Viewer) -> list[Row]:
    """Return the rules about groups visible to the viewer, those in force first, latest first."""
    return _rows(viewer, GroupRule.objects.select_related("group").order_by("is_withdrawn", "-pk")[:500])


def row(viewer: Viewer, pk: int) -> Row | None:
    """Return one rule as in the list; None if the viewer sees none with this number."""
    return next(iter(_rows(viewer, GroupRule.objects.select_related("group").filter(pk=pk))), None)


def _rows(viewer: Viewer, found: Iterable[GroupRule]) -> list[Row]:
    rules = list(found)
    latest = Failure.objects.aggregate(Max("pk"))["pk__max"] or 0
    split = GroupRule.objects.filter(is_withdrawn=False, kind=GroupRuleKind.SPLIT)
    of_split = (
        set(split.values_list("group_id", flat=True)) if any(rule.kind == GroupRuleKind.MERGE for rule in rules) else ()
    )
    rows = []
    theirs, parting = _sources_of_each(rules), _parting()
    group_sight.restrict(viewer, [rule.group for rule in rules if rule.group])
    for rule in rules:
        sources = theirs[rule.pk] or [EVERY_SOURCE]
        if not any(viewer.may(VIEWER, source) for source in sources):
            continue
        written_for = rule.before.get("sources", {}).get("of") or sources
        if not any(viewer.may(VIEWER, source) for source in written_for):
            rule.note = rule.author = ""
        done = 1.0 if rule.is_applied or not latest else min(0.99, rule.applied_to / latest)
        is_below = rule.kind == GroupRuleKind.MERGE and rule.group_id in of_split
        is_blocked = is_below or _is_nested(rule, parting)
        may = not rule.is_withdrawn and not is_blocked and all(viewer.may(OPERATOR, source) for source in sources)
        groups = [rule.group] if rule.group else []
        summary = _summary(rule.kind, groups, rule.by, rule.frame, len(rule.others))
        merged = _merged(rule) if all(viewer.may(VIEWER, source) for source in sources) else ()
        rows.append(Row(rule, summary, done, may, merged))
    return rows


# -- requests ---------------------------------------------------------------------------------------------------


def _draft(viewer: Viewer, kind: str, names: Sequence[str], by: str, frame: str) -> Draft:
    if kind not in GroupRuleKind.values:
        raise Refused(
            "invalid", f"The rule must be one of {', '.join(GroupRuleKind.values)}. Nothing was changed.", "kind"
        )
    if kind == GroupRuleKind.IGNORE:
        return Draft(kind, [], "", _frame(frame), _every_source())
    groups = _groups(viewer, names)
    if kind == GroupRuleKind.SPLIT:
        _splittable(groups, by)
        return Draft(kind, groups, by, "", _sources(groups))
    _mergeable(groups)
    return Draft(kind, groups, "", "", _sources(groups))


def _frame(frame: str) -> str:
    text = " ".join(representable(frame).split())[:300]
    in_force = GroupRule.objects.filter(kind=GroupRuleKind.IGNORE, is_withdrawn=False)
    if not text:
        raise Refused("invalid", "Enter a frame, such as `shop/retry.py in call` or `*/retry.py in *`.", "frame")
    if all(ignores(text, place) for place in _ANYWHERE):
        raise Refused("invalid", "This pattern matches every frame, so no frame would be left for grouping.", "frame")
    if in_force.filter(frame=text).exists():
        raise Refused("conflict", "This frame is already ignored. Nothing was changed.", "frame")
    return text


# Frames that no sensible pattern matches together.
_ANYWHERE = ("a/b.py in c", "shop/tasks.py in charge", "x.py in <module>", "src/deep_er/z9.py in Q")


def _groups(viewer: Viewer, names: Sequence[str]) -> list[Group]:
    wanted = list(dict.fromkeys(map(representable, names)))
    if not wanted:
        raise Refused("invalid", "Select the groups. Nothing was changed.", "groups")
    if len(wanted) > MOST_MERGED:
        raise Refused("invalid", f"A rule can merge at most {MOST_MERGED} groups. Nothing was changed.", "groups")
    # Hidden groups are answered like groups that do not exist.
    seen = FailureCount.objects.filter(scopes.visible(viewer), group_id=OuterRef("pk"), count__gt=0)
    visible = Group.objects.filter(Exists(seen), fingerprint__in=wanted)
    found = {group.fingerprint: group for group in visible}
    missing = [name for name in wanted if name not in found]
    merged = dict(GroupAlias.objects.filter(fingerprint__in=missing).values_list("fingerprint", "group__fingerprint"))
    for name in missing:
        if merged.get(name) in found:
            raise Refused("invalid", "These groups are already merged. Nothing was changed.", "groups")
    if missing:
        raise Refused("invalid", f"Group {missing[0][:40]} not found. Nothing was changed.", "groups")
    return [found[name] for name in wanted]


def _splittable(groups: list[Group], by: str) -> None:
    if len(groups) != 1:
        raise Refused("invalid", "Select one group to split. Nothing was changed.", "groups")
    if by not in prints.SPLITS:
        raise Refused("invalid", f"A split must be by one of {', '.join(prints.SPLITS)}. Nothing was changed.", "by")
    rules = GroupRule.objects.filter(kind=GroupRuleKind.SPLIT, is_withdrawn=False)
    if existing := rules.filter(group=groups[0]).first():
        message = f"This group is already split by {existing.by}. Nothing was changed. Withdraw that rule first."
        raise Refused("conflict", message, "groups")
    if _came_out_of_a_split(groups[0]):
        raise Refused("conflict", "This group was created by a split. Nothing was changed.", "groups")
    if _is_returning_part(groups[0]):
        message = "The split that created this group is being withdrawn. Split the group afterwards."
        raise Refused("conflict", f"{message} Nothing was changed.", "groups")
    if _is_parting(groups[0]):
        message = "A merge of this group is being withdrawn. Nothing was changed. Split the group afterwards."
        raise Refused("conflict", message, "groups")


def _parting() -> list[GroupRule]:
    """Return the withdrawn rules that still have failures and counts to return to the groups that they merged."""
    rules = GroupRule.objects.filter(is_withdrawn=True, is_applied=False)
    return list(rules.exclude(kind=GroupRuleKind.SPLIT).order_by("pk"))


def _is_parting(group: Group) -> bool:
    """Return whether a withdrawn rule still has failures or counts to return to the group, or from it."""
    return any(
        group.pk == rule.group_id
        or group.fingerprint in rule.others
        or any(rule.before.get(name, {}).get("heir") == group.fingerprint for name in rule.others)
        for rule in _parting()
    )


def _is_nested(rule: GroupRule, parting: Sequence[GroupRule]) -> bool:
    """Return whether one of the withdrawn rules merged groups that this rule merged, alone or inside others.

    Both would return the same failures and counts.
    """
    mine = _taken_in_by(rule)
    return any(not mine.isdisjoint(_taken_in_by(other)) for other in parting if other.pk != rule.pk)


def _taken_in_by(rule: GroupRule) -> set[str]:
    return {*rule.others, *(alias for name in rule.others for alias in rule.before.get(name, {}).get("aliases", ()))}


def _splits_being_withdrawn() -> QuerySet[GroupRule]:
    """Return the withdrawn splits whose parts still have failures to return."""
    rules = GroupRule.objects.filter(kind=GroupRuleKind.SPLIT, is_withdrawn=True, is_applied=False, group__isnull=False)
    return rules.select_related("group")


def _is_returning_part(group: Group) -> bool:
    """Return whether the group is a part of a split that is being withdrawn."""
    rules = list(_splits_being_withdrawn())
    latest = Failure.objects.filter(group=group).order_by("-pk").first() if rules else None
    return latest is not None and any(
        apart(Split(rule.group.fingerprint, rule.by), latest.message, facts_of(latest))[0] == group.fingerprint
        for rule in rules
        if rule.group is not None
    )


def _came_out_of_a_split(group: Group) -> bool:
    rules = grouping_rules.read_rules()
    latest = Failure.objects.filter(group=group).select_related("traceback").order_by("-pk").first()
    if latest is None or not rules.splits:
        return False
    complete, part = printed(latest, Rules(rules.ignored)), printed(latest, rules)
    return complete.value != part.value and part.value == group.fingerprint


def _mergeable(groups: list[Group]) -> None:
    if len(groups) < 2:
        raise Refused("invalid", "Select at least two groups to merge. Nothing was changed.", "groups")
    # Neither a split group nor its parts can be merged: the end of one rule could not tell which failures belong to the
    # other.
    existing = _split_of(groups)
    if existing is not None:
        message = f"One of these groups is split by {existing.by}. Nothing was changed. Withdraw that rule first."
        raise Refused("conflict", message, "groups")
    if any(group.fingerprint.startswith(TAKEN_IN) for group in groups):
        raise Refused("conflict", "One of these groups is being merged. Nothing was changed.", "groups")
    if any(_came_out_of_a_split(group) for group in groups):
        message = "One of these groups was created by a split. Nothing was changed. Withdraw that rule first."
        raise Refused("conflict", message, "groups")
    if _splits_being_withdrawn().filter(group__in=groups).exists() or any(map(_is_returning_part, groups)):
        message = "A split of one of these groups is being withdrawn. Merge the groups afterwards."
        raise Refused("conflict", f"{message} Nothing was changed.", "groups")
    # A group's counts are known again only after everything from before the merge is returned.
    if any(_is_parting(group) for group in groups):
        message = "A merge of one of these groups is being withdrawn. Merge the groups afterwards."
        raise Refused("conflict", f"{message} Nothing was changed.", "groups")


def _split_of(groups: Iterable[Group]) -> GroupRule | None:
    """Return the rule in force that splits one of these groups."""
    return GroupRule.objects.filter(is_withdrawn=False, kind=GroupRuleKind.SPLIT, group__in=groups).first()


def _sources(groups: Iterable[Group]) -> list[str]:
    counts = FailureCount.objects.filter(group_id__in=[group.pk for group in groups])
    return sorted(set(counts.values_list("source", flat=True).distinct()))


def _every_source() -> list[str]:
    return sorted(set(FailureCount.objects.values_list("source", flat=True).distinct()))


def _sources_of(rule: GroupRule) -> list[str]:
    return _sources_of_each([rule])[rule.pk]


def _sources_of_each(rules: Sequence[GroupRule]) -> dict[int, list[str]]:
    """Return rule number -> the sources of failures in its groups: now, formerly, or when it was saved.

    A rule moves failures to other groups; this must not change who may see and withdraw it.
    """
    found: dict[int, set[str]] = {rule.pk: set(rule.before.get("sources", {}).get("of", ())) for rule in rules}
    named: dict[str, set[int]] = defaultdict(set)
    by_group: dict[int, set[int]] = defaultdict(set)
    for rule in rules:
        if rule.group_id is None:
            continue
        by_group[rule.group_id].add(rule.pk)
        # Groups that are being merged, and parts that the rule has split off.
        parts = [*rule.before.get("moved", ()), *(n for to in rule.before.get("into", {}).values() for n in to)]
        for name in [f"{TAKEN_IN}{other}"[:40] for other in rule.others] + parts:
            named[name].add(rule.pk)
    for some in _some_of(list(named)):
        for pk, name in Group.objects.filter(fingerprint__in=some).values_list("pk", "fingerprint"):
            by_group[pk] |= named[name]
    for some in _some_of(list(by_group)):
        counts = FailureCount.objects.filter(group_id__in=some).order_by()
        for pk, source in counts.values_list("group_id", "source").distinct():
            for rule_pk in by_group[pk]:
                found[rule_pk].add(source)
    if any(rule.group_id is None for rule in rules):
        every = _every_source()
        for rule in rules:
            found[rule.pk] |= set(every) if rule.group_id is None else set()
    return {pk: sorted(sources) for pk, sources in found.items()}


def _some_of(items: list[Any]) -> Iterator[list[Any]]:
    """Yield batches that fit into one statement."""
    return (items[start : start + 5_000] for start in range(0, len(items), 5_000))


def _may(viewer: Viewer, act: str, draft: Draft) -> None:
    # By fingerprint: readers at a source may not be allowed to see more of them.
    names = " ".join(group.fingerprint for group in draft.groups) or draft.frame
    _may_on(viewer, act, draft.sources, f"{draft.kind} {names}")


def _may_on(viewer: Viewer, act: str, sources: list[str], what: str) -> None:
    # Without a known source it may concern any, which requires the role on all of them.
    refused = [source for source in sources or [EVERY_SOURCE] if not viewer.may(OPERATOR, source)]
    if not refused:
        return
    where = next((source for source in refused if viewer.may(VIEWER, source) and source != EVERY_SOURCE), None)
    at = f"on {where}" if where else "on every source with failures in these groups"
    message = f"You need the role operator {at}. Nothing was changed."
    refuse(viewer, act, what[:120], Refused("forbidden", message), refused[:1])


def _summary(kind: str, groups: Sequence[Group], by: str, frame: str, others: int | None = None) -> str:
    title = groups[0].title[:200] if groups else "a deleted group"
    if kind == GroupRuleKind.IGNORE:
        return f"ignore the frame {frame}"
    if kind == GroupRuleKind.SPLIT:
        return f"split by {by}: {title}"
    number = len(groups) - 1 if others is None else others
    return f"merge {number} {'group' if number == 1 else 'groups'} into {title}"


def _merged(rule: GroupRule) -> tuple[str, ...]:
    """Return the titles and places of its groups, as they were when they were merged."""
    stored = [rule.before.get(name) or {} for name in rule.others]
    titles = [": ".join(part for part in (one.get("error_type"), one.get("message")) if part) for one in stored]
    described = zip(rule.others, titles, stored, strict=True)
    return tuple(
        " · ".join(part for part in (title[:200] or name, one.get("culprit")) if part) for name, title, one in described
    )


def _plain(rule: GroupRule) -> dict[str, Any]:
    content = {"kind": rule.kind, "group": rule.group.fingerprint if rule.group else None, "others": rule.others}
    return content | {"by": rule.by, "frame": rule.frame}


# -- merging ----------------------------------------------------------------------------------------------------


def _take_in(target: Group, others: Sequence[Group]) -> dict[str, Any]:
    """Send later failures of the others to the target. Return the values that operators had set on them."""
    named = [target, *others]
    # Locked in a fixed order: concurrent merges wait for each other, and the second is refused.
    rows = Group.objects.select_for_update(of=("self",)).filter(pk__in=[group.pk for group in named]).order_by("pk")
    existing = {row.pk: row for row in rows}
    for group in named:
        row = existing.get(group.pk)
        if row is None or row.fingerprint != group.fingerprint:
            raise Refused(
                "conflict", "One of these groups was just changed. Nothing was changed. Reload the page.", "groups"
            )
    return {other.fingerprint: take_in(target, existing[other.pk]) for other in others}


def take_in(target: Group, other: Group) -> dict[str, Any]:
    """Name the other's successor, in the caller's transaction: its failures follow in small steps (regrouping)."""
    aliases = list(GroupAlias.objects.filter(group=other).values_list("fingerprint", flat=True))
    rules = list(GroupRule.objects.filter(group=other).values_list("pk", flat=True))
    stored = {name: _to_json(getattr(other, name)) for name in STORED_FIELDS} | {"aliases": aliases, "rules": rules}
    moving_in = list(Group.objects.filter(fingerprint__in=[f"{TAKEN_IN}{alias}"[:40] for alias in aliases]))
    stored |= merging.snapshot_counts(other, moving_in, timezone.now())
    Group.objects.filter(pk=other.pk).update(fingerprint=f"{TAKEN_IN}{other.fingerprint}"[:40])
    GroupAlias.objects.filter(group=other).update(group=target)
    GroupRule.objects.filter(group=other).update(group=target)
    GroupAlias.objects.create(fingerprint=other.fingerprint, group=target)
    merging.follow_exclusions(other.pk, target.pk)
    for one in (target, other):
        _write_missing_parts(one)
    write_parts(
        Part(target.pk, one.source, one.error_type, one.message, one.culprit, one.first_seen, one.last_seen, one.first_release)
        for one in GroupSource.objects.filter(group=other)
    )  # fmt: skip
    return stored | {"inherited": inherit(target.pk, stored)}


def _write_missing_parts(group: Group) -> None:
    """Write the per-source parts of a group whose failures were not filed by reports."""
    if GroupSource.objects.filter(group=group).exists():
        return
    sources, own = (
        _sources([group]),
        (group.error_type, group.message, group.culprit, group.first_seen, group.last_seen),
    )
    parts = [Part(group.pk, source, *own, group.first_release) for source in sources[:1]]
    if len(sources) > 1:
        mine = Failure.objects.filter(group=group).select_related("traceback").order_by("-pk")
        latest = [one for source in sources if (one := mine.filter(source=source).first())]
        made = [(one, printed(one, grouping_rules.read_rules())) for one in latest]
        parts = [
            Part(
                group.pk, one.source, one.error_type, described.title_message, described.culprit, one.first_failed_at, one.failed_at,
                one.release,
            )
            for one, described in made
        ]  # fmt: skip
    write_parts(parts)


_HEIRLOOMS = {"note": "", "assignee_id": None, "runbook_url": "", "issue_url": ""}


def inherit(target: int, other: dict[str, Any]) -> dict[str, Any]:
    """Copy note, assignee, runbook and issue of a merged group to the target if it has none. Return what was copied."""
    row = Group.objects.select_for_update(of=("self",)).get(pk=target)
    changes = {name: other[name] for name in _HEIRLOOMS if not getattr(row, name) and other.get(name)}
    if changes:
        Group.objects.filter(pk=target).update(**changes)
    return changes


def _to_json(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


def _give_back(rule: GroupRule) -> None:
    """Restore the merged groups with the values that operators had set; their failures follow."""
    for name in rule.others:
        stored = rule.before.get(name)
        if stored is None:
            continue
        aliases = stored.get("aliases", [])
        # Groups that have separated since are groups of their own.
        apart = set(Group.objects.filter(fingerprint__in=aliases).values_list("fingerprint", flat=True))
        heir = GroupAlias.objects.filter(fingerprint=name).values_list("group__fingerprint", flat=True).first()
        rule.before[name]["heir"] = heir
        for column, value in stored.get("inherited", {}).items():
            # Returned to its owner, unless an operator has changed it since.
            heirs = Group.objects.filter(aliases__fingerprint=name, **{column: value})
            heirs.update(**{column: _HEIRLOOMS[column]})
        GroupAlias.objects.filter(fingerprint__in=[name, *aliases]).delete()
        values = {column: stored[column] for column in STORED_FIELDS if column in stored}
        under_way = Group.objects.filter(fingerprint=f"{TAKEN_IN}{name}"[:40])
        if not under_way.update(fingerprint=name):
            Group.objects.get_or_create(fingerprint=name, defaults=values)
        group = Group.objects.get(fingerprint=name)
        GroupRule.objects.filter(pk__in=stored.get("rules", [])).update(group=group)
        GroupAlias.objects.bulk_create(
            [GroupAlias(fingerprint=alias, group=group) for alias in aliases if alias not in apart]
        )
    GroupRule.objects.filter(pk=rule.pk).update(before=rule.before)
