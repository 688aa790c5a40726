"""Known failures follow the rules: groups of older fingerprints get new names, and what people decided is carried out.

The step `regroup` of `watch`. One slice is one short transaction, and each leaves everything consistent: killed at any
point, the next slice goes on where it stopped. No link is ever lost: a name that a group had becomes its alias, or that
of the group that took it in.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Subquery, Value, When

from jobs_admin.core.fingerprint import VERSION, Fingerprint, Rules, Split, apart
from jobs_admin.core.search_terms import Phrase, phrases
from jobs_admin.db import grouping_rules, statements
from jobs_admin.db.counters import add_group_counts, spread_over_steps
from jobs_admin.db.turns import turn
from jobs_admin.groups import groups_aside, merged_counts
from jobs_admin.groups.group_rules import facts_of, printed, take_in
from jobs_admin.ingest import indexing
from jobs_admin.ingest.group_sightings import Part, write_parts
from jobs_admin.models import (
    Attempt,
    Failure,
    Group,
    GroupAlias,
    GroupCounter,
    GroupRule,
    GroupSource,
    ReplayItem,
    Traceback,
)
from jobs_admin.models.counter import STEPS_OF_GROUPS
from jobs_admin.models.group import IS_TAKEN_IN, GroupState
from jobs_admin.models.group_rule import GroupRuleKind
from jobs_admin.models.terms import STACKS
from jobs_admin.rights import group_sight
from jobs_admin.search.term_index import InIndex, all_of

# Of one transaction: on SQLite everybody else's writes wait for its end, and never for over 200 ms (design.md, law 5).
_SLICE_S = 0.08
_FEWEST, _MOST = 10, 500
_MOST_SEEN, _READ_S = 2_000, 0.3  # outside of any transaction
_ROUND_S = 10  # slices of what was seen
# A group that failures leave for another costs about as much as so many failures.
_OF_A_MOVE = 15
# Rules are read anew once a second by whoever makes fingerprints: until then failures arrive by the old ones.
_SETTLED = timedelta(seconds=3)


# Names the lock under which known failures are regrouped (PostgreSQL's advisory locks are numbers).
_LOCK = 0x7265_6472_6976_6502


@dataclass(slots=True)
class _Pace:
    """Number of rows that fit into a slice of one kind of work, learned by measurement."""

    rows: int = 50

    def took(self, seconds: float, rows: int) -> None:
        fits = int(rows * _SLICE_S / max(seconds, 1e-6))
        if seconds > _SLICE_S:
            self.rows = min(self.rows, max(_FEWEST, fits))
        elif rows >= self.rows:  # a slice that was not full tells little
            self.rows = min(_MOST, fits, self.rows + max(1, self.rows // 2))


_paces: defaultdict[str, _Pace] = defaultdict(_Pace)


def regroup(now: datetime) -> bool:
    """One slice of what there is to do; True if there may be more."""
    # What is being merged is one group before it is compared with the newer version.
    return _drain() or _rename(now) or _apply(now)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Open a transaction in which no other process regroups: two watches would count the same rows twice."""
    with turn():  # noqa: SIM117
        with transaction.atomic():
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            yield


def _slice(kind: str, work: Callable[[int], int]) -> int:
    """Run `work(rows at most)` in a transaction of its own; answers how many rows it took."""
    pace = _paces[kind]
    with _alone():
        began = time.monotonic()
        rows = work(pace.rows)
    if rows:
        pace.took(time.monotonic() - began, rows)
    return rows


# -- names of older versions --------------------------------------------------------------------------------------


def _old() -> QuerySet[Group]:
    known = Q(fingerprint__startswith=f"{VERSION}-") | IS_TAKEN_IN
    has_words = Exists(Failure.objects.filter(group=OuterRef("pk"))) | Q(representative__isnull=False)
    return Group.objects.exclude(known).filter(has_words)


def _rename(now: datetime) -> bool:
    """Give the next group of an older version its present fingerprint. A group without any failure keeps its name.

    The newer version may distinguish errors that the older one put together: such failures leave the group first.
    """
    # What is split goes first: the names of its parts are made of its own.
    is_split = Exists(GroupRule.objects.filter(group=OuterRef("pk"), kind=GroupRuleKind.SPLIT, is_withdrawn=False))
    old = _old().annotate(first=Case(When(is_split, then=Value(0)), default=Value(1))).order_by("first", "pk")
    group = old.select_related("representative__traceback").first()
    if group is None:
        return False
    failure = group.representative or _latest_failure(group)
    if failure is None:  # it was pruned in this moment
        return True
    is_base = GroupRule.objects.filter(group=group, kind=GroupRuleKind.SPLIT, is_withdrawn=False).exists()
    rules = grouping_rules.read_rules()
    made = printed(failure, Rules(rules.ignored) if is_base else rules)
    if (made.culprit, failure.error_type) != (group.culprit, group.error_type):
        made = _own_name(group, rules) or made  # what was merged into it failed last
    if not is_base and _part_strangers(group, made.value, rules):
        return True
    try:
        with _alone():
            target = _find_group(made.value)
            if target is not None and target.pk != group.pk:
                take_in(target, group)
            else:
                changed = Group.objects.filter(pk=group.pk, fingerprint=group.fingerprint)
                changed.update(fingerprint=made.value, message=made.title_message, culprit=made.culprit)
                _renew_parts(group.pk)
                GroupAlias.objects.filter(fingerprint=made.value).delete()
                GroupAlias.objects.get_or_create(fingerprint=group.fingerprint, defaults={"group": group})
    except IntegrityError:
        return True  # such a group has just arrived: the next time it takes this one in
    return True


def _own_name(group: Group, rules: Rules) -> Fingerprint | None:
    """The fingerprint of a recent failure at the place that the group shows."""
    rows = Failure.objects.filter(group=group, error_type=group.error_type).select_related("traceback").order_by("-pk")
    recent = (printed(failure, rules) for failure in rows[:_MOST])
    return next((made for made in recent if made.culprit == group.culprit), None)


# By group: the last failure that was compared with the name that its group is about to get. Lost with the process, which
# costs no more than comparing again.
_compared: dict[int, int] = {}


def _part_strangers(group: Group, name: str, rules: Rules) -> bool:
    """Move the next failures of an older group that have another fingerprint than `name` now; False when none is left.

    What people merged stays together: there the other fingerprint becomes one more name of the group.
    """
    goes: defaultdict[str, list[Failure]] = defaultdict(list)
    to: dict[str, _Destination] = {}
    began, last = time.monotonic(), 0
    after = _compared.get(group.pk, 0)
    rows = Failure.objects.filter(group=group, pk__gt=after).select_related("traceback").order_by("pk")
    for failure in rows[:_MOST_SEEN].iterator(chunk_size=_MOST):
        made = printed(failure, rules)
        if made.value != name:
            to[made.value] = _Destination(made.value, made.title_message, made.culprit)
            goes[made.value].append(failure)
        last = failure.pk
        if time.monotonic() - began > _READ_S:
            break
    if not last:
        _compared.pop(group.pk, None)
        return False
    merges = list(GroupRule.objects.filter(group=group, kind=GroupRuleKind.MERGE, is_withdrawn=False).order_by("pk"))
    for value, theirs in goes.items():
        if merges:
            _name_merged(group, merges, to[value], theirs[0].error_type)
            continue
        while theirs:

            def move(most: int, value: str = value, theirs: list[Failure] = theirs) -> int:
                mine = theirs[: max(1, most - _OF_A_MOVE)]
                _move(group.pk, to[value], mine)
                del theirs[: len(mine)]
                return len(mine) + _OF_A_MOVE

            _slice("stranger", move)
    _compared[group.pk] = last
    return True


def _name_merged(group: Group, merges: Sequence[GroupRule], to: _Destination, error_type: str) -> None:
    """A merged group answers to this fingerprint too; taking the merge back gives it to the group that it came from."""
    with _alone():
        if (other := Group.objects.filter(fingerprint=to.fingerprint).first()) is not None:
            take_in(group, other)
        else:
            GroupAlias.objects.get_or_create(fingerprint=to.fingerprint, defaults={"group": group})
        for rule in merges:
            for name in rule.others:
                stored = rule.before.get(name, {})
                if (stored.get("culprit"), stored.get("error_type")) == (to.culprit, error_type):
                    stored["aliases"] = [*dict.fromkeys([*stored.get("aliases", []), to.fingerprint])]
                    GroupRule.objects.filter(pk=rule.pk).update(before=rule.before)
                    return


def _latest_failure(group: Group) -> Failure | None:
    return Failure.objects.filter(group=group).select_related("traceback").order_by("-pk").first()


def _find_group(fingerprint: str) -> Group | None:
    """The group of this name, now or formerly."""
    found = Group.objects.filter(fingerprint=fingerprint).first()
    if found is None:
        alias = GroupAlias.objects.filter(fingerprint=fingerprint).select_related("group").first()
        found = alias.group if alias else None
    return found


# -- groups that were taken in --------------------------------------------------------------------------------------


def _drain() -> bool:
    """Move a slice of what is left of a group that another one took in; when nothing is, take it away."""
    group = Group.objects.filter(IS_TAKEN_IN).order_by("pk").first()
    if group is None:
        return False
    target = _find_group(group.name)
    if target is None:  # nobody took it in: it is itself again
        Group.objects.filter(pk=group.pk).update(fingerprint=group.name)
        return True
    # Its numbers first: should the merge be taken back meanwhile, what goes home is counted by the other already.
    for part in (_numbers, _failures, _attempts, _items):
        if _slice(part.__name__, lambda most, part=part: part(group, target, most) if _is_taken_in(group) else 0):
            return True
    _take_away(group, target)
    return True


def _is_taken_in(group: Group) -> bool:
    """Still: the merge may have been taken back, or another watch may have been through."""
    return Group.objects.filter(pk=group.pk, fingerprint=group.fingerprint).exists()


def _failures(group: Group, target: Group, most: int) -> int:
    ids = list(Failure.objects.filter(group=group).order_by("pk").values_list("pk", flat=True)[:most])
    if ids:
        _lock(group, ids)
        Failure.objects.filter(pk__in=ids, group=group).update(group=target)
        Attempt.objects.filter(failure__in=ids, group=group).update(group=target)
    return len(ids)


def _attempts(group: Group, target: Group, most: int) -> int:
    ids = list(Attempt.objects.filter(group=group).values_list("pk", flat=True)[:most])
    return Attempt.objects.filter(pk__in=ids).update(group=target) if ids else 0


def _items(group: Group, target: Group, most: int) -> int:
    ids = list(ReplayItem.objects.filter(failed_group=group).values_list("pk", flat=True)[:most])
    return ReplayItem.objects.filter(pk__in=ids).update(failed_group=target) if ids else 0


def _numbers(group: Group, target: Group, most: int) -> int:
    if count := Group.objects.filter(pk=group.pk, count__gt=0).values_list("count", flat=True).first():
        Group.objects.filter(pk=target.pk).update(count=F("count") + count)
        Group.objects.filter(pk=group.pk).update(count=F("count") - count)
    rows = list(GroupCounter.objects.filter(group=group).order_by("pk")[:most])
    if rows:
        columns = ("group_id", "step", "at", "failed", "retried")
        moved = sorted((target.pk, row.step, row.at, row.failed, row.retried) for row in rows)
        statements.insert(GroupCounter, columns, moved, conflict=statements.add(GroupCounter, columns, key=columns[:3]))
        GroupCounter.objects.filter(pk__in=[row.pk for row in rows]).delete()
    return len(rows)


def _take_away(group: Group, target: Group) -> None:
    try:
        with _alone():
            rows = Group.objects.filter(pk=group.pk, fingerprint=group.fingerprint)
            for row in rows.select_for_update(of=("self",)):
                _add_counts(target.pk, row.count, row.first_seen, row.last_seen, row.representative_id)
                _choose_representative(target.pk)
                groups_aside.leave(row.pk, target.pk)
                row.delete()
    except IntegrityError:  # ProtectedError too: a report of it landed in this moment, and is moved the next time
        return


def _add_counts(group: int, count: int, first: datetime, last: datetime, representative: int | None) -> None:
    rows = Group.objects.filter(pk=group)
    if connection.features.has_select_for_update:
        rows = rows.select_for_update(of=("self",), no_key=True)
    row = rows.get()
    if representative is not None and (row.representative_id is None or last >= row.last_seen):
        row.representative_id = representative
    row.count += count
    row.first_seen, row.last_seen = min(row.first_seen, first), max(row.last_seen, last)
    row.save(update_fields=["representative", "count", "first_seen", "last_seen"])


def _choose_representative(group: int) -> None:
    """Replace its representative by one of its own failures, if it has one."""
    row = Group.objects.filter(pk=group).values_list("representative_id", flat=True).first()
    if row is None or not Failure.objects.filter(pk=row, group_id=group).exists():
        latest = Failure.objects.filter(group_id=group).order_by("-pk").values_list("pk", flat=True).first()
        if latest is not None:
            Group.objects.filter(pk=group).update(representative=latest)


def _lock(group: Group, ids: Sequence[int]) -> set[int]:
    """Failures in one order for all, as ingest takes them. Answers those that are there yet, in this group."""
    rows = Failure.objects.filter(pk__in=ids, group=group).order_by("pk")
    if connection.features.has_select_for_update:
        rows = rows.select_for_update(of=("self",), no_key=True)
    return set(rows.values_list("pk", flat=True))


# -- rules over known failures ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Destination:
    """Destination of a failure."""

    fingerprint: str
    title: str
    culprit: str
    part_text: str = ""  # of a part of a split group: how it is told from the others


def _apply(now: datetime) -> bool:
    """A slice of the oldest rule that is not carried out yet."""
    rule = GroupRule.objects.filter(is_applied=False).select_related("group").order_by("since", "pk").first()
    if rule is None:
        return False
    seen = _read_slice(rule)
    if seen is not None:
        ends = time.monotonic() + _ROUND_S  # what is moved by then is found moved in the next round
        while time.monotonic() < ends and not seen.is_done and _slice("rule", lambda most: _go_on(seen, most)):
            pass
        return True
    if now - rule.since < _SETTLED:
        return False
    if (strays := _strays(rule)) and _slice("stray", lambda most: _bring_home(rule, strays[:most])):
        return True
    with _alone():
        _finish(rule.pk)
    return True


def _strays(rule: GroupRule) -> list[int]:
    """Return some attempts that the group of a withdrawn merge has of failures that left it by failing again.

    Only attempts whose own error is of the group that its failure is in.
    """
    if rule.kind != GroupRuleKind.MERGE or not rule.is_withdrawn or rule.group is None:
        return []
    rules = grouping_rules.read_rules()
    # The group that took the others in may be taken in by one of them since.
    elsewhere = Group.objects.filter(fingerprint__in=rule.others).exclude(pk=rule.group.pk)
    found = Attempt.objects.filter(group=rule.group, failure__group__in=elsewhere)
    rows = found.select_related("traceback", "failure__group").order_by("pk").iterator(chunk_size=_MOST)

    def is_at_home(one: Attempt) -> bool:
        group = one.failure.group.fingerprint
        return printed(one.failure, rules, one).value in (group, *rule.before.get(group, {}).get("aliases", ()))

    return list(itertools.islice((one.pk for one in rows if is_at_home(one)), _MOST))


def _bring_home(rule: GroupRule, attempts: Sequence[int]) -> int:
    """Give these attempts to the groups of their failures. What each group counts is set right when the rule ends."""
    home = Failure.objects.filter(pk=OuterRef("failure"), group__fingerprint__in=rule.others).values("group")[:1]
    strays = Attempt.objects.filter(pk__in=attempts, group=rule.group, failure__group__fingerprint__in=rule.others)
    moved = Attempt.objects.filter(pk__in=list(strays.values_list("pk", flat=True))).update(group=Subquery(home))
    if rule.group is not None:
        _choose_representative(rule.group.pk)
    return moved


def _lock_rule(pk: int) -> GroupRule | None:
    """The rule as it is now, until the transaction ends; None where it is carried out."""
    rows = GroupRule.objects.select_for_update(of=("self",)).select_related("group")
    return rows.filter(pk=pk, is_applied=False).first()


@dataclass(slots=True)
class _Slice:
    """The next failures that a rule may concern, and their destinations; found before any lock."""

    rule: GroupRule
    until: int = 0  # the last that was looked at
    # By the group that they are in, and the name of the one they go to.
    goes: dict[tuple[int, str], list[Failure]] = field(default_factory=lambda: defaultdict(list))
    to: dict[str, _Destination] = field(default_factory=dict)
    is_done: bool = False


def _read_slice(rule: GroupRule) -> _Slice | None:
    """As many as a fraction of a second allows; None where none is left."""
    where, seen, began = _where(rule), _Slice(rule), time.monotonic()
    for failure in _next(rule):
        place = where(failure)
        if place is not None and failure.group_id is not None and place.fingerprint != failure.group.fingerprint:
            seen.to[place.fingerprint] = place
            seen.goes[failure.group_id, place.fingerprint].append(failure)
        seen.until = failure.pk
        if time.monotonic() - began > _READ_S:
            break
    return seen if seen.until else None


def _next(rule: GroupRule) -> Iterator[Failure]:
    """Yield failures that the rule may concern, from where it stopped."""
    after = rule.applied_to
    for _ in range(_MOST_SEEN // _MOST):
        rows = list(_concerned(rule).filter(pk__gt=after).order_by("pk")[:_MOST])
        yield from rows
        if len(rows) < _MOST:
            return
        after = rows[-1].pk


def _go_on(seen: _Slice, most: int) -> int:
    """Move the failures of a few groups, up to that many rows by weight. A slice repeated after a crash finds them
    moved.

    A group's failures lie between those of others: moving those of one destination together is ten times faster than in
    their order.
    """
    rule = _lock_rule(seen.rule.pk)
    # Another watch was here meanwhile, or the rule was taken back: what was seen is looked at anew.
    if rule is None or (rule.applied_to, rule.is_withdrawn) != (seen.rule.applied_to, seen.rule.is_withdrawn):
        return 0
    weight = 0
    while seen.goes and (not weight or weight + _OF_A_MOVE < most):
        (group, fingerprint), theirs = min(seen.goes.items())
        mine = theirs[: max(1, most - weight - _OF_A_MOVE)]
        if target := _move(group, seen.to[fingerprint], mine):
            _remember(rule, *target)
        weight += _OF_A_MOVE + len(mine)
        del theirs[: len(mine)]
        if not theirs:
            del seen.goes[group, fingerprint]
    changed = GroupRule.objects.filter(pk=rule.pk)
    if weight:
        changed.update(before=rule.before)
    if not seen.goes:
        changed.update(applied_to=seen.until)
        seen.is_done = True
    return max(weight, 1)


def _concerned(rule: GroupRule) -> QuerySet[Failure]:
    """The failures that may have to move, by what an index knows."""
    found = Failure.objects.filter(group__isnull=False).select_related("group")
    if rule.kind != GroupRuleKind.SPLIT:
        found = found.select_related("traceback")
    if rule.kind == GroupRuleKind.MERGE:
        # What was taken in is moved by `_drain`; taken back, its own are looked for in the group that had them.
        return found.filter(group=rule.group) if rule.is_withdrawn else found.none()
    if rule.kind == GroupRuleKind.SPLIT and not rule.is_withdrawn:
        return found.filter(group=rule.group)
    if rule.kind == GroupRuleKind.IGNORE:
        if indexing.is_complete(STACKS) and (words := _words_of_frame(rule.frame)):
            return found.filter(InIndex(all_of(words), STACKS, "traceback_id"))
        if (stacks := _stacks_with(rule.frame)) is not None:
            return found.filter(traceback__in=stacks)
    return found


_MOST_STACKS, _MOST_FOUND = 50_000, 2_000
_found: dict[str, tuple[int, list[int]]] = {}  # by pattern: the last stack that was looked at, and those that have it


def _stacks_with(pattern: str) -> list[int] | None:
    """The stacks that may have the frame, where no index knows its words whole (`*retry*`): looked through, each once.

    None where that would take too long, or leave too much: a pattern of stars, too many stacks, or most of them match.
    """
    # Letters of the pattern stand in the stack as they are; "release" may stand for what is left out of a folder.
    parts = [part for part in re.findall("[A-Za-z]{3,}", pattern) if part not in "release"]
    if not parts:
        return None
    after, found = _found.get(pattern, (0, []))
    newer = Traceback.objects.filter(pk__gt=after)
    last = newer.order_by("-pk").values_list("pk", flat=True).first()
    if last is None:
        return found
    if not after and newer.count() > _MOST_STACKS:
        return None
    has_all = functools.reduce(operator.and_, (Q(text__contains=part) for part in parts))
    found = [*found, *newer.filter(has_all, pk__lte=last).values_list("pk", flat=True)[: _MOST_FOUND + 1]]
    if len(found) > _MOST_FOUND:
        return None
    if len(_found) > 20:
        _found.clear()
    _found[pattern] = last, found
    return found


def _words_of_frame(pattern: str) -> list[Phrase]:
    """Return the words that the index must have of a stack for the pattern to match a frame: complete words of it.

    One by one: of a word that a deep stack repeats the index knows the first 255 places only, so no phrase of it is
    sure to be found. The file's name and the function are in the stack as they are in the frame; a folder is not.
    """
    file, _, function = pattern.rpartition(" in ")
    names = [file.replace("\\", "/").rpartition("/")[2], function] if file else []
    literal = [text for text in names if text and "*" not in text]
    terms = (term for text in literal for phrase in phrases(text)[:1] for term in phrase.terms)
    return [Phrase((term,)) for term in dict.fromkeys(terms)]


def _where(rule: GroupRule) -> Callable[[Failure], _Destination | None]:
    """The group that a failure belongs in by this rule, or by its end; None for where it is."""
    if rule.kind == GroupRuleKind.SPLIT:
        return _where_split(rule)
    now = grouping_rules.read_rules()
    others = grouping_rules.read_rules(but=rule.pk)
    if rule.kind == GroupRuleKind.MERGE:
        names = set(rule.before)
    before = Rules((*others.ignored, rule.frame), others.splits) if rule.is_withdrawn else others

    def place(failure: Failure) -> _Destination | None:
        made = printed(failure, now)
        if rule.kind == GroupRuleKind.MERGE:
            is_theirs = made.value in names or any(made.value in rule.before[n].get("aliases", ()) for n in names)
        else:
            is_theirs = made.value != printed(failure, before).value
        return _Destination(made.value, made.title_message, made.culprit) if is_theirs else None

    return place


def _where_split(rule: GroupRule) -> Callable[[Failure], _Destination | None]:
    group = rule.group
    assert group is not None
    split = Split(group.fingerprint, rule.by)

    def part(failure: Failure) -> _Destination | None:
        value, part_text = apart(split, failure.message, facts_of(failure))
        if not rule.is_withdrawn:
            return _Destination(value, f"{group.message[: 499 - len(part_text)]} {part_text}", group.culprit, part_text)
        is_part = failure.group is not None and failure.group.fingerprint == value
        return _Destination(group.fingerprint, group.message, group.culprit) if is_part else None

    return part


def _move(old: int, to: _Destination, failures: Sequence[Failure]) -> tuple[Group, Group, int] | None:
    """These failures of one group go to another; their attempts and what was counted of them go with them.

    Answers (from, to, how many failures); None where none had to move.
    """
    group = Group.objects.get(pk=old)
    # They were looked at before this transaction: what was pruned meanwhile, or went elsewhere, is no part of it.
    found = _lock(group, [failure.pk for failure in failures])
    failures = [failure for failure in failures if failure.pk in found]
    if not failures:
        return None
    target = _find_group(to.fingerprint) or _create_group(group, to, failures)
    if target.pk == group.pk:
        return None
    ids = [failure.pk for failure in failures]
    attempts = Attempt.objects.filter(failure__in=ids, group=group)
    counted: dict[datetime, list[int]] = defaultdict(lambda: [0, 0])
    times = []
    for kind, at in attempts.values_list("kind", "ended_at"):
        counted[at.replace(second=0, microsecond=0)][kind == "retry"] += 1
        times.append(at)
    attempts.update(group=target)
    Failure.objects.filter(pk__in=ids, group=group).update(group=target)
    groups_aside.follow(group.pk, target.pk)
    _uncount(group.pk, counted)
    add_group_counts({(target.pk, at): n for at, n in counted.items()})
    latest = max(failures, key=lambda failure: (failure.failed_at, failure.pk))
    first = min([failure.first_failed_at for failure in failures] + times)
    _add_counts(target.pk, len(times), first, latest.failed_at, latest.pk)
    _write_parts(target.pk, to, failures)
    left = Case(When(count__gt=len(times), then=F("count") - len(times)), default=Value(0))
    Group.objects.filter(pk=group.pk).update(count=left)
    _choose_representative(group.pk)
    return group, target, len(failures)


def _own_text(failure: Failure, to: _Destination) -> tuple[str, str]:
    """Return message and culprit as the title of a group has them, by this failure alone: its old group is not only its own."""
    rules = grouping_rules.read_rules()
    own = printed(failure, rules)
    if not to.part_text or own.title_message.endswith(to.part_text):
        return own.title_message, own.culprit
    plain = printed(failure, Rules(rules.ignored))
    return f"{plain.title_message[: 499 - len(to.part_text)]} {to.part_text}", plain.culprit


def _write_parts(group: int, to: _Destination, failures: Sequence[Failure]) -> None:
    """Add these failures to what their sources have of the group. The text is their own, never that of their group."""
    first: dict[str, Failure] = {}
    for one in failures:
        first[one.source] = min(first.get(one.source, one), one, key=lambda failure: failure.first_failed_at)
    made = {source: _own_text(one, to) for source, one in first.items()}
    write_parts(
        Part(
            group, one.source, first[one.source].error_type, made[one.source][0], made[one.source][1],
            one.first_failed_at, one.failed_at, one.release,
        )
        for one in failures
    )  # fmt: skip


def _renew_parts(group: int) -> None:
    """Rewrite what each source has of the group by its latest failure there; remove it where it has none."""
    for part in GroupSource.objects.filter(group=group):
        mine = Failure.objects.filter(group=group, source=part.source).select_related("traceback").order_by("-pk")
        if (latest := mine.first()) is None:
            part.delete()
            continue
        made = printed(latest, grouping_rules.read_rules())
        part.error_type, part.message, part.culprit = latest.error_type, made.title_message, made.culprit
        part.save(update_fields=["error_type", "message", "culprit"])


def _create_group(group: Group, to: _Destination, failures: Sequence[Failure]) -> Group:
    """A group that comes out of another one: in its state, and looked after by the same.

    What people wrote of that one comes along as far as viewers of the sources of these failures read it.
    """
    group = copy(group)
    group_sight.restrict(group_sight.viewer_of_sources({failure.source for failure in failures}), [group])
    title, culprit = _own_text(failures[0], to)
    is_muted = group.state == GroupState.MUTED and group.muted_until is None
    stored = (
        "state_by",
        "state_since",
        "resolved_at",
        "muted_until",
        "assignee_id",
        "note",
        "runbook_url",
        "first_release",
    )
    values: dict[str, Any] = {name: getattr(group, name) for name in stored}
    made, _ = Group.objects.get_or_create(
        fingerprint=to.fingerprint,
        defaults=values
        | {
            "error_type": failures[0].error_type,
            "message": title[:500],
            "culprit": culprit,
            "state": GroupState.ONGOING if is_muted else group.state,
            "first_seen": group.last_seen,
            "last_seen": group.first_seen,
        },
    )
    return made


def _uncount(group: int, counted: dict[datetime, list[int]]) -> None:
    for _, step, at, (failed, retried) in spread_over_steps(
        {(group, at): n for at, n in counted.items()}, STEPS_OF_GROUPS
    ):
        GroupCounter.objects.filter(group_id=group, step=step, at=at).update(
            failed=Case(When(failed__gt=failed, then=F("failed") - failed), default=Value(0)),
            retried=Case(When(retried__gt=retried, then=F("retried") - retried), default=Value(0)),
        )


# -- what is left at the end ----------------------------------------------------------------------------------------


def _remember(rule: GroupRule, group: Group, target: Group, failures: int) -> None:
    """Record that the rule moved this many failures of this group to that one: if it is left empty, its name goes there
    too.
    """
    into = rule.before.setdefault("into", {}).setdefault(group.fingerprint, {})
    into[target.fingerprint] = into.get(target.fingerprint, 0) + failures


def _finish(pk: int) -> None:
    """A group that the rule left empty is taken in by the one that most of it went to: its name leads there."""
    rule = _lock_rule(pk)
    if rule is None or _concerned(rule).filter(pk__gt=rule.applied_to).exists():
        return
    into = rule.before.pop("into", {})
    # What was split stays, empty: the rule is about it, and its link says what became of it. What took others in was
    # there before them.
    stays = rule.group.fingerprint if rule.group else None
    if rule.is_withdrawn:
        for name in rule.others:
            if (back := Group.objects.filter(fingerprint=name).first()) and (stored := rule.before.get(name)):
                heir = _find_group(stored["heir"]) if stored.get("heir") else None
                merged_counts.give_back(back, heir, stored)
                for one in (back, heir):
                    if one is not None:
                        _renew_parts(one.pk)
    for name, targets in into.items():
        group = Group.objects.filter(fingerprint=name).first()
        target = _find_group(max(targets, key=lambda target: targets[target]))
        if group is None or target is None or target.pk == group.pk or Failure.objects.filter(group=group).exists():
            continue
        if name == stays:
            groups_aside.leave(group.pk, target.pk)
            continue
        stored = take_in(target, group)
        if not rule.is_withdrawn:
            rule.before[name] = stored
            rule.others = [*rule.others, name]
    if into and rule.kind != GroupRuleKind.MERGE:
        # For the story of these groups.
        rule.before["moved"] = {n: {} for n in [*into, *(n for to in into.values() for n in to)]}
    GroupRule.objects.filter(pk=rule.pk).update(is_applied=True, before=rule.before, others=rule.others)
