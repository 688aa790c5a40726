"""Application of rules to known failures: new names for older fingerprints, and operators' grouping rules.

The step `regroup` of `watch`. Each slice is one short transaction and leaves everything consistent: if it is killed at
any point, the next slice continues. No link is ever lost: a former name of a group becomes its alias, or an alias of
the group that it was merged into.
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
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Subquery, Value, When

from jobs_admin.core.fingerprint import VERSION, Fingerprint, Rules, Split, apart
from jobs_admin.core.search_terms import Phrase, phrases
from jobs_admin.db import grouping_rules, statements
from jobs_admin.db.grouping_rules import facts_of, printed
from jobs_admin.db.turns import lock_writers, turn
from jobs_admin.groups import dependencies, merging
from jobs_admin.groups.group_rules import take_in
from jobs_admin.groups.moving import (
    Destination,
    add_counts,
    choose_representative,
    find_group,
    lock_failures,
    move_failures,
    renew_parts,
)
from jobs_admin.ingest import indexing
from jobs_admin.models import (
    Attempt,
    Failure,
    Group,
    GroupAlias,
    GroupCounter,
    GroupRule,
    ReplayItem,
    Traceback,
)
from jobs_admin.models.group import IS_TAKEN_IN, GroupRuleKind
from jobs_admin.models.terms import STACKS
from jobs_admin.search.term_index import InIndex, all_of

# Per transaction: on SQLite all other writers wait for its end, and never for over 200 ms.
_SLICE_S = 0.08
_FEWEST, _MOST = 10, 500
_MOST_SEEN, _READ_S = 2_000, 0.3  # outside of any transaction
_ROUND_S = 10  # slices of one read
# Moving failures of one more group costs about as much as this many failures.
_OF_A_MOVE = 15
# Processes that compute fingerprints read the rules once per second: until then failures arrive by the old ones.
_SETTLED = timedelta(seconds=3)


@dataclass(slots=True)
class _Pace:
    """Number of rows that fit into a slice of one kind of work, learned by measurement."""

    rows: int = 50

    def took(self, seconds: float, rows: int) -> None:
        fits = int(rows * _SLICE_S / max(seconds, 1e-6))
        if seconds > _SLICE_S:
            self.rows = min(self.rows, max(_FEWEST, fits))
        elif rows >= self.rows:  # a slice that was not full is no evidence
            self.rows = min(_MOST, fits, self.rows + max(1, self.rows // 2))


_paces: defaultdict[str, _Pace] = defaultdict(_Pace)


def regroup(now: datetime) -> bool:
    """Do one slice of work. Return True if there may be more."""
    # Merges are completed before a group is compared with the newer version.
    return _drain() or _rename(now) or _apply(now) or dependencies.derive()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Open a transaction in which no other process regroups: two processes would count the same rows twice."""
    with turn(), transaction.atomic():
        lock_writers()
        yield


def _slice(kind: str, work: Callable[[int], int]) -> int:
    """Run `work(maximum number of rows)` in a transaction of its own. Return the number of rows it used."""
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

    The newer version may distinguish errors that the older one combined: such failures leave the group first.
    """
    # Split groups first: the names of their parts are derived from their own.
    is_split = Exists(GroupRule.objects.filter(group=OuterRef("pk"), kind=GroupRuleKind.SPLIT, is_withdrawn=False))
    old = _old().annotate(first=Case(When(is_split, then=Value(0)), default=Value(1))).order_by("first", "pk")
    group = old.select_related("representative__traceback").first()
    if group is None:
        return False
    failure = group.representative or _latest_failure(group)
    if failure is None:  # it was pruned concurrently
        return True
    is_base = GroupRule.objects.filter(group=group, kind=GroupRuleKind.SPLIT, is_withdrawn=False).exists()
    rules = grouping_rules.read_rules()
    made = printed(failure, Rules(rules.ignored) if is_base else rules)
    if (made.culprit, failure.error_type) != (group.culprit, group.error_type):
        made = _own_name(group, rules) or made  # the latest failure may come from a merged group
    if not is_base and _part_strangers(group, made.value, rules):
        return True
    try:
        with _alone():
            target = find_group(made.value)
            if target is not None and target.pk != group.pk:
                take_in(target, group)
            else:
                changed = Group.objects.filter(pk=group.pk, fingerprint=group.fingerprint)
                changed.update(fingerprint=made.value, message=made.title_message, culprit=made.culprit)
                renew_parts(group.pk)
                GroupAlias.objects.filter(fingerprint=made.value).delete()
                GroupAlias.objects.get_or_create(fingerprint=group.fingerprint, defaults={"group": group})
    except IntegrityError:
        return True  # such a group has just arrived: the next slice merges this one
    return True


def _own_name(group: Group, rules: Rules) -> Fingerprint | None:
    """Return the fingerprint of a recent failure at the place that the group shows."""
    rows = Failure.objects.filter(group=group, error_type=group.error_type).select_related("traceback").order_by("-pk")
    recent = (printed(failure, rules) for failure in rows[:_MOST])
    return next((made for made in recent if made.culprit == group.culprit), None)


# Group -> the last failure compared with its future name. Lost with the process, which only costs comparing again.
_compared: dict[int, int] = {}


def _part_strangers(group: Group, name: str, rules: Rules) -> bool:
    """Move the next failures of an older group whose fingerprint differs from `name`. Return False when none is left.

    Failures merged by operators stay together: the other fingerprint becomes an additional name of the group.
    """
    goes: defaultdict[str, list[Failure]] = defaultdict(list)
    to: dict[str, Destination] = {}
    began, last = time.monotonic(), 0
    after = _compared.get(group.pk, 0)
    rows = Failure.objects.filter(group=group, pk__gt=after).select_related("traceback").order_by("pk")
    for failure in rows[:_MOST_SEEN].iterator(chunk_size=_MOST):
        made = printed(failure, rules)
        if made.value != name:
            to[made.value] = Destination(made.value, made.title_message, made.culprit)
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
                move_failures(group.pk, to[value], mine)
                del theirs[: len(mine)]
                return len(mine) + _OF_A_MOVE

            _slice("stranger", move)
    _compared[group.pk] = last
    return True


def _name_merged(group: Group, merges: Sequence[GroupRule], to: Destination, error_type: str) -> None:
    """Add this fingerprint as an alias of a merged group.

    Withdrawing the merge gives it to the group that it came from.
    """
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


# -- merged groups --------------------------------------------------------------------------------------------------


def _drain() -> bool:
    """Move a slice of what is left of a group that was merged into another; delete it when nothing is left."""
    group = Group.objects.filter(IS_TAKEN_IN).order_by("pk").first()
    if group is None:
        return False
    target = find_group(group.name)
    if target is None:  # it was not merged: it is restored
        Group.objects.filter(pk=group.pk).update(fingerprint=group.name)
        return True
    # Counts first: if the merge is withdrawn meanwhile, returning failures are already counted by the other group.
    for part in (_numbers, _failures, _attempts, _items):
        if _slice(part.__name__, lambda most, part=part: part(group, target, most) if _is_taken_in(group) else 0):
            return True
    _take_away(group, target)
    return True


def _is_taken_in(group: Group) -> bool:
    """Return whether it is still being merged.

    The merge may have been withdrawn, or another process may have finished.
    """
    return Group.objects.filter(pk=group.pk, fingerprint=group.fingerprint).exists()


def _failures(group: Group, target: Group, most: int) -> int:
    ids = list(Failure.objects.filter(group=group).order_by("pk").values_list("pk", flat=True)[:most])
    if ids:
        lock_failures(group, ids)
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
                add_counts(target.pk, row.count, row.first_seen, row.last_seen, row.representative_id)
                choose_representative(target.pk)
                merging.leave_exclusions(row.pk, target.pk)
                row.delete()
    except IntegrityError:  # also ProtectedError: a report of it was filed concurrently, and is moved next time
        return


# -- rules on known failures --------------------------------------------------------------------------------------


def _apply(now: datetime) -> bool:
    """Process a slice of the oldest rule that is not yet carried out."""
    rule = GroupRule.objects.filter(is_applied=False).select_related("group").order_by("since", "pk").first()
    if rule is None:
        return False
    seen = _read_slice(rule)
    if seen is not None:
        ends = time.monotonic() + _ROUND_S  # failures moved by then are skipped in the next round
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
    """Return some attempts in the group of a withdrawn merge whose failures left it by failing again.

    Only attempts whose own error belongs to the group of their failure.
    """
    if rule.kind != GroupRuleKind.MERGE or not rule.is_withdrawn or rule.group is None:
        return []
    rules = grouping_rules.read_rules()
    # The target of the merge may itself have been merged into one of the others since.
    elsewhere = Group.objects.filter(fingerprint__in=rule.others).exclude(pk=rule.group.pk)
    found = Attempt.objects.filter(group=rule.group, failure__group__in=elsewhere)
    rows = found.select_related("traceback", "failure__group").order_by("pk").iterator(chunk_size=_MOST)

    def is_at_home(one: Attempt) -> bool:
        group = one.failure.group.fingerprint
        return printed(one.failure, rules, one).value in (group, *rule.before.get(group, {}).get("aliases", ()))

    return list(itertools.islice((one.pk for one in rows if is_at_home(one)), _MOST))


def _bring_home(rule: GroupRule, attempts: Sequence[int]) -> int:
    """Move these attempts to the groups of their failures.

    The counts of each group are corrected when the rule ends.
    """
    home = Failure.objects.filter(pk=OuterRef("failure"), group__fingerprint__in=rule.others).values("group")[:1]
    strays = Attempt.objects.filter(pk__in=attempts, group=rule.group, failure__group__fingerprint__in=rule.others)
    moved = Attempt.objects.filter(pk__in=list(strays.values_list("pk", flat=True))).update(group=Subquery(home))
    if rule.group is not None:
        choose_representative(rule.group.pk)
    return moved


def _lock_rule(pk: int) -> GroupRule | None:
    """Return the present rule, locked until the transaction ends; None if it is carried out."""
    rows = GroupRule.objects.select_for_update(of=("self",)).select_related("group")
    return rows.filter(pk=pk, is_applied=False).first()


@dataclass(slots=True)
class _Slice:
    """The next failures that a rule may concern, and their destinations; read before any lock."""

    rule: GroupRule
    until: int = 0  # the last failure read
    # By present group and the name of the destination.
    goes: dict[tuple[int, str], list[Failure]] = field(default_factory=lambda: defaultdict(list))
    to: dict[str, Destination] = field(default_factory=dict)
    is_done: bool = False


def _read_slice(rule: GroupRule) -> _Slice | None:
    """Return as many failures as fit into a fraction of a second; None if none is left."""
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
    """Yield failures that the rule may concern, from its position on."""
    after = rule.applied_to
    for _ in range(_MOST_SEEN // _MOST):
        rows = list(_concerned(rule).filter(pk__gt=after).order_by("pk")[:_MOST])
        yield from rows
        if len(rows) < _MOST:
            return
        after = rows[-1].pk


def _go_on(seen: _Slice, most: int) -> int:
    """Move the failures of a few groups, up to that many rows by weight. Safe to repeat after a crash.

    The failures of different groups alternate: moving those of one destination together is ten times faster than in
    their order.
    """
    rule = _lock_rule(seen.rule.pk)
    # Another process was here meanwhile, or the rule was withdrawn: the slice is read again.
    if rule is None or (rule.applied_to, rule.is_withdrawn) != (seen.rule.applied_to, seen.rule.is_withdrawn):
        return 0
    weight = 0
    while seen.goes and (not weight or weight + _OF_A_MOVE < most):
        (group, fingerprint), theirs = min(seen.goes.items())
        mine = theirs[: max(1, most - weight - _OF_A_MOVE)]
        if target := move_failures(group, seen.to[fingerprint], mine):
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
    """Return the failures that may have to move, as far as an index shows."""
    found = Failure.objects.filter(group__isnull=False).select_related("group")
    if rule.kind != GroupRuleKind.SPLIT:
        found = found.select_related("traceback")
    if rule.kind == GroupRuleKind.MERGE:
        # `_drain` moves merged failures; after a withdrawal, they are searched in the group that received them.
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
_found: dict[str, tuple[int, list[int]]] = {}  # pattern -> the last stack read, and the stacks that match


def _stacks_with(pattern: str) -> list[int] | None:
    """Return the stacks that may contain the frame, if no index has its complete words (`*retry*`).

    Each is searched once. None if that would take too long or exclude too little: a pattern of stars, too many stacks,
    or most of them match.
    """
    # Letters of the pattern occur unchanged in the stack; "release" may represent a removed part of a folder.
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
    """Return the complete words that the index must have of a stack for the pattern to match a frame.

    As single words: for a word that a deep stack repeats, the index has only the first 255 positions, so a phrase may
    be missed. The file's name and the function are in the stack as in the frame; a folder is not.
    """
    file, _, function = pattern.rpartition(" in ")
    names = [file.replace("\\", "/").rpartition("/")[2], function] if file else []
    literal = [text for text in names if text and "*" not in text]
    terms = (term for text in literal for phrase in phrases(text)[:1] for term in phrase.terms)
    return [Phrase((term,)) for term in dict.fromkeys(terms)]


def _where(rule: GroupRule) -> Callable[[Failure], Destination | None]:
    """Return a function from a failure to its group under this rule, or after its withdrawal; None if it stays."""
    if rule.kind == GroupRuleKind.SPLIT:
        return _where_split(rule)
    now = grouping_rules.read_rules()
    others = grouping_rules.read_rules(but=rule.pk)
    if rule.kind == GroupRuleKind.MERGE:
        names = set(rule.before)
    before = Rules((*others.ignored, rule.frame), others.splits) if rule.is_withdrawn else others

    def place(failure: Failure) -> Destination | None:
        made = printed(failure, now)
        if rule.kind == GroupRuleKind.MERGE:
            is_theirs = made.value in names or any(made.value in rule.before[n].get("aliases", ()) for n in names)
        else:
            is_theirs = made.value != printed(failure, before).value
        return Destination(made.value, made.title_message, made.culprit) if is_theirs else None

    return place


def _where_split(rule: GroupRule) -> Callable[[Failure], Destination | None]:
    group = rule.group
    assert group is not None
    split = Split(group.fingerprint, rule.by)

    def part(failure: Failure) -> Destination | None:
        value, part_text = apart(split, failure.message, facts_of(failure))
        if not rule.is_withdrawn:
            return Destination(value, f"{group.message[: 499 - len(part_text)]} {part_text}", group.culprit, part_text)
        is_part = failure.group is not None and failure.group.fingerprint == value
        return Destination(group.fingerprint, group.message, group.culprit) if is_part else None

    return part


# -- completion -----------------------------------------------------------------------------------------------------


def _remember(rule: GroupRule, group: Group, target: Group, failures: int) -> None:
    """Record how many failures the rule moved between these groups.

    If the first is left empty, its name follows them.
    """
    into = rule.before.setdefault("into", {}).setdefault(group.fingerprint, {})
    into[target.fingerprint] = into.get(target.fingerprint, 0) + failures


def _finish(pk: int) -> None:
    """Merge a group that the rule left empty into the group that received most of it, which its name then leads to."""
    rule = _lock_rule(pk)
    if rule is None or _concerned(rule).filter(pk__gt=rule.applied_to).exists():
        return
    into = rule.before.pop("into", {})
    # A split group stays, although empty: the rule refers to it, and its page shows the result. A merge's target
    # existed before.
    stays = rule.group.fingerprint if rule.group else None
    if rule.is_withdrawn:
        for name in rule.others:
            if (back := Group.objects.filter(fingerprint=name).first()) and (stored := rule.before.get(name)):
                heir = find_group(stored["heir"]) if stored.get("heir") else None
                merging.give_back_counts(back, heir, stored)
                for one in (back, heir):
                    if one is not None:
                        renew_parts(one.pk)
    for name, targets in into.items():
        group = Group.objects.filter(fingerprint=name).first()
        target = find_group(max(targets, key=lambda target: targets[target]))
        if group is None or target is None or target.pk == group.pk or Failure.objects.filter(group=group).exists():
            continue
        if name == stays:
            merging.leave_exclusions(group.pk, target.pk)
            continue
        stored = take_in(target, group)
        if not rule.is_withdrawn:
            rule.before[name] = stored
            rule.others = [*rule.others, name]
    if into and rule.kind != GroupRuleKind.MERGE:
        # For the history of these groups.
        rule.before["moved"] = {n: {} for n in [*into, *(n for to in into.values() for n in to)]}
    GroupRule.objects.filter(pk=rule.pk).update(is_applied=True, before=rule.before, others=rule.others)
