"""The dependency of each group at each source: declared by a policy, or derived from the error (`core/dependency.py`).

One row of GroupSource holds it, so the cost does not depend on the number of failures. If errors of a group name
different dependencies, it is `several`. A value set by an operator is not overwritten.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Q

from jobs_admin.core import dependency as core
from jobs_admin.core.dependency import OTHER, SEVERAL, Dependency
from jobs_admin.core.matching import chosen
from jobs_admin.core.policy import Match
from jobs_admin.db import statements
from jobs_admin.ingest.report import Report
from jobs_admin.models import GroupSource, PolicyVersion

VERSION = 1  # of the rules in core/dependency.py
MOST_NAMES = 500  # per source; any further one is `other`
_CACHED_S = 2.0
_COLUMNS = ("dependency", "dependency_reason", "dependency_stamp")


@dataclass(frozen=True, slots=True)
class Matching:
    """Name and match of a policy, which may have parts that this version does not support."""

    name: str
    match: Match


@dataclass(frozen=True, slots=True)
class Declared:
    """The dependencies that the policies in force name."""

    policies: tuple[Matching, ...] = ()  # all in force: the most specific one applies; empty if none names any
    names: tuple[tuple[str, str], ...] = ()  # (policy, dependency)
    stamp: int = 0  # changes with the rules and with any of these

    def find(self, source: str, queue: str, task: str) -> Dependency | None:
        policy = chosen(self.policies, source, queue, task) if self.names else None
        name = dict(self.names).get(policy.name, "") if policy else ""
        return Dependency(name, f"Policy {policy.name} names it") if policy and name else None


_cached: tuple[float, Declared] | None = None


def declared() -> Declared:
    """Return the declarations of policies, at most two seconds old."""
    global _cached
    now = time.monotonic()
    if _cached is None or not 0 <= now - _cached[0] < _CACHED_S:
        _cached = now, read_declared()
    return _cached[1]


def forget() -> None:
    """Clear the cache of policies."""
    global _cached
    _cached = None


def read_declared() -> Declared:
    rows = list(PolicyVersion.objects.filter(is_published=True).order_by("name"))
    names = {row.name: name for row in rows if (name := _declared_name(row.document))}
    policies, matches = [], []
    for row in rows if names else ():
        policies.append(Matching(row.name, Match(row.match_source, row.match_queue, row.match_task)))
        matches.append([row.name, row.match_source, row.match_queue, row.match_task, names.get(row.name, "")])
    digest = hashlib.sha256(json.dumps([VERSION, matches]).encode()).digest()
    return Declared(tuple(policies), tuple(names.items()), int.from_bytes(digest[:4], "big") >> 1)


def _declared_name(document: object) -> str:
    breaker = document.get("breaker") if isinstance(document, dict) else None
    name = breaker.get("dependency") if isinstance(breaker, dict) else None
    return core.declared_name(name) if isinstance(name, str) else ""


def of_error(source: str, queue: str, task: str, error: str, message: str, trace: str) -> Dependency | None:
    """Return the dependency of one failure."""
    return declared().find(source, queue, task) or core.attribute(error, message, trace)


def combine(found: Sequence[Dependency | None]) -> Dependency:
    """Return the dependency of these errors of one group; without a name if there is none.

    A kind of service (`http`) does not count as a second name.
    """
    named = {one.name: one for one in found if one is not None}
    named = {name: one for name, one in named.items() if core.is_specific(name)} or named
    if len(named) > 1:
        first, second = sorted(named)[:2]
        return Dependency(SEVERAL, f"Errors name {first[:80]} and {second[:80]}")
    return next(iter(named.values()), Dependency("", ""))


def write_dependencies(reports: Iterable[tuple[int, Report]]) -> None:
    """Store the dependencies of newly filed reports, (group, report) each, in the caller's transaction.

    The latest report of each group and source counts.
    """
    latest: dict[tuple[int, str], Report] = {}
    for group, report in reports:
        if report.fingerprint:
            known = latest.get((group, report.source))
            if known is None or report.ended_at >= known.ended_at:
                latest[group, report.source] = report
    if not latest:
        return
    stamp, changed = declared().stamp, []
    columns = ("id", "group_id", "source", "dependency", "dependency_reason", "dependency_stamp")
    parts = GroupSource.objects.filter(group__in={group for group, _ in latest}, dependency_by="")
    for pk, group, source, name, reason, known_stamp in parts.values_list(*columns):
        report = latest.get((group, source))
        if report is None or (known_stamp is not None and name in (SEVERAL, OTHER)):
            continue
        made = of_error(source, report.queue, report.task, report.error_type, report.message, report.stack)
        if known_stamp is not None and (made is None or name == made.name):
            continue
        both = combine([made, Dependency(name, reason) if name else None])
        if known_stamp is not None and both.name == name:
            continue
        bounded = within_bounds(source, both)
        changed.append((pk, bounded.name, bounded.reason, stamp if known_stamp is None else known_stamp))
    statements.update(GroupSource, _COLUMNS, [(*values, pk) for pk, *values in sorted(changed)])


def within_bounds(source: str, found: Dependency) -> Dependency:
    """Return `other` for a name that would exceed the limit of its source."""
    if found.name in ("", SEVERAL, OTHER):
        return found
    named = GroupSource.objects.filter(source=source, dependency__gt="")
    if named.filter(dependency=found.name).exists() or count_names(source) < MOST_NAMES:
        return found
    return Dependency(OTHER, f"Over {MOST_NAMES} names: {found.name}"[:200])


def count_names(source: str) -> int:
    """Return the number of names of a source, counted up to MOST_NAMES with one index lookup each."""
    table = GroupSource._meta.db_table
    return int(
        statements.fetch_number(
            f"WITH RECURSIVE named(name) AS (SELECT MIN(dependency) FROM {table} WHERE source = %s AND dependency > '' UNION ALL "
            f"SELECT (SELECT MIN(dependency) FROM {table} WHERE source = %s AND dependency > named.name AND dependency > '') "
            "FROM named WHERE named.name IS NOT NULL) "
            f"SELECT COUNT(*) FROM (SELECT name FROM named WHERE name IS NOT NULL LIMIT {MOST_NAMES}) AS counted",
            [source, source],
        )
    )


def stale(stamp: int) -> Q:
    """Return the condition for rows not derived yet, or derived by rules or policies other than those of `stamp`."""
    return Q(dependency_stamp__isnull=True) | Q(dependency_stamp__lt=stamp) | Q(dependency_stamp__gt=stamp)
