"""Operators' acts on a started replay.

Each checks the right, changes rows in one conditional statement, and is audited.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Case, F, OuterRef, QuerySet, Subquery, Value, When
from django.utils import timezone

from jobs_admin.core import pacing
from jobs_admin.core.pacing import Pace
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.db import turns
from jobs_admin.models import Failure, Replay, ReplayItem
from jobs_admin.models.access import Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import AT_REST, ENDED, RUN, SENDING, ItemState, ReplayState
from jobs_admin.replays import controlling, freezing, outcomes, rights, setting_aside, stopping, target
from jobs_admin.replays.options import group_ids, with_merging_groups
from jobs_admin.replays.previewing import parse_pace
from jobs_admin.replays.rights import wrong_state
from jobs_admin.sources.base import SourceError

_RESOLVED_AT_ONCE = 500  # jobs per write transaction: SQLite allows no other writer meanwhile
_RESOLVING_S = 4.0  # longest time that an operator waits; repeating the act continues with the rest
_BECOMES = {
    "ran": (ItemState.SUCCEEDED, FailureState.RECOVERED),
    "lost": (ItemState.FAILED_AGAIN, FailureState.DEAD),
}
_UNKNOWN_OUTCOME = (FailureState.REPLAYING, FailureState.GONE)  # states of a failure whose run has an unknown outcome


def resolve_item(viewer: Viewer, replay: Replay, n: int, as_: str, now: datetime | None = None) -> ReplayItem:
    """Settle item `n`, whose outcome is unknown: it `ran`, or it was `lost` and is dead again.

    The item is uncertain, or was sent to a source that does not report how a job ends.
    """
    _refuse_unknown_outcome(as_)
    rights.must_act(viewer, replay, "replay.resolve")
    now = now or timezone.now()
    item = ReplayItem.objects.filter(replay=replay, n=n).select_related("failure").first()
    if item is None:
        raise Refused("bad_scope", f"Replay #{replay.pk} has no item {n}.", field="n")
    unknown = [ItemState.UNCERTAIN]
    if not outcomes.are_reported(item.failure.source):
        unknown.append(ItemState.SENT)
    with transaction.atomic():
        turns.lock_writers()
        was = item.state
        if was not in unknown or not _resolve_items(viewer, replay, [item.pk], was, as_, now):
            raise Refused(
                "wrong_state",
                "This item is not uncertain: only items with an unknown outcome can be settled by hand. "
                "Nothing was changed.",
            )
        rights.record(
            viewer,
            "replay.resolve",
            replay,
            [item.failure.source],
            before={"item": n, "state": was},
            after={"item": n, "state": _BECOMES[as_][0], "failure": item.failure_id},
        )
    item.refresh_from_db()
    return item


def resolve_all(viewer: Viewer, replay: Replay, as_: str, query: str = "", now: datetime | None = None) -> int:
    """Settle all uncertain jobs, or those that match the search `query`, as `ran` or `lost`. Return their number.

    Each transaction settles some hundred items and writes its audit row. Raises Refused if there are none, or if time
    ran out before the last one: repeating the act continues.
    """
    _refuse_unknown_outcome(as_)
    sources = rights.must_act(viewer, replay, "replay.resolve")
    now = now or timezone.now()
    ids = list(find_uncertain(viewer, replay, query, now).order_by("n").values_list("pk", flat=True))
    ends, count = time.monotonic() + _RESOLVING_S, 0
    for start in range(0, len(ids), _RESOLVED_AT_ONCE):
        began = time.monotonic()
        with transaction.atomic():
            turns.lock_writers()
            some = _resolve_items(viewer, replay, ids[start : start + _RESOLVED_AT_ONCE], ItemState.UNCERTAIN, as_, now)
            if some:
                after = {"state": _BECOMES[as_][0], "count": some} | ({"query": query} if query else {})
                before = {"state": ItemState.UNCERTAIN}
                rights.record(viewer, "replay.resolve", replay, sources, before=before, after=after)
        count += some
        if (rest := len(ids) - start - _RESOLVED_AT_ONCE) > 0 and time.monotonic() > ends:
            raise Refused("changed", f"{count:,} jobs settled, {rest:,} remaining. Repeat for the rest.")
        turns.rest(began)
    if not count:
        which = " matches the search" if query else ""
        raise Refused("wrong_state", f"No uncertain job of this replay{which}. Nothing was changed.", "q")
    return count


def find_uncertain(
    viewer: Viewer, replay: Replay, query: str = "", now: datetime | None = None
) -> QuerySet[ReplayItem]:
    """Return the uncertain items of a replay whose jobs match the search.

    Raises Refused for a search unfit for acts.
    """
    items = ReplayItem.objects.filter(replay=replay, state=ItemState.UNCERTAIN)
    if not query.strip():
        return items
    return items.filter(failure__in=target.find_matching(viewer, query, now or timezone.now(), "q"))


def _refuse_unknown_outcome(as_: str) -> None:
    if as_ not in _BECOMES:
        raise Refused("bad_scope", "Settle it as ran or as lost.", field="as")


def _resolve_items(viewer: Viewer, replay: Replay, ids: Sequence[int], was: str, as_: str, now: datetime) -> int:
    """Settle those of these items that are still in state `was`. Return their number."""
    settled, dead_or_not = _BECOMES[as_]
    mine = ReplayItem.objects.select_for_update().filter(pk__in=ids, state=was)
    moved = dict(mine.order_by("pk").values_list("pk", "failure"))
    if not moved:
        return 0
    outcome = representable(f"{as_}, says {viewer.name}")[:255]
    ReplayItem.objects.filter(pk__in=moved).update(state=settled, settled_at=now, outcome=outcome)
    run = ReplayItem.objects.filter(replay=replay, failure=OuterRef("pk")).values("run")[:1]
    on_their_way = Failure.objects.filter(pk__in=moved.values(), run=Subquery(run), state__in=_UNKNOWN_OUTCOME)
    why = Case(When(state=FailureState.GONE, then=Value("")), default=F("reason"))  # keep the reason why it was gone
    on_their_way.update(state=dead_or_not, reason=why)
    Replay.objects.filter(pk=replay.pk).update(**{was: F(was) - len(moved), settled: F(settled) + len(moved)})
    return len(moved)


_NOT_BEGUN = (ReplayState.DRAFT, ReplayState.AWAITING_APPROVAL)
_BROUGHT_BACK_AT_ONCE = 500  # jobs
_EXCLUDING_S = 4.0  # longest time that an operator waits for a search to be excluded; repeating the act continues
_CANCELLED_AT_ONCE = 50_000  # created items that a cancel processes at once; `settle` continues with the rest


def pause(viewer: Viewer, replay: Replay, reason: str = "") -> Replay:
    """Stop sending until the replay is resumed. Sent jobs continue."""
    sources = rights.must_act(viewer, replay, "replay.pause")
    with transaction.atomic():
        current = _lock_replay(replay)
        if current.state not in (*SENDING, ReplayState.WAITING):
            raise wrong_state(replay, "paused")
        paused = {"state": ReplayState.PAUSED, "state_since": timezone.now(), "held_because": ""}
        Replay.objects.filter(pk=replay.pk).update(**paused)
        before, after = {"state": current.state}, {"state": ReplayState.PAUSED}
        rights.record(viewer, "replay.pause", replay, sources, reason=reason, before=before, after=after)
    replay.refresh_from_db()
    return replay


def resume(
    viewer: Viewer, replay: Replay, reason: str = "", without_groups: Sequence[str] = (), without: str = ""
) -> Replay:
    """Resume a held or paused replay, without some of its jobs.

    Jobs of the groups `without_groups` (fingerprints) and jobs that match the search `without` are no longer sent;
    other replays can have them. Excluded groups can be brought back.
    """
    sources = rights.must_act(viewer, replay, "replay.resume")
    left_out, now = sorted(with_merging_groups(group_ids(without_groups))), timezone.now()
    matching = target.find_matching(viewer, without, now, "without") if without.strip() else None
    skipped = _exclude(viewer, replay, matching, without.strip(), sources, now) if matching is not None else 0
    with transaction.atomic():
        current = _lock_replay(replay)
        if current.state not in AT_REST:
            raise _excluded_only(replay, skipped) if skipped else wrong_state(replay, "resumed")
        before = {"state": current.state}
        notes = [
            setting_aside.build_note(pk, RUN, "asked", f"excluded by {viewer.name}", viewer.name, now)
            for pk in left_out
        ]
        aside = setting_aside.build_columns(current, notes)
        if left_out and sum(row["phase"] == RUN for row in aside["set_aside"]) > setting_aside.MOST_ASIDE:
            raise _too_many_groups(skipped)
        current.without_groups, current.set_aside = aside["without_groups"], aside["set_aside"]
        columns = aside | controlling.resume_columns(current, now)
        Replay.objects.filter(pk=replay.pk).update(**columns)
        after = {"state": columns["state"], "without_groups": aside["without_groups"]}
        after |= {"without": without.strip(), "left_out": skipped} if matching is not None else {}
        rights.record(viewer, "replay.resume", replay, sources, reason=reason, before=before, after=after)
        controlling.record_aside(current, sources, columns)
    replay.refresh_from_db()
    return replay


def _exclude(
    viewer: Viewer, replay: Replay, matching: QuerySet[Failure], without: str, sources: Sequence[str], now: datetime
) -> int:
    """Cancel the planned jobs among `matching`. Return their number.

    Jobs are cancelled in batches, each with its audit row. The replay is held or paused meanwhile and sends nothing.
    Raises Refused if there are none, if some are being sent, or if time ran out before the last one.
    """
    if not Replay.objects.filter(pk=replay.pk, state__in=AT_REST).exists():
        raise wrong_state(replay, "resumed")
    if setting_aside.is_any_claimed(replay, matching):
        raise Refused(
            "changed", "Some of these jobs are being sent right now. Nothing was changed. Try again in a second."
        )
    why = representable(setting_aside.exclusion_outcome(viewer.name, without))

    def note(count: int) -> None:
        rights.record(viewer, "replay.exclude", replay, sources, after={"without": without, "left_out": count})

    try:
        count, is_all = setting_aside.exclude_jobs(replay, matching, why, now, note, _EXCLUDING_S)
    except SourceError as error:
        raise Refused(
            "changed",
            f"A sender stopped while it was sending some of these jobs, and their source does not answer: {error} "
            "Nothing was changed. Try again when it answers.",
        ) from error
    if not is_all:
        raise Refused(
            "changed",
            f"{count:,} jobs are excluded, and more match. The replay was not resumed and sends nothing. "
            "Resume it again with the same search to exclude the rest.",
        )
    if not count:
        raise Refused(
            "nothing_to_replay",
            "No unsent job of this replay matches the search. Nothing was changed.",
            field="without",
        )
    return count


def _excluded_only(replay: Replay, count: int) -> Refused:
    state = Replay.objects.values_list("state", flat=True).get(pk=replay.pk)
    return Refused(
        "wrong_state", f"{count:,} jobs are excluded. The replay is now {state}, so it was not resumed again."
    )


def _too_many_groups(skipped: int) -> Refused:
    done = f"{skipped:,} jobs that match the search are excluded; no group was." if skipped else "Nothing was changed."
    return Refused(
        "bad_scope",
        f"A replay sets at most {setting_aside.MOST_ASIDE} groups aside. {done} Exclude more by a search.",
        field="without_groups",
    )


def bring_back(viewer: Viewer, replay: Replay, groups: Sequence[str], reason: str = "") -> Replay:
    """Send the jobs of these groups (fingerprints) that were set aside during the replay."""
    sources = rights.must_act(viewer, replay, "replay.bring_back")
    ids = set(group_ids(groups, "groups"))
    with transaction.atomic():
        current = _lock_replay(replay)
        if current.state not in freezing.BEGUN:
            raise Refused(
                "wrong_state",
                f"{wrong_state(replay, 'changed').message} These jobs are dead and free: start a new replay for them.",
            )
        known = {row["group"] for row in current.set_aside if row["phase"] == RUN} & set(current.without_groups)
        if not ids or ids - known:
            raise Refused(
                "bad_scope",
                "Only groups set aside during the replay can be brought back. Nothing was changed. Jobs excluded at the "
                "start are dead and free: start a new replay for them.",
                field="groups",
            )
        ids = with_merging_groups(ids)
        columns = setting_aside.build_columns(current, remove=ids) | controlling.bring_back_columns(current, ids)
        Replay.objects.filter(pk=replay.pk).update(**columns)
        before, after = {"without_groups": current.without_groups}, {"without_groups": columns["without_groups"]}
        rights.record(viewer, "replay.bring_back", replay, sources, reason=reason, before=before, after=after)
        # Plan some immediately, so that the replay does not end first. `control` plans the rest.
        setting_aside.plan_again(replay, ids, most=_BROUGHT_BACK_AT_ONCE)
    replay.refresh_from_db()
    return replay


def discard(viewer: Viewer, replay: Replay, reason: str = "") -> None:
    """Discard a draft. No jobs belong to a draft; the audit records its scope and pace."""
    sources = rights.must_act(viewer, replay, "replay.discard")
    with transaction.atomic():
        drafts = Replay.objects.filter(pk=replay.pk, state=ReplayState.DRAFT)
        audited = {
            "query": replay.query,
            "selected": len(replay.selection),
            "pace": replay.pace,
            "reason": replay.reason,
        }
        if not drafts.delete()[0]:
            raise wrong_state(replay, "discarded")
        rights.record(viewer, "replay.discard", replay, sources, reason=reason, before=audited)


def _lock_replay(replay: Replay) -> Replay:
    """Return the replay as stored now, locked until the transaction ends."""
    return Replay.objects.select_for_update(of=("self",), no_key=True).get(pk=replay.pk)


def cancel(viewer: Viewer, replay: Replay, reason: str = "", *, only_unapproved: bool = False) -> Replay:
    """Stop sending permanently. `only_unapproved`: only while it awaits approval.

    Sent jobs continue and their outcomes are recorded; unsent jobs are free for another replay.

    The state changes first; the items follow in small transactions. If this process dies meanwhile, `settle` continues.
    """
    sources = rights.must_act(viewer, replay, "replay.cancel")
    now = timezone.now()
    with transaction.atomic():
        stopped = Replay.objects.filter(pk=replay.pk).exclude(state__in=ENDED)
        if only_unapproved:
            stopped = stopped.filter(state=ReplayState.AWAITING_APPROVAL)
        if not stopped.update(state=ReplayState.CANCELLED, state_since=now, ended_at=now, held_because=""):
            raise wrong_state(replay, "cancelled")
        planned = Replay.objects.values_list("planned", flat=True).get(pk=replay.pk)
        rights.record(
            viewer,
            "replay.cancel",
            replay,
            sources,
            reason=reason,
            before={"state": replay.state, "planned": planned},
            after={"state": ReplayState.CANCELLED},
        )
    stopping.drop_planned(replay, now, most=_CANCELLED_AT_ONCE)
    replay.refresh_from_db()
    return replay


def change_pace(viewer: Viewer, replay: Replay, pace: object, reason: str = "") -> Replay:
    """Change the pace of a replay, which may be running.

    The new pace applies to unsent jobs; limits it omits are dropped.
    """
    if not pace:
        raise Refused("bad_pace", "No pace was given. Nothing was changed.", field="pace")
    read = parse_pace(pace, replay.total or replay.matched)
    sources = rights.must_act(viewer, replay, "replay.pace")
    outcomes.refuse_blind_pace(read, sources)
    with transaction.atomic():
        current = _lock_replay(replay)
        if current.state in ENDED:
            raise wrong_state(replay, "given a new pace")
        _refuse_fixed_settings(current, read)
        columns: dict[str, Any] = {"pace": read.as_dict(), "rate": read.rate}
        if current.state not in _NOT_BEGUN:
            columns = controlling.new_pace_columns(current, pacing.settled(read, jobs=current.planned), timezone.now())
        Replay.objects.filter(pk=replay.pk).update(**columns)
        rights.record(
            viewer,
            "replay.pace",
            replay,
            sources,
            reason=reason,
            before={"pace": current.pace},
            after={"pace": columns["pace"]},
        )
        controlling.record_aside(current, sources, columns)
    replay.refresh_from_db()
    return replay


def _refuse_fixed_settings(current: Replay, pace: Pace) -> None:
    """Raise Refused for settings that were fixed when the jobs were frozen (order) or the items created (keys)."""
    key = pace.per_key.key if pace.per_key else ""
    fixed = ""
    if current.state != ReplayState.DRAFT and pace.shuffle and not current.pace.get("shuffle"):
        fixed, what = "pace.shuffle", "The order of its jobs was"
    elif current.state not in _NOT_BEGUN and key and key != (current.pace.get("per_key") or {}).get("key"):
        fixed, what = "pace.per_key.key", "The key of its per-key limit was"
    if fixed:
        raise Refused(
            "bad_pace",
            f"{what} fixed when the replay started. Nothing was changed. Cancel the rest and replay it again with this pace.",
            field=fixed,
        )
