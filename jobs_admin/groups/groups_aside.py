"""Groups that replays in progress exclude, followed as groups are merged, split and renamed.

A replay names a group by its id, and a job is of the group that its failure is in. So whoever moves failures from one group
to another says so here, in the same transaction: no job of a group set aside is sent because its group has another id now.
"""

from __future__ import annotations

from typing import Any

from jobs_admin.models import Replay
from jobs_admin.models.access import CONTROLLER
from jobs_admin.models.replay import ENDED, RUN, START, ReplayState


def follow(old: int, new: int) -> None:
    """Let the group `new` take the place of the group `old`, of which it takes failures.

    A replay that set `old` aside sets `new` aside, too, for the same reason; it is brought back as any other. A replay
    that set `new` aside cancels the jobs that come into it. Of a group excluded in the draft a started replay has no job:
    nothing follows from it.
    """
    for replay in _excluding(old, new):
        aside = _in_effect(replay)
        takes_over = old in aside and (new not in aside or _is_stronger(aside[old], aside[new]))
        ids = {*replay.without_groups}
        if takes_over:
            note = {name: value for name, value in aside[old].items() if name != "evidence"}
            note |= {"group": new, "jobs": None}
            notes = [*(row for row in replay.set_aside if row["group"] != new), note]
            _update(replay, without_groups=sorted(ids | {new}), set_aside=notes)
        elif new in ids:
            _take_in(replay, new)


def leave(old: int, new: int) -> None:
    """Drop the group `old`, whose last failure has gone to the group `new`; what it was excluded for in a draft is `new`'s."""
    for replay in _excluding(old, new):
        if old not in replay.without_groups:
            _take_in(replay, new)  # it may have begun while the failures of `old` were on their way
            continue
        notes = [row for row in replay.set_aside if row["group"] != old]
        if not any(row["group"] == new for row in notes):
            notes += [row | {"group": new} for row in replay.set_aside if row["group"] == old and row["phase"] == START]
        _update(replay, without_groups=[pk for pk in replay.without_groups if pk != old], set_aside=notes)


def _excluding(*groups: int) -> list[Replay]:
    """Return the replays in progress that exclude one of these groups, locked until the transaction ends."""
    rows = Replay.objects.exclude(state__in=ENDED).exclude(without_groups=[])
    pks = [pk for pk, ids in rows.values_list("pk", "without_groups") if not {*ids}.isdisjoint(groups)]
    if not pks:
        return []
    found = Replay.objects.select_for_update(of=("self",), no_key=True).filter(pk__in=pks).order_by("pk")
    return list(found.only("state", "without_groups", "set_aside", "controller"))


def _in_effect(replay: Replay) -> dict[int, dict[str, Any]]:
    """Return group -> why it is excluded, of the groups that may have jobs in the replay."""
    return {
        row["group"]: row
        for row in replay.set_aside
        if row["group"] in replay.without_groups and (row["phase"] == RUN or replay.state == ReplayState.DRAFT)
    }


def _take_in(replay: Replay, new: int) -> None:
    """Let jobs come into the excluded group `new`: one that was set aside cancels them, one excluded in the draft is excluded no more."""
    if new in _in_effect(replay):
        _recheck_planned(replay)
    elif replay.state != ReplayState.DRAFT:
        _update(replay, without_groups=[pk for pk in replay.without_groups if pk != new])


def _is_stronger(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether an operator excluded the one and the controller the other, which an outage brings back."""
    return other["by"] == CONTROLLER.name != one["by"]


def _recheck_planned(replay: Replay) -> None:
    """Let the controller look for planned jobs of the groups set aside from the first job on."""
    known = replay.controller if isinstance(replay.controller, dict) else {}
    n, left_out = known.get("n"), known.get("left_out")
    if isinstance(n, int) and isinstance(left_out, dict):
        # A look that goes on meanwhile is not written.
        _update(replay, controller=known | {"n": n + 1, "left_out": left_out | {"to_n": 0}})


def _update(replay: Replay, **columns: Any) -> None:
    Replay.objects.filter(pk=replay.pk).update(**columns)
