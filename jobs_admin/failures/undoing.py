"""Undoable acts of a person, from the audit, long after the message that offered the undo has gone.

A sweep counts as one act over its steps, a change of many groups over its transactions. An undone act no longer counts.
An act that cannot be undone still counts as the latest: no older act is offered instead.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from jobs_admin import config
from jobs_admin.core.text import representable, whole_number
from jobs_admin.failures import triage
from jobs_admin.groups import group_changes, group_rules
from jobs_admin.models import Alert, AuditEvent
from jobs_admin.models.access import EVERY_SOURCE, OPERATOR, Viewer
from jobs_admin.models.alert import AlertState
from jobs_admin.rights import alert_sight

_MOST_ROWS = 5_000  # latest audit rows of the person
ALERT, _UNACKNOWLEDGED = "alert.acknowledge", "alert.unacknowledge"
RULE, _WITHDRAWN = "rule.save", "rule.withdraw"
# Acts without changes: exports and drafts; also the demo's own controls.
_CHANGES_NOTHING = ("audit.export", "failures.export", "replay.draft")
_STEPS_APART = timedelta(seconds=5)  # longest time between two transactions of one change of groups


@dataclass(frozen=True, slots=True)
class Undoable:
    """An act, with the arguments that undo it.

    They are for `triage.undo`, `group_changes.undo`, `group_rules.withdraw` or `alerts.unacknowledge`.
    """

    act: str  # `failure.discard`, `group.change`, `rule.save` …
    handle: str  # a key of triage, a receipt of a change of groups, or the number of a grouping rule or an alert
    count: int  # changed jobs, groups, rules or alerts
    at: datetime
    reason: str
    summary: str = ""  # of a grouping rule: its effect; of an acknowledgement: the name of the alert rule

    @property
    def is_of_groups(self) -> bool:
        return self.act == group_changes.ACT

    @property
    def is_of_alerts(self) -> bool:
        return self.act == ALERT

    @property
    def is_rule(self) -> bool:
        return self.act == RULE


@dataclass(frozen=True, slots=True)
class Done:
    """An act that cannot be undone, or no longer."""

    act: str
    object: str  # `replay:5`
    at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class _Row:
    pk: int
    act: str
    object: str
    reason: str
    at: datetime


def latest(viewer: Viewer) -> Undoable | Done | None:
    """Return the latest act of this viewer that was not undone; None if there is none."""
    rows = next(_acts(_read_own(viewer)), None)
    if rows is None:
        return None
    return _undoable(viewer, rows) or Done(rows[0].act, rows[0].object, rows[0].at, rows[0].reason)


def undoable_by_event(viewer: Viewer, events: Iterable[AuditEvent]) -> dict[int, Undoable]:
    """Return event number -> the undoable act of this viewer."""
    wanted = {event.pk for event in events if event.user_id == viewer.person_id and event.token_id == viewer.token_id}
    found: dict[int, Undoable] = {}
    for rows in _acts(_read_own(viewer)) if wanted else ():
        own = wanted & {row.pk for row in rows}
        if own and (act := _undoable(viewer, rows)) is not None:
            found |= dict.fromkeys(own, act)
        wanted -= own
        if not wanted:
            break
    return found


def _read_own(viewer: Viewer) -> list[_Row]:
    me = {"actor": representable(viewer.name)[:150], "user_id": viewer.person_id, "token_id": viewer.token_id}
    rows = AuditEvent.objects.filter(**me, allowed=True).exclude(act__in=_CHANGES_NOTHING)
    rows = rows.exclude(act__startswith="demo.").order_by("-pk")
    return [_Row(*row) for row in rows.values_list("pk", "act", "object", "reason", "at")[:_MOST_ROWS]]


def _acts(rows: list[_Row]) -> Iterator[list[_Row]]:
    """Yield the rows of each act that was not undone, latest act first. An undo does not count as an act."""
    taken_back = {row.reason.removeprefix(triage.UNDO_OF) for row in rows if _is_undo(row)}
    taken_back |= {row.object for row in rows if row.act == _WITHDRAWN}
    mine = {row.object for row in rows if row.act == RULE}
    undone: Counter[str] = Counter()  # group -> later undos of its changes
    counted: dict[tuple[str, datetime], bool] = {}  # change of a group (with a row per source): whether it is undone
    together: dict[datetime, set[str]] = defaultdict(set)  # time of a transaction -> the groups that it changed
    for row in rows:
        together[row.at].add(row.object)
    by_key: dict[str, list[_Row]] = {}
    groups: list[_Row] = []
    unacknowledged: Counter[str] = Counter()  # alert -> acknowledgements of it that were undone later
    acts: list[list[_Row]] = []
    for row in rows:
        if row.act == group_changes.ACT:
            change, takes_back = (row.object, row.at), row.reason == group_changes.UNDONE
            if change not in counted:
                counted[change] = takes_back or undone[row.object] > 0
                undone[row.object] += 1 if takes_back else -1 if counted[change] else 0
            if not counted[change]:
                if not groups or not _is_one_change(groups[-1], row, len(together[row.at])):
                    groups = []
                    acts.append(groups)
                groups.append(row)
        elif row.act == _UNACKNOWLEDGED:
            unacknowledged[row.object] += 1
        elif row.act == ALERT and unacknowledged[row.object]:
            unacknowledged[row.object] -= 1
        elif (
            not _is_undo(row)
            and not (row.act == _WITHDRAWN and row.object in mine)
            and not (row.act in (*triage.NAMES, RULE) and _key(row) in taken_back)
        ):
            key = _key(row) if row.act in triage.NAMES else f"{row.act} {row.object}"
            if key not in by_key:
                acts.append(by_key.setdefault(key, []))
            by_key[key].append(row)
    yield from acts


# Format of the reason before undos had keys of their own.
_UNDONE_ACT = re.compile(r"undo of (failures:[0-9a-f]{16}|failure:\d+(@\d+)?)")


def _is_undo(row: _Row) -> bool:
    """Return whether it undoes an act on jobs.

    The prefix of a reason alone proves nothing: a person can write it too.
    """
    if row.object.startswith(triage.UNDOING):
        return True
    is_engines = row.object.startswith("failures:") and row.act.startswith("failure.")
    return is_engines and _UNDONE_ACT.fullmatch(row.reason) is not None


def _is_one_change(later: _Row, row: _Row, together: int) -> bool:
    """Return whether it was written with the later row, or in the preceding transaction if that one was full."""
    is_full = together >= group_changes.PER_TRANSACTION
    is_right_before = row.reason == later.reason and later.at - row.at < _STEPS_APART
    return row.at == later.at or (is_full and is_right_before)


def _key(row: _Row) -> str:
    """Return the key of an act. All acts on one job have the same name; the key includes the row's number."""
    return f"{row.object}@{row.pk}" if row.object.startswith("failure:") else row.object


def _undoable(viewer: Viewer, rows: list[_Row]) -> Undoable | None:
    last, summary = rows[0], ""
    if last.act == group_changes.ACT:
        handle = group_changes.receipt_of([(row.pk, row.at) for row in rows])
        count = group_changes.undoable(viewer, handle)
    elif last.act in triage.NAMES:
        handle = _key(last)
        count = triage.undoable(viewer, handle)
    elif last.act == RULE:
        handle = last.object.removeprefix("rule:")
        pk = whole_number(handle)
        rule = None if pk is None or config.is_read_only() else group_rules.row(viewer, pk)
        count, summary = (1, rule.summary) if rule and rule.may_withdraw else (0, "")
    elif last.act == ALERT:
        handle = last.object.removeprefix("alert:")
        count, summary = _count_acknowledged(viewer, whole_number(handle))
    else:
        return None
    return Undoable(last.act, handle, count, last.at, last.reason, summary) if count else None


def _count_acknowledged(viewer: Viewer, pk: int | None) -> tuple[int, str]:
    """Return how many alerts would notify again without this viewer's acknowledgement, and the name of their rule."""
    alert = Alert.objects.filter(alert_sight.visible(viewer), pk=pk).select_related("rule").first() if pk else None
    if alert is None or config.is_read_only() or not viewer.may(OPERATOR, alert.source or EVERY_SOURCE):
        return 0, ""
    own = alert_sight.own_acknowledgement(viewer, alert)
    return own.filter(state=AlertState.ACKNOWLEDGED).count(), alert.rule.name
