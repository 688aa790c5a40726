"""The step that controls replays: passes observations to the controller and writes its verdict to the replay's row.

It runs in every round of `settle`. All state is in the row, so any process can continue. Each write is one conditional
update: of two processes one wins, and a concurrent act by an operator wins over both.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Max

from jobs_admin.core import pacing, untrusted
from jobs_admin.core.figures import dated
from jobs_admin.core.pacing import Controller, Judged, Pace, Seen, Verdict
from jobs_admin.models import Replay, ReplayItem
from jobs_admin.models.access import CONTROLLER
from jobs_admin.models.replay import SENDING, ReplayState
from jobs_admin.replays import notices, observation, outcomes, rights, setting_aside
from jobs_admin.replays.observation import Staffing

log = logging.getLogger(__name__)

_CHECK_S = 0.2  # shortest time between checks …
_QUIET_CHECK_S = 1.0  # … if no outcome was reported
_MOST_PHASES = 200


class CannotJudge(Exception):
    """The outcomes of a replay could not be judged; it continues as before.

    The message names the replay and the reason.
    """


@dataclass(frozen=True, slots=True)
class _Memory:
    """Content of `Replay.controller`."""

    n: int = 0  # number of the last check; a writer must have read this one
    until: datetime | None = None  # the controller has counted first attempts up to this time
    core: dict[str, Any] | None = None
    left_out: dict[str, Any] | None = None
    phases: tuple[list[str], ...] = ()  # [when, state] of each phase entered, for the chart

    @staticmethod
    def load(replay: Replay) -> _Memory:
        """Parse the readable part of the column; values of an unexpected type count as unknown."""
        stored = replay.controller if isinstance(replay.controller, dict) else {}
        n, core, left_out, phases = (stored.get(name) for name in ("n", "core", "left_out", "phases"))
        return _Memory(
            n if isinstance(n, int) else 0,
            _parse_time(stored.get("until")),
            core if isinstance(core, dict) and untrusted.number(core.get("at")) is not None else None,
            left_out if _is_left_out(left_out) else None,
            tuple(one for one in phases if _is_phase(one)) if isinstance(phases, list) else (),
        )

    def controller(self, replay: Replay, pace: Pace, now: datetime) -> Controller:
        if self.core is not None:
            try:
                return Controller.from_dict(pace, self.core)
            except (KeyError, TypeError, ValueError):
                log.exception("replay #%s: what its controller knew cannot be read; it begins again", replay.pk)
        return Controller(pace, now.timestamp(), sent=observation.count_sent(replay))

    def next(self, controller: Controller, state: str = "", **changes: Any) -> dict[str, Any]:
        """Return the column after another check; `state`: a phase that the replay enters."""
        new = replace(self, n=self.n + 1, core=controller.as_dict(), **changes)
        until = new.until.isoformat() if new.until else None
        entered = [[datetime.fromtimestamp(controller.as_dict()["at"], UTC).isoformat(), state]] if state else []
        phases = [*new.phases, *entered][-_MOST_PHASES:]
        return {"n": new.n, "until": until, "core": new.core, "left_out": new.left_out, "phases": phases}


def _parse_time(value: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) and value else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


def _is_phase(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and _parse_time(value[0]) is not None and isinstance(value[1], str)
    )


def _is_left_out(value: object) -> bool:
    groups, to_n = (value.get("groups"), value.get("to_n")) if isinstance(value, dict) else (None, None)
    return isinstance(groups, list) and all(isinstance(one, int) for one in groups) and isinstance(to_n, int)


# -- writes of operators' acts ------------------------------------------------------------------------------------


def start_columns(replay: Replay, now: datetime) -> dict[str, Any]:
    """Return the columns of a replay that starts now; its row will have `total` and `pace`."""
    pace = pacing.settled(_pace(replay), jobs=replay.total)
    controller = Controller(pace, now.timestamp())
    verdict = controller.assess(Seen(now.timestamp(), sent=0, unsettled=0, planned=replay.total))
    begins = _sending_columns(pace, verdict, now)
    return begins | {"pace": pace.as_dict(), "controller": _Memory().next(controller, begins["state"])}


def resume_columns(replay: Replay, now: datetime) -> dict[str, Any]:
    """Return the columns of a replay that resumes: at its former rate, or at a low rate if it was held.

    If groups are to be excluded, nothing is sent until they are.
    """
    pace, memory = _pace(replay), _Memory.load(replay)
    controller = memory.controller(replay, pace, now)
    verdict = controller.assess(_build_observation(replay, now))
    excluded = _aside_columns(replay, verdict, now)
    if verdict.state == ReplayState.HELD:
        controller.resumed(_resume_time(replay, now))
        verdict = controller.assess(_build_observation(replay, now))
    if excluded.get("without_groups", replay.without_groups):
        verdict = replace(verdict, may_send=observation.count_sent(replay))
    begins = _sending_columns(pace, verdict, now)
    return begins | excluded | {"controller": memory.next(controller, begins["state"])}


def _resume_time(replay: Replay, now: datetime) -> float:
    """Return the time, by the sender's clock, from which jobs count after a resume.

    The clock of the resuming process may be ahead of the sender's; by that clock no job would count.
    """
    last = ReplayItem.objects.filter(replay=replay, sent_at__isnull=False).aggregate(last=Max("sent_at"))["last"]
    return min(now, last + timedelta(milliseconds=1)).timestamp() if last is not None else now.timestamp()


def new_pace_columns(replay: Replay, pace: Pace, now: datetime) -> dict[str, Any]:
    """Return the columns of a replay that continues at another pace, in any state."""
    memory = _Memory.load(replay)
    controller = memory.controller(replay, pace, now)
    verdict = controller.assess(_build_observation(replay, now))
    moves = replay.state in SENDING and verdict.state in SENDING and verdict.state != replay.state
    columns = {
        "pace": pace.as_dict(),
        "rate": verdict.rate,
        "may_send": verdict.may_send,
        "controller": memory.next(controller, verdict.state if moves else ""),
    } | _aside_columns(replay, verdict, now)
    return columns | ({"state": verdict.state, "state_since": now} if moves else {})


def bring_back_columns(replay: Replay, groups: Collection[int]) -> dict[str, Any]:
    """Return the column of a replay to which these groups are brought back: the next check plans their jobs again.

    The result of a concurrent check is discarded; this column lists the jobs that it cancelled.
    """
    memory = _Memory.load(replay)
    done = {*(memory.left_out["groups"] if memory.left_out else ()), *groups}
    known = replay.controller if isinstance(replay.controller, dict) else {}
    return {"controller": known | {"n": memory.n + 1, "left_out": {"groups": sorted(done), "to_n": 0}}}


def _sending_columns(pace: Pace, verdict: Verdict, now: datetime) -> dict[str, Any]:
    state = _state(pace, verdict, now)
    return {
        "state": state,
        "state_since": now,
        "rate": verdict.rate,
        "may_send": verdict.may_send,
        "held_because": _waiting_reason(pace, now) if state == ReplayState.WAITING else "",
        "evidence": None,
    }


def learned_limit(replay: Replay) -> tuple[float, float] | None:
    """Return (highest rate that the controller allows, rate at which jobs failed), in jobs/s; None: no limit.

    An operator's new pace removes the limit.
    """
    core = _Memory.load(replay).core or {}
    limit, failed_at = untrusted.number(core.get("cap")), untrusted.number(core.get("bad"))
    return None if limit is None or failed_at is None else (limit, failed_at)


def phases(replay: Replay) -> tuple[list[str], ...]:
    """Return [when, state] of each phase that the replay entered, oldest first."""
    return _Memory.load(replay).phases


# -- the step -----------------------------------------------------------------------------------------------------


def control(now: datetime) -> bool:
    """Check every active replay. Return True if an attempt that counts for a verdict was reported.

    If one replay cannot be judged, the others are checked first; then CannotJudge is raised.
    """
    under_way = Replay.objects.filter(state__in=(*SENDING, ReplayState.WAITING)).defer(
        "selection", "blocked", "query", "set_aside"
    )
    is_busy = False
    failed: CannotJudge | None = None
    for replay in under_way.order_by("pk"):
        try:
            is_busy |= _control_replay(replay, now)
        except (OperationalError, InterfaceError):
            raise  # a database failure, not a fault of this replay
        except Exception as error:
            cannot = CannotJudge(f"replay #{replay.pk} cannot be judged: {type(error).__name__}: {error}")
            cannot.__cause__ = error
            failed = failed or cannot
    if failed is not None:
        raise failed
    return is_busy


def _control_replay(replay: Replay, now: datetime) -> bool:
    pace, memory = _pace(replay), _Memory.load(replay)
    # A check written by a process whose clock is ahead counts as that long ago.
    passed_s = abs(now.timestamp() - (memory.core or {}).get("at", float("-inf")))
    turns = (replay.state == ReplayState.WAITING) == _is_open(pace, now)  # its time window opens or closes
    if not turns and (passed_s < _CHECK_S or not _is_steered(replay, pace, memory)):
        return False
    judged, until = observation.read_first_attempts(replay, memory.until)
    if not turns and not judged and passed_s < _QUIET_CHECK_S:
        return False
    left_out = setting_aside.apply(replay, memory.left_out, now)
    staffing = observation.read_staffing(observation.read_queues(replay), now)
    controller = memory.controller(replay, pace, now)
    verdict = controller.assess(
        replace(_build_observation(replay, now, judged, staffing), are_reported=_are_reported(replay))
    )
    change = _state_columns(replay, pace, verdict, now)
    column = memory.next(controller, change.get("state", ""), until=until, left_out=left_out)
    columns = change | {"rate": verdict.rate, "may_send": verdict.may_send}
    if verdict.because:
        since = datetime.fromtimestamp(column["core"]["since"], UTC)
        why, details = observation.build_evidence(replay, verdict.because, staffing.deserted, since, now)
        columns |= {"evidence": details} | ({"held_because": why} if verdict.because.holds else {})
    columns |= _aside_columns(replay, verdict, now)
    return _write(replay, memory, columns | {"controller": column}, now) and bool(judged)


def _aside_columns(replay: Replay, verdict: Verdict, now: datetime) -> dict[str, Any]:
    """Return the columns for groups that the controller sets aside or brings back; empty if there are none.

    A group excluded by an operator stays excluded.
    """
    notes = [setting_aside.build_failing_note(why, CONTROLLER.name, now) for why in verdict.set_aside]
    excluded = {row["group"] for row in replay.set_aside if row["by"] != CONTROLLER.name}
    back = set(verdict.bring_back) - excluded
    return setting_aside.build_columns(replay, notes, back) if notes or back else {}


def _state_columns(replay: Replay, pace: Pace, verdict: Verdict, now: datetime) -> dict[str, Any]:
    """Return the columns that change with the state; empty if it stays the same."""
    state = _state(pace, verdict, now)
    if state == replay.state:
        return {}
    columns = {"state": state, "state_since": now}
    if state == ReplayState.WAITING:
        columns["held_because"] = _waiting_reason(pace, now)
    elif replay.state == ReplayState.WAITING:
        columns["held_because"] = ""
    return columns


def _write(replay: Replay, memory: _Memory, columns: dict[str, Any], now: datetime) -> bool:
    """Write the columns. Return False, and change nothing, if another process has written since the row was read."""
    holds = columns.get("state") == ReplayState.HELD
    sources = rights.sources_of(replay) if holds or "without_groups" in columns else []
    read = Replay.objects.filter(pk=replay.pk, state=replay.state, pace=replay.pace)
    read = read.filter(controller__n=memory.n) if memory.n else read.filter(controller=replay.controller)
    if "without_groups" in columns:  # an operator may have brought a group back meanwhile
        read = read.filter(without_groups=replay.without_groups)
    with transaction.atomic():
        if not read.update(**columns):
            return False
        if holds:
            before, after = {"state": replay.state}, {"state": ReplayState.HELD, "sent": observation.count_sent(replay)}
            reason = columns["held_because"]
            rights.record(CONTROLLER, "replay.hold", replay, sources, reason=reason, before=before, after=after)
            notices.notify_hold(replay, sources, reason, memory.n + 1)
        record_aside(replay, sources, columns)
    return True


def record_aside(replay: Replay, sources: Sequence[str], columns: dict[str, Any]) -> None:
    """Audit the groups that the controller sets aside or brings back; `replay` as before."""
    excluded = columns.get("without_groups", replay.without_groups)
    if excluded == replay.without_groups:
        return
    added = [row["reason"] for row in columns["set_aside"] if row["group"] not in replay.without_groups]
    before, after = {"without_groups": replay.without_groups}, {"without_groups": excluded}
    reason = " ".join(added)[:500]
    rights.record(CONTROLLER, "replay.set_aside", replay, sources, reason=reason, before=before, after=after)


# -- reads of a row -----------------------------------------------------------------------------------------------


def _pace(replay: Replay) -> Pace:
    return pacing.parse(replay.pace, replay.total)


def _is_steered(replay: Replay, pace: Pace, memory: _Memory) -> bool:
    """Return whether a check could change the replay: it is judged, or groups are being excluded or brought back."""
    is_judged = pace.stop or pace.canary or pace.ramp or pace.in_flight
    return bool(is_judged or replay.without_groups or memory.left_out or replay.may_send is not None)


def _build_observation(
    replay: Replay, now: datetime, judged: Sequence[Judged] = (), staffing: Staffing = observation.UNKNOWN
) -> Seen:
    return Seen(
        now.timestamp(),
        sent=observation.count_sent(replay),
        unsettled=replay.sent + replay.running,
        planned=replay.planned,
        judged=judged,
        workers=staffing.workers,
        waiting=staffing.waiting,
        set_aside=replay.without_groups,
        has_others=partial(setting_aside.has_others, replay),
        are_reported=False,  # an operator's act does not limit the rate: the next step does
    )


def _are_reported(replay: Replay) -> bool:
    return all(outcomes.are_reported(source) for source, _ in observation.read_queues(replay))


def _state(pace: Pace, verdict: Verdict, now: datetime) -> str:
    if verdict.state == ReplayState.HELD or _is_open(pace, now):
        return ReplayState(verdict.state)
    return ReplayState.WAITING


def _is_open(pace: Pace, now: datetime) -> bool:
    return pace.window is None or pace.window.is_open(now)


def _waiting_reason(pace: Pace, now: datetime) -> str:
    assert pace.window is not None
    return f"Outside its time window: continues automatically on {dated(pace.window.opens_at(now), now)} UTC."
