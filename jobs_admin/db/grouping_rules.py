"""Grouping rules in force, in the form that fingerprints need: ignored frames and split groups.

Merges are not included: they are aliases (table GroupAlias), by which a new failure finds its group.
"""

from __future__ import annotations

import time

from jobs_admin.core.fingerprint import Fingerprint, Rules, Split, fingerprint
from jobs_admin.models import Attempt, Failure, GroupAlias, GroupRule
from jobs_admin.models.group import GroupRuleKind

_CACHED_S = 1.0
_cached: tuple[float, Rules] | None = None


def current() -> Rules:
    """Return the rules in force, at most a second old."""
    global _cached
    now = time.monotonic()
    if _cached is None or not 0 <= now - _cached[0] < _CACHED_S:
        _cached = now, read_rules()
    return _cached[1]


def forget() -> None:
    """Clear the cache after a change by this process."""
    global _cached
    _cached = None


def read_rules(*, but: int | None = None) -> Rules:
    """Return the rules in force now, except `but`.

    If two contradict each other about a group, the newer one applies.
    """
    rows = GroupRule.objects.filter(is_withdrawn=False, kind__in=(GroupRuleKind.IGNORE, GroupRuleKind.SPLIT))
    rules = list(rows.exclude(pk=but).select_related("group").order_by("pk"))
    ignored = tuple(dict.fromkeys(rule.frame for rule in rules if rule.kind == GroupRuleKind.IGNORE))
    splits: dict[str, Split] = {}
    for rule in rules:
        if rule.kind == GroupRuleKind.SPLIT and rule.group is not None:
            splits[rule.group.fingerprint] = Split(rule.group.fingerprint, rule.by)
    if splits:
        # A group merged into a split group is split with it.
        named = GroupAlias.objects.filter(group__fingerprint__in=list(splits))
        for alias, name in named.values_list("fingerprint", "group__fingerprint"):
            splits.setdefault(alias, splits[name])
    return Rules(ignored, splits)


def printed(failure: Failure, rules: Rules, attempt: Attempt | None = None) -> Fingerprint:
    """Return the fingerprint of a known failure, or of one of its attempts, under these rules."""
    error = attempt or failure
    trace = error.traceback.text if error.traceback else ""
    return fingerprint(error.error_type, error.message, trace, rules, facts_of(failure))


def facts_of(failure: Failure) -> dict[str, str]:
    """Return the properties that groups can be split by, except the message."""
    return {name: getattr(failure, name) for name in ("task", "queue", "source", "tenant", "release")}
