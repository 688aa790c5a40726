"""The rules of grouping that are in force, as fingerprints take them: frames that are ignored, groups that are split.

Merges are not among them: those are aliases (table GroupAlias), and a new failure finds its group by them.
"""

from __future__ import annotations

import time

from jobs_admin.core.fingerprint import Rules, Split
from jobs_admin.models import GroupAlias, GroupRule
from jobs_admin.models.group_rule import GroupRuleKind

_CACHED_S = 1.0
_cached: tuple[float, Rules] | None = None


def current() -> Rules:
    """The rules in force, at most a second old."""
    global _cached
    now = time.monotonic()
    if _cached is None or not 0 <= now - _cached[0] < _CACHED_S:
        _cached = now, read_rules()
    return _cached[1]


def forget() -> None:
    """Read the rules again the next time: this process changed them."""
    global _cached
    _cached = None


def read_rules(*, but: int | None = None) -> Rules:
    """The rules in force now, `but` one of them. Where two say different things of one group, the newer one counts."""
    rows = GroupRule.objects.filter(is_withdrawn=False, kind__in=(GroupRuleKind.IGNORE, GroupRuleKind.SPLIT))
    rules = list(rows.exclude(pk=but).select_related("group").order_by("pk"))
    ignored = tuple(dict.fromkeys(rule.frame for rule in rules if rule.kind == GroupRuleKind.IGNORE))
    splits: dict[str, Split] = {}
    for rule in rules:
        if rule.kind == GroupRuleKind.SPLIT and rule.group is not None:
            splits[rule.group.fingerprint] = Split(rule.group.fingerprint, rule.by)
    if splits:
        # What was merged into a group is split with it.
        named = GroupAlias.objects.filter(group__fingerprint__in=list(splits))
        for alias, fingerprint in named.values_list("fingerprint", "group__fingerprint"):
            splits.setdefault(alias, splits[fingerprint])
    return Rules(ignored, splits)
