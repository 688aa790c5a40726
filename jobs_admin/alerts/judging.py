"""Evaluation of alert rules: alerts start, fire, are silenced and resolved, with notices.

Several `watch` processes may evaluate concurrently. Each round has a time, a multiple of EVERY_S; a second round of the
same time, or one with outdated readings, changes nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import redis
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import Q

from jobs_admin import config
from jobs_admin.alerts import closing, notices, places, silencing
from jobs_admin.alerts.measuring import Key, Measured, Values
from jobs_admin.alerts.transitions import FIRED, LONGEST_REASON, move
from jobs_admin.core import alert_state, keys
from jobs_admin.core.alert_state import QUIET, Act, Phase, Stand
from jobs_admin.core.figures import dated, small
from jobs_admin.core.text import representable
from jobs_admin.models import Alert, AlertEvent, Rule, Silence
from jobs_admin.models.alert import AlertState

log = logging.getLogger(__name__)

EVERY_S = 5
OLD_S = 10.0  # older readings change nothing
_TIMES = ("opened_at", "below_since", "fired_at", "told_at", "escalated_at")
# Tolerance for a clock that was set back: evaluations dated later than this are ignored.
_SET_BACK = timedelta(minutes=1)
_AT_ONCE = 500


class _TooOld(Exception):
    """Readings would be too old when written, because the process was suspended."""


_ENDS_THE_ROUND = (_TooOld, OperationalError, InterfaceError)  # errors not caused by the rule


@dataclass(slots=True)
class Observation:
    """Value of one subject of a rule."""

    value: float | None
    block_reason: str = ""  # why it may neither fire nor end


@dataclass(slots=True)
class Round:
    """Observations of one rule and source, settled in one transaction."""

    rule: Rule
    source: str
    observations: dict[str, Observation] = field(default_factory=dict)
    # Alert to be closed because its subject is no longer observed -> the reason.
    gone: dict[str, str] = field(default_factory=dict)
    left_out: int = 0  # subjects over the threshold, beyond the limit of open alerts
    # Alert to be closed -> the far worse subject that replaces it.
    give_way: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moment:
    at: datetime  # time of the round
    silences: list[Silence]
    must_be_fresh: Callable[[], None]  # raises _TooOld


def judge(now: datetime, *, clock: Callable[[], datetime] | None = None) -> bool:
    """Evaluate all rules once. Return whether an alert changed its state.

    `clock` returns the present time, which reveals that the process was suspended since `now`; without it, only the
    time since the call counts.
    """
    began = time.monotonic()

    def must_be_fresh() -> None:
        age = (clock() - now).total_seconds() if clock is not None else 0.0
        if max(age, time.monotonic() - began) > OLD_S:
            raise _TooOld

    at = datetime.fromtimestamp(now.timestamp() // EVERY_S * EVERY_S, UTC)
    measured = Measured(now)
    moment = Moment(at, silencing.in_force(now), must_be_fresh)
    open_ = _open_alerts(at)
    rules = list(Rule.objects.filter(enabled=True, deleted_at=None).select_related("view__owner"))
    changed, same = False, []
    failed: dict[str, str] = {}
    try:
        # Rules that the last round did not reach in time come first.
        for rule in sorted(rules, key=lambda one: _reached_at.get(one.pk, 0.0)):
            try:
                values = measured.read(rule)
                if values is None:
                    continue
                _reached_at[rule.pk] = time.monotonic()  # also if it fails, so that others come first next time
                settled, still = _plan_rounds(rule, values, open_.get(rule.pk, {}), measured, moment)
                for one in settled:
                    changed |= _settle(one, moment)
                same += still
            except _ENDS_THE_ROUND:
                _reached_at[rule.pk] = time.monotonic()
                raise
            except Exception as error:  # one rule must not stop the others; the error is shown
                _reached_at[rule.pk] = time.monotonic()
                failed[rule.name] = _note_failed(rule, error)
            if len(same) >= _AT_ONCE:
                _touch(same, moment)
                same = []
        _touch(same, moment)
        for pk in open_.keys() - {rule.pk for rule in rules}:
            changed |= _close_remaining(pk, moment)
    except _TooOld:
        log.warning("What was read at %s is too old by now: nothing more is judged by it.", at)
    _show_failed(failed, {rule.pk for rule in rules if rule.name not in failed})
    return changed


# rule -> when this process last evaluated it, by the monotonic clock.
_reached_at: dict[int, float] = {}
# rule -> its logged error: logged once, however often it occurs.
_logged: dict[int, str] = {}


def _note_failed(rule: Rule, error: Exception) -> str:
    why = representable(f"{type(error).__name__}: {error}")[:300]
    if _logged.get(rule.pk) != why:
        log.error("Rule %d “%s” could not be judged: %s", rule.pk, rule.name, why, exc_info=error)
        _logged[rule.pk] = why
    return why


def _show_failed(failed: Mapping[str, str], well: set[int]) -> None:
    """Report the first rules that could not be evaluated to `doctor`, for a minute."""
    for pk in well & _logged.keys():
        del _logged[pk]
    if failed:
        try:
            config.store().set(keys.unjudged_rules(), json.dumps(dict(list(failed.items())[:20])), ex=60)
        except (redis.RedisError, config.BadConfiguration):
            log.debug("Rules that could not be judged could not be noted")


def _open_alerts(at: datetime) -> dict[int, dict[Key, Alert]]:
    found: dict[int, dict[Key, Alert]] = defaultdict(dict)
    ahead: dict[int, Alert] = {}
    for one in Alert.objects.exclude(state=AlertState.RESOLVED).select_related("told_with"):
        found[one.rule_id][one.source, one.subject] = one
        for alert in (one, one.told_with):
            if alert is not None and any(
                (moment := getattr(alert, name)) and moment > at + _SET_BACK for name in _TIMES
            ):
                ahead[alert.pk] = alert
    _correct_ahead(ahead.values(), at)
    return found


def _correct_ahead(ahead: Iterable[Alert], at: datetime) -> None:
    """Correct times after the clock was set back: future times become now.

    Otherwise nothing would fire or end until then.
    """
    for alert in ahead:
        late = {name: at for name in _TIMES if (moment := getattr(alert, name)) and moment > at + _SET_BACK}
        Alert.objects.filter(pk=alert.pk, transitions=alert.transitions).update(**late)
        for name in late:
            setattr(alert, name, at)


def _close_remaining(pk: int, moment: Moment) -> bool:
    """Close remaining alerts of a disabled rule; those open when it was disabled were closed by that act."""
    with transaction.atomic():
        rule = Rule.objects.select_for_update(of=("self",)).filter(pk=pk).exclude(enabled=True, deleted_at=None).first()
        if rule is None:
            return False
        moment.must_be_fresh()
        how = "disabled" if rule.deleted_at is None else "deleted"
        return closing.close_rule(rule, f"The rule was {how}.", moment.at)


# -- planning ----------------------------------------------------------------------------------------------------


def _plan_rounds(
    rule: Rule, values: Values, alerts: Mapping[Key, Alert], measured: Measured, moment: Moment
) -> tuple[list[Round], list[tuple[Alert, Stand]]]:
    """Return the rounds to settle by source, and the open alerts of other sources with their present state."""
    rounds: dict[str, Round] = {}

    def round_of(source: str) -> Round:
        return rounds.setdefault(source, Round(rule, source))

    over = _find_above(rule, values, alerts, measured.taken_out)
    mine: dict[str, list[Alert]] = defaultdict(list)
    for key, alert in alerts.items():
        mine[key[0]].append(alert)
    room = places.room(over.keys() | mine.keys())
    left_out: dict[str, int] = {}
    for source, found in over.items():
        free = max(0, room - len(mine[source]))
        give_way: dict[str, str] = {}
        if len(found) > free:
            found.sort(key=lambda pair: (-(pair[1] or 0.0), pair[0]))
            give_way = places.give_way(rule, source, found[free:], mine[source], moment.silences)
            left_out[source] = len(found) - free
        taken = found[:free] + [pair for pair in found[free:] if pair[0] in set(give_way.values())]
        for subject, value in taken:
            round_of(source).observations[subject] = Observation(
                value, measured.block_reason(rule, source, subject, value)
            )
        if give_way:
            round_of(source).give_way = give_way
    absent, numbers = measured.absent(rule), _numbers(rule)
    checked: dict[str, list[tuple[Alert, Observation, Stand]]] = defaultdict(list)
    for key, alert in alerts.items():
        value = _value(rule, alert, values.get(key, absent), measured)
        why = measured.gone_reason(rule.metric, key[0], value)
        if not why and not closing.is_covered(rule, alert):
            why = f"The rule was changed: {closing.ELSEWHERE}"
        if why:
            round_of(key[0]).gone[key[1]] = why
            continue
        observed = Observation(value, measured.block_reason(rule, *key, value))
        stand, act = alert_state.step(
            _stand(alert, moment.at),
            observed.value,
            moment.at.timestamp(),
            numbers,
            is_blocked=bool(observed.block_reason),
        )
        checked[key[0]].append((alert, observed, stand))
        if act is not None or observed.block_reason != alert.held_because or _flips(rule, alert, moment.silences):
            round_of(key[0])
    still: list[tuple[Alert, Stand]] = []
    for source, seen in checked.items():
        their, out = [alert for alert, _, _ in seen], left_out.get(source, 0)
        if source in rounds or _is_notice_due(rule, their, moment.at, out):
            round_of(source).observations.update({alert.subject: observed for alert, observed, _ in seen})
        else:
            still += [(alert, stand) for alert, _, stand in seen]
    for source, one in rounds.items():
        one.left_out = left_out.get(source, 0)
    return list(rounds.values()), still


def _value(rule: Rule, alert: Alert, value: float | None, measured: Measured) -> float | None:
    """Return the value of an open alert. If too few jobs end in its queue for a share, use that of the last hour."""
    if value is not None or rule.no_data != alert_state.KEEP:
        return value
    lately = measured.quiet_share(rule.metric, (alert.source, alert.subject))
    return lately if alert.state in FIRED or lately == 0 else None


def _find_above(
    rule: Rule, values: Values, alerts: Mapping[Key, Alert], taken_out: Collection[str]
) -> dict[str, list[tuple[str, float | None]]]:
    """Return the subjects above the threshold without an open alert, by source."""
    limit, fires_on_nothing = rule.threshold, rule.no_data == alert_state.FIRE
    found: dict[str, list[tuple[str, float | None]]] = defaultdict(list)
    for key, value in values.items():
        is_over = value > limit if value is not None else fires_on_nothing and key[0] not in taken_out
        if is_over and key not in alerts:
            found[key[0]].append((key[1], value))
    return found


def _flips(rule: Rule, alert: Alert, silences: Sequence[Silence]) -> bool:
    """Return whether a silence started or ended for it."""
    if alert.state not in (AlertState.FIRING, AlertState.SILENCED):
        return False
    is_silenced = silencing.silenced_by(silences, alert, rule.name) is not None
    return is_silenced != (alert.state == AlertState.SILENCED)


def _is_notice_due(rule: Rule, alerts: Sequence[Alert], now: datetime, left_out: int) -> bool:
    loud = [one for one in alerts if one.state == AlertState.FIRING]
    if any(one.told_at is None for one in loud):
        return True
    if left_out and notices.is_left_out_due(alerts, left_out, now):
        return True
    leaders = {one.told_with or one for one in loud}
    return any(
        notices.is_reminder_due(rule, leader, loud, now) or notices.is_escalation_due(rule, leader, loud, now)
        for leader in leaders
    )


# -- settling ----------------------------------------------------------------------------------------------------


def _settle(one: Round, moment: Moment) -> bool:
    """Make the transitions of a rule and source and write their notices, or change nothing.

    Return whether there was one.
    """
    with transaction.atomic():
        # Serializes with rounds of other processes and with changes of the rule.
        locked = Rule.objects.select_for_update(of=("self",)).filter(pk=one.rule.pk, deleted_at=None, enabled=True)
        rule = locked.filter(changed_at=one.rule.changed_at).select_related("view").first()
        if rule is None:
            return False  # it was changed meanwhile: the next round evaluates the new rule
        moment.must_be_fresh()
        is_gone = bool(one.gone) and closing.close_subjects(rule, one.source, one.gone, moment.at)
        open_ = Alert.objects.filter(rule=rule, source=one.source).exclude(state=AlertState.RESOLVED)
        alerts = {alert.subject: alert for alert in open_.select_related("told_with")}
        over_since = _ended_since(rule, one.source, moment.at)
        changed, again = _make_room(one, alerts, moment) or is_gone, []
        begun: list[tuple[Alert, str]] = []
        for subject, observed in one.observations.items():
            alert = alerts.get(subject)
            if alert is None:
                begun += [] if subject in over_since else _begin(rule, one.source, subject, observed, moment)
            else:
                alert.rule = rule
                was = alert.state
                changed |= _advance(rule, alert, observed, moment)
                if was == AlertState.SILENCED and alert.state == AlertState.FIRING:
                    again.append(alert)
        if begun:
            changed = True
            _write_begun(begun, moment.at)
        notices.write_notices(rule, one.source, moment.at, again=again, left_out=one.left_out)
        moment.must_be_fresh()
        return changed


def _make_room(one: Round, alerts: dict[str, Alert], moment: Moment) -> bool:
    """Close alerts that a far worse subject replaces; without a notice, because the rest of their bundle continues."""
    changed = False
    for subject, worse in one.give_way.items():
        alert = alerts.get(subject)
        if alert is None or worse in alerts:
            one.observations.pop(worse, None)
        elif _gives_way(alert, worse, moment.at):
            del alerts[subject]
            one.observations.pop(subject, None)
            changed = True
        else:
            one.observations.pop(worse, None)
    return changed


def _gives_way(alert: Alert, worse: str, at: datetime) -> bool:
    if alert.state == AlertState.PENDING:
        return bool(Alert.objects.filter(pk=alert.pk, transitions=alert.transitions, state=alert.state).delete()[0])
    why = f"Replaced by {worse}, which is far worse: the number of open alerts per rule and source is limited."
    return move(alert, AlertState.RESOLVED, at, why, resolved_at=at, below_since=None, judged_at=at) is not None


def _begin(rule: Rule, source: str, subject: str, observed: Observation, moment: Moment) -> list[tuple[Alert, str]]:
    """Return a new, unsaved episode and why it started."""
    stand, act = alert_state.step(
        QUIET, observed.value, moment.at.timestamp(), _numbers(rule), is_blocked=bool(observed.block_reason)
    )
    if act is None:
        return []
    alert = Alert(
        rule=rule,
        source=source,
        subject=subject,
        severity=rule.severity,
        threshold=rule.threshold,
        opened_at=moment.at,
        held_because=observed.block_reason,
        transitions=1,
        state=AlertState.PENDING,
        **_columns(stand, moment.at),
    )
    why = observed.block_reason or _why_above(alert)
    if act is Act.FIRE:
        alert.state, silenced = _fired_state(rule, alert, moment)
        alert.fired_at, why = moment.at, silenced or why
    return [(alert, why)]


def _ended_since(rule: Rule, source: str, at: datetime) -> set[str]:
    """Return the subjects with an episode that a later observation ended."""
    over = Alert.objects.filter(rule=rule, source=source, state=AlertState.RESOLVED, resolved_at__gte=at)
    return set(over.filter(judged_at__gte=at, judged_at__lt=at + _SET_BACK).values_list("subject", flat=True))


def _write_begun(begun: Sequence[tuple[Alert, str]], at: datetime) -> None:
    Alert.objects.bulk_create([alert for alert, _ in begun])
    AlertEvent.objects.bulk_create(
        AlertEvent(
            alert=alert,
            n=1,
            at=at,
            to=alert.state,
            value=alert.value,
            reason=why[:LONGEST_REASON],
            is_held=bool(alert.held_because),
        )
        for alert, why in begun
    )


def _advance(rule: Rule, alert: Alert, observed: Observation, moment: Moment) -> bool:
    """Make the next transition of an open alert. Return whether its state changed."""
    at = moment.at
    stand, act = alert_state.step(
        _stand(alert, at), observed.value, at.timestamp(), _numbers(rule), is_blocked=bool(observed.block_reason)
    )
    if stand.judged_at != at.timestamp():
        return False  # already evaluated with a later reading
    judged = Q(judged_at__gte=at, judged_at__lt=at + _SET_BACK)
    if act is Act.DROP:
        mine = Alert.objects.filter(pk=alert.pk, transitions=alert.transitions, state=alert.state).exclude(judged)
        return bool(mine.delete()[0])
    values = {**_columns(stand, at), "held_because": observed.block_reason}
    alert.value = values["value"]
    if act is Act.FIRE:
        state, why = _fired_state(rule, alert, moment)
        return move(alert, state, at, why or _why_above(alert), unless=judged, fired_at=at, **values) is not None
    if act is Act.RESOLVE:
        values.pop("below_since")
        why = f"At {alert.value:g}, at or below {_numbers(rule).clears_at:g} for {rule.keep_firing_s} s."
        if observed.value is None:
            why = "Data is missing, which the rule treats as below the threshold."
        return move(alert, AlertState.RESOLVED, at, why, unless=judged, resolved_at=at, below_since=None, **values) is not None  # fmt: skip
    return _flip(rule, alert, moment, judged, values) or _hold(alert, judged, values)


def _flip(rule: Rule, alert: Alert, moment: Moment, judged: Q, values: dict) -> bool:
    """Start or end the silencing of a firing alert."""
    if not _flips(rule, alert, moment.silences):
        return False
    if alert.state == AlertState.FIRING:
        state, why = _fired_state(rule, alert, moment)
    else:
        state, why = AlertState.FIRING, "The silence ended while the value was still over the threshold."
    return move(alert, state, moment.at, why, unless=judged, **values) is not None


def _hold(alert: Alert, judged: Q, values: dict) -> bool:
    """Record as an event that an alert is held, or no longer held."""
    if values["held_because"] == alert.held_because:
        Alert.objects.filter(pk=alert.pk, transitions=alert.transitions).exclude(judged).update(**values)
        return False
    why = values["held_because"] or "Evaluated again after having been held."
    return move(alert, alert.state, values["judged_at"], why, unless=judged, **values) is not None


def _fired_state(rule: Rule, alert: Alert, moment: Moment) -> tuple[str, str]:
    """Return the state of a fired alert: firing, or silenced and by whom."""
    by = silencing.silenced_by(moment.silences, alert, rule.name)
    if by is None:
        return AlertState.FIRING, ""
    return AlertState.SILENCED, f"Silenced by {by.author} until {dated(by.ends_at, moment.at)} UTC: {by.comment}"


def _why_above(alert: Alert) -> str:
    return f"At {small(alert.value)}, above {small(alert.threshold)}."


def _touch(same: Sequence[tuple[Alert, Stand]], moment: Moment) -> None:
    """Write the values of alerts whose state is unchanged, unless another process has written later ones."""
    moved = [(alert, stand) for alert, stand in same if _moved(alert, stand)]
    still = [alert.pk for alert, stand in same if not _moved(alert, stand)]
    judged = Q(judged_at__gte=moment.at, judged_at__lt=moment.at + _SET_BACK)
    for start in range(0, len(still), _AT_ONCE):
        moment.must_be_fresh()
        Alert.objects.filter(pk__in=still[start : start + _AT_ONCE]).exclude(judged).update(judged_at=moment.at)
    table, adapt = Alert._meta.db_table, connection.ops.adapt_datetimefield_value
    columns = "value = %s, peak = %s, below_since = %s, judged_at = %s"
    younger = "judged_at IS NOT NULL AND judged_at >= %s AND judged_at < %s"
    for start in range(0, len(moved), _AT_ONCE):
        rows = [
            (
                stand.value, max(stand.peak, alert.peak), adapt(_time(stand.below_since)), adapt(moment.at), alert.pk,
                alert.transitions, adapt(moment.at), adapt(moment.at + _SET_BACK),
            )
            for alert, stand in moved[start : start + _AT_ONCE]
        ]  # fmt: skip
        with transaction.atomic(), connection.cursor() as cursor:
            moment.must_be_fresh()
            cursor.executemany(
                f"UPDATE {table} SET {columns} WHERE id = %s AND transitions = %s AND NOT ({younger})", rows
            )


def _moved(alert: Alert, stand: Stand) -> bool:
    return stand.value != alert.value or _time(stand.below_since) != alert.below_since


# -- conversion between rows and the state machine -----------------------------------------------------------------


def _numbers(rule: Rule) -> alert_state.Numbers:
    return alert_state.Numbers(rule.threshold, rule.clear, rule.for_s, rule.keep_firing_s, rule.no_data)


def _stand(alert: Alert, at: datetime) -> Stand:
    judged = alert.judged_at
    if judged is not None and judged >= at + _SET_BACK:
        judged = None
    return Stand(
        phase=Phase.FIRING if alert.state in FIRED else Phase.PENDING,
        opened_at=alert.opened_at.timestamp(),
        below_since=alert.below_since.timestamp() if alert.below_since is not None else None,
        judged_at=judged.timestamp() if judged is not None else float("-inf"),
        value=alert.value,
        peak=alert.peak,
    )


def _columns(stand: Stand, at: datetime) -> dict[str, object]:
    return {
        "value": stand.value or 0.0,
        "peak": max(stand.peak, stand.value or 0.0),
        "below_since": _time(stand.below_since),
        "judged_at": at,
    }


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
