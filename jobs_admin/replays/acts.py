"""What people do with replays. Each act checks the right, changes rows by one conditional statement, and is audited."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import F, IntegerField, QuerySet, Value, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from jobs_admin import audit, config
from jobs_admin.core.text import representable
from jobs_admin.models import Failure, Replay, ReplayItem
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import OPEN_ITEM, SENDING, ItemState, ReplayState
from jobs_admin.replays import letters, scoping, stopping
from jobs_admin.replays.previewing import Preview, previewed, read_pace
from jobs_admin.replays.refusals import AlreadyOpen, ReplayRefused
from jobs_admin.replays.scoping import Scope

_OVER = (ReplayState.DONE, ReplayState.STOPPED, ReplayState.CANCELLED)
_CHANGED_TOO_MUCH = 0.01  # of what the preview showed


def draft(
    viewer: Viewer,
    *,
    query: str = "",
    selection: Sequence[int] = (),
    pace: object = None,
    reason: str = "",
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
    _writable(viewer, "replay.draft", selection=scope.selection)
    read = read_pace(pace)
    if idempotency_key and (made := _made_before(viewer, idempotency_key, scope)):
        return made
    max_id = _seen_until(snapshot, scope)
    _may_all(viewer, scope)
    reason = representable(reason.strip())
    if len(reason) > 500:
        raise ReplayRefused("reason_required", "The reason is longer than 500 characters. Shorten it.", field="reason")
    seen = previewed(viewer, scope, read, scoping.highest_failure() if max_id is None else max_id, now)
    if not seen.replayable:
        raise _nothing(scope, seen)
    if seen.replayable > 1 and not reason:
        raise ReplayRefused("reason_required", "Say why: a replay of more than one job needs a reason.", field="reason")
    if edit is not None:
        letters.check_edit(scope, edit)
    replay = Replay(
        query=scope.query,
        selection=list(scope.selection),
        scope_max_id=seen.scope_max_id,
        matched=seen.matched,
        blocked=seen.blocked,
        pace=seen.pace,
        rate=read.rate,
        edit=edit,
        snapshot=snapshot,
        idempotency_key=idempotency_key or None,
        reason=reason,
        actor=viewer.name,
        created_by_id=viewer.user_id,
    )
    try:
        with transaction.atomic():
            replay.save(force_insert=True)
            _record(
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
    _may_act(viewer, replay, "replay.start")
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
                raise _wrong_state(replay, "started")
            total = _freeze(viewer, replay, scope, now)
            if not total:
                # The draft was made when something could go: others were first.
                raise _open_item(scope.selection) or ReplayRefused(
                    "nothing_to_replay", "Meanwhile nothing is left to replay: all were taken, recovered or discarded."
                )
            _refuse_if_changed(replay, total)
            Replay.objects.filter(pk=replay.pk).update(total=total, planned=total)
            _record(
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


def pause(viewer: Viewer, replay: Replay, reason: str = "") -> Replay:
    """Send no more until it is resumed. What was sent runs on."""
    return _move(viewer, replay, "pause", SENDING, ReplayState.PAUSED, reason)


def resume(viewer: Viewer, replay: Replay, reason: str = "") -> Replay:
    return _move(viewer, replay, "resume", (ReplayState.PAUSED, ReplayState.HELD), ReplayState.RUNNING, reason)


def cancel(viewer: Viewer, replay: Replay, reason: str = "") -> Replay:
    """Send no more, for good. What was sent runs on and is still told; the rest is free for another replay.

    The state turns first, in a moment; the items follow in small transactions. Should we die meanwhile, `settle` goes on.
    """
    sources = _may_act(viewer, replay, "replay.cancel")
    now = timezone.now()
    with transaction.atomic():
        stopped = Replay.objects.filter(pk=replay.pk).exclude(state__in=_OVER)
        if not stopped.update(state=ReplayState.CANCELLED, ended_at=now, held_because=""):
            raise _wrong_state(replay, "cancelled")
        planned = Replay.objects.values_list("planned", flat=True).get(pk=replay.pk)
        _record(
            viewer,
            "replay.cancel",
            replay,
            sources,
            reason=reason,
            before={"state": replay.state, "planned": planned},
            after={"state": ReplayState.CANCELLED},
        )
    stopping.drop_planned(replay, now)
    replay.refresh_from_db()
    return replay


def change_pace(viewer: Viewer, replay: Replay, pace: object, reason: str = "") -> Replay:
    """Another pace, also while it runs."""
    read = read_pace(pace)
    sources = _may_act(viewer, replay, "replay.pace")
    with transaction.atomic():
        changed = Replay.objects.filter(pk=replay.pk).exclude(state__in=_OVER)
        if not changed.update(pace=read.as_dict(), rate=read.rate):
            raise _wrong_state(replay, "given another pace")
        _record(
            viewer,
            "replay.pace",
            replay,
            sources,
            reason=reason,
            before={"pace": replay.pace},
            after={"pace": read.as_dict()},
        )
    replay.refresh_from_db()
    return replay


def resolve_item(viewer: Viewer, replay: Replay, n: int, as_: str, now: datetime | None = None) -> ReplayItem:
    """Settle an uncertain item by a person's word: it `ran`, or it was `lost` (then it is dead again)."""
    if as_ not in {"ran", "lost"}:
        raise ReplayRefused("bad_scope", "Settle it as ran or as lost.", field="as")
    _may_act(viewer, replay, "replay.resolve")
    now = now or timezone.now()
    item = ReplayItem.objects.filter(replay=replay, n=n).select_related("failure").first()
    if item is None:
        raise ReplayRefused("bad_scope", f"Replay #{replay.pk} has no item {n}.", field="n")
    settled, dead_or_not = (
        (ItemState.SUCCEEDED, FailureState.RECOVERED) if as_ == "ran" else (ItemState.FAILED_AGAIN, FailureState.DEAD)
    )
    with transaction.atomic():
        done = ReplayItem.objects.filter(pk=item.pk, state=ItemState.UNCERTAIN).update(
            state=settled, settled_at=now, outcome=representable(f"{as_}, says {viewer.name}")[:255]
        )
        if not done:
            raise ReplayRefused(
                "wrong_state", "Only an uncertain item can be settled by hand; this one is not (any more)."
            )
        Failure.objects.filter(pk=item.failure_id, run=item.run, state=FailureState.REPLAYING).update(state=dead_or_not)
        Replay.objects.filter(pk=replay.pk).update(uncertain=F("uncertain") - 1, **{settled: F(settled) + 1})
        _record(
            viewer,
            "replay.resolve",
            replay,
            [item.failure.source],
            before={"item": n, "state": ItemState.UNCERTAIN},
            after={"item": n, "state": settled, "failure": item.failure_id},
        )
    item.refresh_from_db()
    return item


def _move(
    viewer: Viewer, replay: Replay, act: str, allowed: Sequence[ReplayState], to: ReplayState, reason: str
) -> Replay:
    sources = _may_act(viewer, replay, f"replay.{act}")
    with transaction.atomic():
        moved = Replay.objects.filter(pk=replay.pk, state__in=allowed).update(state=to, held_because="")
        if not moved:
            raise _wrong_state(replay, f"{act}d")
        _record(
            viewer,
            f"replay.{act}",
            replay,
            sources,
            reason=reason,
            before={"state": replay.state},
            after={"state": to},
        )
    replay.refresh_from_db()
    return replay


def _wrong_state(replay: Replay, done: str) -> ReplayRefused:
    state = Replay.objects.values_list("state", flat=True).get(pk=replay.pk)
    return ReplayRefused("wrong_state", f"Replay #{replay.pk} is {state}, so it cannot be {done}. Nothing was changed.")


# Rights


def _writable(
    viewer: Viewer, act: str, object: str = "", sources: Sequence[str] = (), selection: Sequence[int] = ()
) -> None:
    if config.is_read_only():
        code, why = "read_only", config.READ_ONLY
    elif not viewer.may_anywhere(OPERATOR):
        code, why = "forbidden", "You may look, not replay: that needs the role operator."
    else:
        return
    if selection:
        sources = sorted(Failure.objects.filter(pk__in=selection).values_list("source", flat=True).distinct())
    _refuse(viewer, act, object, code, why, sources)


def _may_all(viewer: Viewer, scope: Scope) -> None:
    """A single job that the viewer may only look at is refused; of a search, it is simply not in the scope."""
    if not scope.is_one_job:
        return
    source = Failure.objects.filter(pk=scope.selection[0]).values_list("source", flat=True).first()
    if source is not None and not viewer.may(OPERATOR, source):
        message = f"You may not replay jobs of {source}: that needs the role operator on it."
        object = f"failure:{scope.selection[0]}"
        if viewer.role_on(source):
            _refuse(viewer, "replay.draft", object, "forbidden", message, [source])
        # What the viewer may not even see is written down for its admin, and answered like what is not there.
        _note(viewer, "replay.draft", object, message, [source])


def _may_act(viewer: Viewer, replay: Replay, act: str) -> list[str]:
    """The sources that the replay touches: acting on it takes the right on every one of them."""
    sources = sources_of(replay)
    _writable(viewer, act, f"replay:{replay.pk}", sources)
    for source in sources:
        if not viewer.may(OPERATOR, source):
            where = source if viewer.role_on(source) else "a source"
            message = f"Replay #{replay.pk} has jobs of {where}, where you are not operator. Nothing was changed."
            _refuse(viewer, act, f"replay:{replay.pk}", "forbidden", message, [source])
    return sources


def sources_of(replay: Replay) -> list[str]:
    found: QuerySet[Any] = ReplayItem.objects.filter(replay=replay).order_by()
    return sorted(found.values_list("failure__source", flat=True).distinct())


def _record(viewer: Viewer, act: str, replay: Replay, sources: Sequence[str], **more: Any) -> None:
    """One row for each source, so that the admin of one sees what was done with its jobs."""
    for source in sources or [""]:
        audit.record(viewer, act, f"replay:{replay.pk}", source=source, **more)


def _refuse(viewer: Viewer, act: str, object: str, code: str, message: str, sources: Sequence[str] = ()) -> None:
    _note(viewer, act, object, message, sources)
    raise ReplayRefused(code, message)


def _note(viewer: Viewer, act: str, object: str, message: str, sources: Sequence[str]) -> None:
    with transaction.atomic():
        for source in sources or [""]:
            audit.record(viewer, act, object, source=source, reason=message, allowed=False)
