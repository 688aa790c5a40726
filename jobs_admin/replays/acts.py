"""What people do with a replay that was started. Each act checks the right, changes rows by one conditional statement,
and is audited."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from jobs_admin.core import pacing
from jobs_admin.core.pacing import Pace
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.models import Failure, Replay
from jobs_admin.models.access import Viewer
from jobs_admin.models.replay import AT_REST, ENDED, RUN, SENDING, ReplayState
from jobs_admin.replays import controlling, laying, outcomes, rights, scoping, setting_aside, stopping
from jobs_admin.replays.options import group_ids, with_taken_in
from jobs_admin.replays.previewing import read_pace
from jobs_admin.replays.rights import wrong_state

_NOT_BEGUN = (ReplayState.DRAFT, ReplayState.AWAITING_APPROVAL)
_BROUGHT_BACK_AT_ONCE = 500  # jobs
_EXCLUDING_S = 4.0  # that who excludes jobs by a search waits for; the same act goes on with more
_CANCELLED_AT_ONCE = 50_000  # laid out items that who cancels waits for; `settle` goes on with more


def pause(viewer: Viewer, replay: Replay, reason: str = "") -> Replay:
    """Send no more until it is resumed. What was sent runs on."""
    sources = rights.must_act(viewer, replay, "replay.pause")
    with transaction.atomic():
        stands = _as_it_stands(replay)
        if stands.state not in (*SENDING, ReplayState.WAITING):
            raise wrong_state(replay, "paused")
        paused = {"state": ReplayState.PAUSED, "state_since": timezone.now(), "held_because": ""}
        Replay.objects.filter(pk=replay.pk).update(**paused)
        before, after = {"state": stands.state}, {"state": ReplayState.PAUSED}
        rights.record(viewer, "replay.pause", replay, sources, reason=reason, before=before, after=after)
    replay.refresh_from_db()
    return replay


def resume(
    viewer: Viewer, replay: Replay, reason: str = "", without_groups: Sequence[str] = (), without: str = ""
) -> Replay:
    """Resume. Jobs of the groups `without_groups` (fingerprints; can be brought back) and jobs that match the search
    `without` are no longer sent, and are free."""
    sources = rights.must_act(viewer, replay, "replay.resume")
    left_out, now = sorted(with_taken_in(group_ids(without_groups))), timezone.now()
    matching = scoping.matching(viewer, without, now, "without") if without.strip() else None
    skipped = _exclude(viewer, replay, matching, without.strip(), sources, now) if matching is not None else 0
    with transaction.atomic():
        stands = _as_it_stands(replay)
        if stands.state not in AT_REST:
            raise _excluded_only(replay, skipped) if skipped else wrong_state(replay, "resumed")
        before = {"state": stands.state}
        notes = [
            setting_aside.note(pk, RUN, "asked", f"excluded by {viewer.name}", viewer.name, now) for pk in left_out
        ]
        aside = setting_aside.columns(stands, notes)
        if left_out and sum(row["phase"] == RUN for row in aside["set_aside"]) > setting_aside.MOST_ASIDE:
            raise _too_many_groups(skipped)
        stands.without_groups, stands.set_aside = aside["without_groups"], aside["set_aside"]
        columns = aside | controlling.resumed(stands, now)
        Replay.objects.filter(pk=replay.pk).update(**columns)
        after = {"state": columns["state"], "without_groups": aside["without_groups"]}
        after |= {"without": without.strip(), "left_out": skipped} if matching is not None else {}
        rights.record(viewer, "replay.resume", replay, sources, reason=reason, before=before, after=after)
        controlling.record_aside(stands, sources, columns)
    replay.refresh_from_db()
    return replay


def _exclude(
    viewer: Viewer, replay: Replay, matching: QuerySet[Failure], without: str, sources: Sequence[str], now: datetime
) -> int:
    """Cancel the planned jobs among `matching`. Return their number. Raises Refused where there are none, where some
    are being sent, or where time was up before the last.

    A part at a time, each with its audit row: meanwhile the replay is held or paused, and sends nothing.
    """
    if not Replay.objects.filter(pk=replay.pk, state__in=AT_REST).exists():
        raise wrong_state(replay, "resumed")
    if setting_aside.is_any_claimed(replay, matching):
        raise Refused(
            "changed", "Some of these jobs are being sent right now. Nothing was changed. Try again in a second."
        )
    why = representable(setting_aside.excluded(viewer.name, without))

    def note(count: int) -> None:
        rights.record(viewer, "replay.exclude", replay, sources, after={"without": without, "left_out": count})

    count, is_all = setting_aside.leave_out(replay, matching, why, now, note, _EXCLUDING_S)
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
        "wrong_state", f"{count:,} jobs are excluded. Meanwhile the replay became {state}, so it was not resumed again."
    )


def _too_many_groups(skipped: int) -> Refused:
    done = f"{skipped:,} jobs that match the search are excluded; no group was." if skipped else "Nothing was changed."
    return Refused(
        "bad_scope",
        f"A replay sets at most {setting_aside.MOST_ASIDE} groups aside. {done} Exclude more by a search.",
        field="without_groups",
    )


def bring_back(viewer: Viewer, replay: Replay, groups: Sequence[str], reason: str = "") -> Replay:
    """Send the jobs of these groups (fingerprints), which were set aside during the replay."""
    sources = rights.must_act(viewer, replay, "replay.bring_back")
    ids = set(group_ids(groups, "groups"))
    with transaction.atomic():
        stands = _as_it_stands(replay)
        if stands.state not in laying.BEGUN:
            raise Refused(
                "wrong_state",
                f"{wrong_state(replay, 'changed').message} These jobs are dead and free: start a new replay for them.",
            )
        known = {row["group"] for row in stands.set_aside if row["phase"] == RUN} & set(stands.without_groups)
        if not ids or ids - known:
            raise Refused(
                "bad_scope",
                "Only groups set aside during the replay can be brought back. Nothing was changed. Jobs excluded at the "
                "start are dead and free: start a new replay for them.",
                field="groups",
            )
        ids = with_taken_in(ids)
        columns = setting_aside.columns(stands, remove=ids) | controlling.brought_back(stands, ids)
        Replay.objects.filter(pk=replay.pk).update(**columns)
        before, after = {"without_groups": stands.without_groups}, {"without_groups": columns["without_groups"]}
        rights.record(viewer, "replay.bring_back", replay, sources, reason=reason, before=before, after=after)
        # Some at once, so that the replay does not end first; `control` plans the others.
        setting_aside.plan_again(replay, ids, most=_BROUGHT_BACK_AT_ONCE)
    replay.refresh_from_db()
    return replay


def discard(viewer: Viewer, replay: Replay, reason: str = "") -> None:
    """Discard a draft, which holds no jobs. The audit records its scope and pace."""
    sources = rights.must_act(viewer, replay, "replay.discard")
    with transaction.atomic():
        drafts = Replay.objects.filter(pk=replay.pk, state=ReplayState.DRAFT)
        told = {"query": replay.query, "selected": len(replay.selection), "pace": replay.pace, "reason": replay.reason}
        if not drafts.delete()[0]:
            raise wrong_state(replay, "discarded")
        rights.record(viewer, "replay.discard", replay, sources, reason=reason, before=told)


def _as_it_stands(replay: Replay) -> Replay:
    """Return the replay as stored now, locked until the transaction ends."""
    return Replay.objects.select_for_update(of=("self",), no_key=True).get(pk=replay.pk)


def cancel(viewer: Viewer, replay: Replay, reason: str = "") -> Replay:
    """Send no more, for good. What was sent runs on and is still told; the rest is free for another replay.

    The state turns first, in a moment; the items follow in small transactions. Should we die meanwhile, `settle` goes on.
    """
    sources = rights.must_act(viewer, replay, "replay.cancel")
    now = timezone.now()
    with transaction.atomic():
        stopped = Replay.objects.filter(pk=replay.pk).exclude(state__in=ENDED)
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
    """Another pace, also while it runs; `over` is for what is not sent yet. A limit that it does not name goes."""
    if not pace:
        raise Refused("bad_pace", "Say which pace it gets. Nothing was changed.", field="pace")
    read = read_pace(pace, replay.total or replay.matched)
    sources = rights.must_act(viewer, replay, "replay.pace")
    outcomes.refuse_blind(read, sources)
    with transaction.atomic():
        stands = _as_it_stands(replay)
        if stands.state in ENDED:
            raise wrong_state(replay, "given another pace")
        _refuse_what_stands(stands, read)
        columns: dict[str, Any] = {"pace": read.as_dict(), "rate": read.rate}
        if stands.state not in _NOT_BEGUN:
            columns = controlling.repaced(stands, pacing.settled(read, jobs=stands.planned), timezone.now())
        Replay.objects.filter(pk=replay.pk).update(**columns)
        rights.record(
            viewer,
            "replay.pace",
            replay,
            sources,
            reason=reason,
            before={"pace": stands.pace},
            after={"pace": columns["pace"]},
        )
        controlling.record_aside(stands, sources, columns)
    replay.refresh_from_db()
    return replay


def _refuse_what_stands(stands: Replay, pace: Pace) -> None:
    """Raises Refused for what was decided when its jobs were frozen (their order) or laid out (their keys)."""
    key = pace.per_key.key if pace.per_key else ""
    fixed = ""
    if stands.state != ReplayState.DRAFT and pace.shuffle and not stands.pace.get("shuffle"):
        fixed, what = "pace.shuffle", "The order of its jobs was"
    elif stands.state not in _NOT_BEGUN and key and key != (stands.pace.get("per_key") or {}).get("key"):
        fixed, what = "pace.per_key.key", "What its jobs are counted by was"
    if fixed:
        raise Refused(
            "bad_pace",
            f"{what} settled when it started. Nothing was changed. Cancel the rest and replay that anew with this pace.",
            field=fixed,
        )
