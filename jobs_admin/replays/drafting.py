"""From a scope to a replay that runs: draft, start, and the second person's yes where one is needed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import F, IntegerField, Value, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from jobs_admin.core.text import representable
from jobs_admin.models import Replay, ReplayItem
from jobs_admin.models.access import Viewer
from jobs_admin.models.replay import OPEN_ITEM, ReplayState
from jobs_admin.replays import approval, letters, rights, scoping
from jobs_admin.replays.options import Options, refuse_unfit
from jobs_admin.replays.previewing import Preview, previewed, read_pace
from jobs_admin.replays.refusals import AlreadyOpen, ReplayRefused, wrong_state
from jobs_admin.replays.scoping import Scope

_CHANGED_TOO_MUCH = 0.01  # of what the preview showed


def draft(
    viewer: Viewer,
    *,
    query: str = "",
    selection: Sequence[int] = (),
    pace: object = None,
    reason: str = "",
    options: Options = Options(),  # noqa: B008 (frozen)
    edit: dict[str, Any] | None = None,
    snapshot: str = "",
    idempotency_key: str | None = None,
    now: datetime | None = None,
) -> Replay:
    """A replay that is not started. The one entrance: whatever is replayed passes here. Raises ReplayRefused.

    `snapshot` (of a preview) fixes the scope to what that preview saw. `edit` replaces the arguments of one job:
    {"args": […], "kwargs": {…}}. The same idempotency key again gives the replay made before.
    """
    now = now or timezone.now()
    scope = scoping.scope_of(query, selection, now)
    rights.must_write(viewer, "replay.draft", selection=scope.selection)
    read = read_pace(pace)
    if idempotency_key and (made := _made_before(viewer, idempotency_key, scope)):
        return made
    max_id = _seen_until(snapshot, scope)
    rights.must_act_on_job(viewer, scope)
    reason = representable(reason.strip())
    if len(reason) > 500:
        raise ReplayRefused("reason_required", "The reason is longer than 500 characters. Shorten it.", field="reason")
    seen = previewed(viewer, scope, read, scoping.highest_failure() if max_id is None else max_id, now)
    if not seen.replayable:
        raise _nothing(scope, seen)
    if seen.replayable > 1 and not reason:
        raise ReplayRefused("reason_required", "Say why: a replay of more than one job needs a reason.", field="reason")
    if edit is not None:
        if options.patch is not None:
            raise ReplayRefused("bad_option", "Edit the arguments or patch them, not both.", field="patch")
        letters.check_edit(scope, edit)
    refuse_unfit(options, seen.sources)
    replay = Replay(
        query=scope.query,
        selection=list(scope.selection),
        scope_max_id=seen.scope_max_id,
        matched=seen.matched,
        blocked=seen.blocked,
        pace=seen.pace,
        rate=read.rate,
        edit=edit,
        **options.as_columns(),
        snapshot=snapshot,
        idempotency_key=idempotency_key or None,
        reason=reason,
        actor=viewer.name,
        created_by_id=viewer.user_id,
    )
    try:
        with transaction.atomic():
            replay.save(force_insert=True)
            rights.record(
                viewer,
                "replay.draft",
                replay,
                seen.sources,
                reason=reason,
                after={
                    "query": scope.query,
                    "selected": len(scope.selection),
                    "replayable": seen.replayable,
                    "pace": seen.pace,
                }
                | ({"options": options.as_dict()} if options.as_dict() else {})
                | ({"edited": True} if edit is not None else {}),
            )
    except IntegrityError:
        # The same request twice at the same moment: the other one made it.
        if idempotency_key and (made := _made_before(viewer, idempotency_key, scope)):
            return made
        raise
    return replay


def _made_before(viewer: Viewer, key: str, scope: Scope) -> Replay | None:
    made = Replay.objects.filter(idempotency_key=key).first()
    if made is None:
        return None
    # A relative time is pinned anew with each request, so only the selection can be compared word for word.
    if made.actor != viewer.name or made.selection != list(scope.selection):
        raise ReplayRefused(
            "key_reused", "This idempotency key was used for another replay. Take a new one.", field="idempotency_key"
        )
    return made


def _seen_until(snapshot: str, scope: Scope) -> int | None:
    """The highest failure that the preview saw; None without a preview."""
    if not snapshot:
        return None
    try:
        max_id, _, _, digest = snapshot.split(".")
        highest = int(max_id)
    except ValueError as error:
        raise ReplayRefused(
            "changed", "The snapshot is not one that a preview gave. Preview again.", field="snapshot"
        ) from error
    if digest != scope.digest:
        raise ReplayRefused(
            "changed", "The snapshot belongs to another search or selection. Preview again.", field="snapshot"
        )
    return highest


def _nothing(scope: Scope, seen: Preview) -> ReplayRefused:
    if seen.matched and (opened := _open_item(scope.selection)):
        return opened
    if not seen.matched:
        return ReplayRefused("nothing_to_replay", "Nothing matches that you may replay. Nothing was changed.")
    why = "; ".join(f"{row['count']:,} {row['reason']}" for row in seen.blocked[:3])
    return ReplayRefused("nothing_to_replay", f"None of the {seen.matched:,} can be replayed now: {why}.")


def _open_item(selection: Sequence[int]) -> AlreadyOpen | None:
    if len(selection) != 1:
        return None
    item = ReplayItem.objects.filter(failure__in=selection, state__in=OPEN_ITEM).select_related("replay").first()
    if item is None:
        return None
    return AlreadyOpen(item.replay_id, item.replay.actor, item.replay.started_at or item.replay.created_at)


def start(viewer: Viewer, replay: Replay, now: datetime | None = None) -> Replay:
    """Freeze what is replayed, in one statement, and let it be sent. Raises ReplayRefused; then it is a draft still.

    One that was made with an idempotency key and is started already is given back as it is: `draft` gave it for the key.
    """
    now = now or timezone.now()
    if _was_started_by_its_key(viewer, replay):
        return replay
    rights.must_act(viewer, replay, "replay.start")
    scope = Scope(replay.query, tuple(replay.selection))
    # Asked before: inside, it would hold up all others who write.
    sources = _sources_within(viewer, replay, scope, now)
    try:
        with transaction.atomic():
            begun = Replay.objects.filter(pk=replay.pk, state=ReplayState.DRAFT).update(
                state=ReplayState.RUNNING, started_at=now
            )
            if not begun:
                # The same request twice at the same moment: the other one started it.
                if _was_started_by_its_key(viewer, replay):
                    return replay
                raise wrong_state(replay, "started")
            total = _freeze(viewer, replay, scope, now)
            if not total:
                # The draft was made when something could go: others were first.
                raise _open_item(scope.selection) or ReplayRefused(
                    "nothing_to_replay", "Meanwhile nothing is left to replay: all were taken, recovered or discarded."
                )
            _refuse_if_changed(replay, total)
            Replay.objects.filter(pk=replay.pk).update(total=total, planned=total)
            rights.record(
                viewer,
                "replay.start",
                replay,
                sources,
                reason=replay.reason,
                before={"state": ReplayState.DRAFT},
                after={"state": ReplayState.RUNNING, "total": total, "pace": replay.pace},
            )
    except IntegrityError as error:
        # PostgreSQL looks at the end whether what was frozen is still there: a prune was in between.
        raise ReplayRefused(
            "changed", "Some of these jobs were pruned at this moment. Nothing was started. Start it again."
        ) from error
    replay.refresh_from_db()
    return replay


def _was_started_by_its_key(viewer: Viewer, replay: Replay) -> bool:
    if not replay.idempotency_key or replay.actor != viewer.name:
        return False
    replay.refresh_from_db()
    return replay.state != ReplayState.DRAFT


def _sources_within(viewer: Viewer, replay: Replay, scope: Scope, now: datetime) -> list[str]:
    """The sources of what a start would freeze now."""
    inside = scope.within(viewer, now).filter(pk__lte=replay.scope_max_id)
    ready = scoping.replayable(inside, scoping.unreachable_sources())
    return sorted(ready.order_by().values_list("source", flat=True).distinct())


def _freeze(viewer: Viewer, replay: Replay, scope: Scope, now: datetime) -> int:
    """One item for each failure that can go; how many. One INSERT … SELECT: the choice is whole or absent."""
    chosen = (
        scoping.replayable(scope.within(viewer, now).filter(pk__lte=replay.scope_max_id), scoping.unreachable_sources())
        .annotate(
            of=Value(replay.pk, output_field=IntegerField()),
            n=Window(RowNumber(), order_by="pk"),
            next_run=F("run") + 1,
        )
        # The same order in every transaction: two that insert crosswise would wait for each other for ever.
        .order_by("pk")
        .values_list("of", "n", "pk", "next_run")
    )
    sql, parameters = chosen.query.sql_with_params()
    table = ReplayItem._meta.db_table
    with connection.cursor() as cursor:
        # The subquery gives the constant columns, which Django cannot name in one SELECT with the others.
        cursor.execute(
            f"INSERT INTO {table} (replay_id, n, failure_id, run, state, job_id, key, claim_epoch, outcome) "
            f"SELECT c.*, 'planned', '', '', '', '' FROM ({sql}) AS c WHERE 1 = 1 ON CONFLICT DO NOTHING",
            parameters,
        )
        return max(0, cursor.rowcount)


def _refuse_if_changed(replay: Replay, total: int) -> None:
    if not replay.snapshot:
        return
    previewed_count = int(replay.snapshot.split(".")[2])
    if abs(previewed_count - total) > _CHANGED_TOO_MUCH * previewed_count:
        raise ReplayRefused(
            "changed",
            f"The preview showed {previewed_count:,} jobs, now {total:,} can be replayed: others replayed, "
            "recovered or discarded some meanwhile. Nothing was started. Preview again.",
            field="snapshot",
        )


def approve(viewer: Viewer, replay: Replay, reason: str = "", now: datetime | None = None) -> Replay:
    """The second person's yes: it goes on with exactly what was frozen. Raises ReplayRefused.

    Another operator of all its sources than the one who started it, also not by a token of theirs.
    """
    now = now or timezone.now()
    sources = rights.must_act(viewer, replay, "replay.approve")
    if approval.has_hand_in(viewer, replay):
        rights.refuse(
            viewer,
            "replay.approve",
            f"replay:{replay.pk}",
            "forbidden",
            f"You started replay #{replay.pk} yourself, so another operator has to approve it. Nothing was changed.",
            sources,
        )
    with transaction.atomic():
        approved = Replay.objects.filter(pk=replay.pk, state=ReplayState.AWAITING_APPROVAL).update(
            state=ReplayState.RUNNING,
            state_since=now,
            approver=representable(viewer.name)[:150],
            approved_by_id=viewer.user_id,
            approved_at=now,
        )
        if not approved:
            raise wrong_state(replay, "approved")
        rights.record(
            viewer,
            "replay.approve",
            replay,
            sources,
            reason=reason,
            before={"state": ReplayState.AWAITING_APPROVAL},
            after={"state": ReplayState.RUNNING, "started_by": replay.actor, "total": replay.total},
        )
    replay.refresh_from_db()
    return replay
