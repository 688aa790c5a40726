"""Effects of a grouping rule that is not saved yet: the groups that would become others, by known failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Sum

from jobs_admin.core import fingerprint as prints
from jobs_admin.core.fingerprint import Rules, Split
from jobs_admin.core.refused import Refused
from jobs_admin.db import grouping_rules
from jobs_admin.db.grouping_rules import printed
from jobs_admin.groups import group_finder
from jobs_admin.models import Failure, FailureCount, Group
from jobs_admin.models.group import IS_TAKEN_IN, GroupRuleKind

SAMPLED_FAILURES = 2_000  # latest failures of a group to split
SAMPLED_GROUPS = 300  # latest groups, for a frame to ignore
SHOWN = 20  # groups that a preview lists
SAMPLE = 3  # failures of each group


@dataclass(frozen=True, slots=True)
class Becoming:
    """Failures of one group, and the group that they will be in."""

    fingerprint: str
    title: str
    becomes: str  # its fingerprint; may be that of an existing group
    becomes_title: str
    is_new: bool  # no such group yet
    failures: int  # of the failures read; of all if `Preview.is_partial` is not set
    sample: tuple[int, ...]  # ids of the latest of them
    place: str = ""  # where these fail, and in which tasks: two groups may have the same title
    becomes_place: str = ""
    becomes_holds: int | None = None  # failures already in that group, if known


@dataclass(frozen=True, slots=True)
class Preview:
    kind: str
    rows: tuple[Becoming, ...]  # by size, at most SHOWN
    more: int  # rows that are not listed
    looked_at: int  # failures, or groups for a frame to ignore
    of: int  # total number
    sentence: str  # the effect, as text

    @property
    def is_partial(self) -> bool:
        return self.looked_at < self.of


@dataclass(frozen=True, slots=True)
class Draft:
    """A rule as it was requested, checked."""

    kind: str
    groups: list[Group]
    by: str
    frame: str
    sources: list[str]  # of failures that are or were in its groups


def build_preview(draft: Draft) -> Preview:
    """Return which groups would become which, by a rule that could be saved. Raises Refused."""
    if draft.kind == GroupRuleKind.MERGE:
        return _of_merge(draft)
    return _of_split(draft) if draft.kind == GroupRuleKind.SPLIT else _of_ignore(draft)


def _jobs(groups: Iterable[int]) -> dict[int, int]:
    rows = FailureCount.objects.filter(group_id__in=list(groups), count__gt=0).values_list("group_id")
    return dict(rows.annotate(n=Sum("count")))


def _of_merge(draft: Draft) -> Preview:
    target, *others = draft.groups
    jobs = _jobs(group.pk for group in draft.groups)
    places = group_finder.read_places(draft.groups)
    rows = [
        Becoming(
            other.fingerprint, other.title, target.fingerprint, target.title, False, jobs.get(other.pk, 0),
            tuple(Failure.objects.filter(group=other).order_by("-pk").values_list("pk", flat=True)[:SAMPLE]),
            places[other.pk].words, places[target.pk].words, jobs.get(target.pk, 0),
        )
        for other in others
    ]  # fmt: skip
    moved, existing = sum(row.failures for row in rows), jobs.get(target.pk, 0)
    which = f"{len(others)} {_groups_word(len(others))}"
    sentence = f"{moved:,} failures of {which} join the {existing:,} of “{target.title[:120]}”."
    return _shorten(draft, rows, moved, moved, sentence)


def _of_split(draft: Draft) -> Preview:
    (group,) = draft.groups
    split = Split(group.fingerprint, draft.by)
    columns = ("pk", "message", *prints.SPLITS[:-1])
    latest = Failure.objects.filter(group=group).order_by("-pk").values(*columns)[:SAMPLED_FAILURES]
    found: dict[str, list[int]] = defaultdict(list)
    titles: dict[str, str] = {}
    examined = 0
    for facts in latest:
        examined += 1
        value, content = prints.apart(split, facts["message"], facts)
        found[value].append(facts["pk"])
        titles.setdefault(value, f"{group.title} {content}")
    rows = [
        Becoming(group.fingerprint, group.title, value, titles[value], True, len(ids), tuple(ids[:SAMPLE]))
        for value, ids in found.items()
    ]
    of = max(examined, _jobs([group.pk]).get(group.pk, 0))
    over = "" if examined == of else f" (from the latest {examined:,}; older failures may add groups)"
    sentence = f"One group of {of:,} failures becomes {len(rows)} by {draft.by}{over}."
    return _shorten(draft, rows, examined, of, sentence)


def _of_ignore(draft: Draft) -> Preview:
    now = grouping_rules.read_rules()
    then = Rules((*now.ignored, draft.frame), now.splits)
    groups = Group.objects.select_related("representative__traceback").order_by("-last_seen")
    jobs_of: dict[str, tuple[Group, prints.Fingerprint]] = {}
    examined = emptied = 0
    for group in groups[:SAMPLED_GROUPS]:
        examined += 1
        if group.representative is None or group.representative.traceback is None:
            continue
        before, after = printed(group.representative, now), printed(group.representative, then)
        if before.value != after.value:
            jobs_of[group.fingerprint] = group, after
            emptied += bool(before.culprit) and not after.culprit
    if examined > 1 and emptied == examined:
        raise Refused(
            "invalid", "This pattern matches every application frame of every group. Nothing was changed.", "frame"
        )
    there = dict(
        Group.objects.filter(fingerprint__in=[after.value for _, after in jobs_of.values()]).values_list(
            "fingerprint", "message"
        )
    )
    jobs = _jobs(group.pk for group, _ in jobs_of.values())
    places = group_finder.read_places([group for group, _ in jobs_of.values()])
    rows = [
        Becoming(
            name, group.title, after.value, f"{group.error_type}: {after.title_message}", after.value not in there,
            jobs.get(group.pk, 0), (group.representative_id,) if group.representative_id else (),
            places[group.pk].words, after.culprit,
        )
        for name, (group, after) in jobs_of.items()
    ]  # fmt: skip
    of = max(examined, Group.objects.exclude(IS_TAKEN_IN).count())
    becoming = len({row.becomes for row in rows})
    over = "" if examined == of else f" Checked the latest {examined:,} of {of:,} groups."
    become = "becomes" if len(rows) == 1 else "become"
    sentence = f"{len(rows)} {_groups_word(len(rows))} with the frame {draft.frame} {become} {becoming}.{over}"
    if not rows:
        sentence = f"The frame {draft.frame} does not affect the grouping of any group.{over}"
    return _shorten(draft, rows, examined, of, sentence)


def _shorten(draft: Draft, rows: list[Becoming], examined: int, of: int, sentence: str) -> Preview:
    rows.sort(key=lambda row: (-row.failures, row.becomes))
    return Preview(draft.kind, tuple(rows[:SHOWN]), max(0, len(rows) - SHOWN), examined, of, sentence)


def _groups_word(n: int) -> str:
    return "group" if n == 1 else "groups"
