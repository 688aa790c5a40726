"""Draft, start and approval of a replay: from a target to sent jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Count, Max, QuerySet
from django.utils import timezone

from jobs_admin.core import query as language
from jobs_admin.core.figures import dated
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable
from jobs_admin.models import AuditEvent, Failure, Replay, ReplayItem
from jobs_admin.models.access import Viewer
from jobs_admin.models.replay import OPEN_ITEM, ReplayState
from jobs_admin.replays import controlling, freezing, messages, notices, outcomes, rights, target
from jobs_admin.replays.obstacles import LEFT_OUT
from jobs_admin.replays.options import ACCEPTABLE, Options, refuse_unfit
from jobs_admin.replays.previewing import Preview, build_preview, explain_nothing, parse_pace
from jobs_admin.replays.readiness import Readiness
from jobs_admin.replays.rights import wrong_state
from jobs_admin.replays.target import Target

_CHANGED_TOO_MUCH = 0.01  # share of the previewed jobs
_DRAFTED_WITHIN = timedelta(seconds=30)  # from pinning relative times to writing the row


def draft(viewer: Viewer, **request: Any) -> Replay:
    """Create a replay that is not started. Every replay is created here. `request`: see `_create_draft`."""
    return _create_draft(viewer, **request)[0]


def _create_draft(
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
) -> tuple[Replay, Readiness | None]:
    """Return a draft and the readiness that its preview used; None for a draft that existed before. Raises Refused.

    `snapshot` (of a preview) fixes the target to the jobs in that preview. `edit` replaces the arguments of one job:
    {"args": […], "kwargs": {…}}. A repeated idempotency key returns the existing replay.
    """
    # In one function: the order of refusals is part of the API.
    now = now or timezone.now()
    scope = target.build_target(query, selection, now)
    # Read only to refuse.
    sources = Failure.objects.filter(pk__in=scope.selection).order_by().values_list("source", flat=True).distinct()
    rights.must_write(viewer, "replay.draft", sources=sources)
    read = parse_pace(pace)  # an invalid pace is refused before anything is read
    requested_pace = None if pace in (None, {}) else read.as_dict()
    request = _Request(query, scope, options, edit, requested_pace)
    if idempotency_key and (made := _find_by_key(viewer, idempotency_key, request)):
        return made, None
    max_id = target.parse_snapshot(snapshot, scope)
    rights.must_act_on_job(viewer, scope)
    reason = representable(reason.strip())
    if len(reason) > 500:
        raise Refused("reason_required", "The reason is longer than 500 characters. Shorten it.", field="reason")
    highest = target.highest_failure() if max_id is None else max_id
    seen = build_preview(viewer, scope, pace, highest, now, options, light=True)
    if not seen.replayable:
        raise _nothing_to_replay(scope, seen)
    _refuse_other_request(snapshot, seen)
    if seen.replayable > 1 and not reason:
        raise Refused("reason_required", "A replay of more than one job needs a reason.", field="reason")
    if edit is not None:
        if options.patch is not None:
            raise Refused("bad_option", "Edit the arguments or patch them, not both.", field="patch")
        messages.check_edit(scope, edit)
    refuse_unfit(options, seen.sources, seen.pace.get("priority"))
    replay = Replay(
        query=scope.query,
        selection=list(scope.selection),
        scope_max_id=seen.scope_max_id,
        matched=seen.matched,
        blocked=seen.blocked,
        pace=seen.pace,
        rate=seen.plan.lowest,
        edit=edit,
        **seen.options.as_columns(),
        without_groups=list(seen.options.without_groups or ()),
        set_aside=seen.set_aside,
        snapshot=snapshot,
        idempotency_key=idempotency_key or None,
        reason=reason,
        actor=viewer.name,
        created_by_id=viewer.person_id,
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
                | ({"edited": True} if edit is not None else {})
                | ({_REQUESTED_PACE: request.pace} if idempotency_key else {}),
            )
    except IntegrityError:
        # A concurrent identical request created it.
        if idempotency_key and (made := _find_by_key(viewer, idempotency_key, request)):
            return made, None
        raise
    return replay, seen.ready


@dataclass(frozen=True, slots=True)
class _Request:
    """Content of a request, which must be equal in a repeated request with the same key."""

    query: str
    scope: Target
    options: Options
    edit: dict[str, Any] | None
    pace: dict[str, Any] | None  # None: the default for that many jobs

    def is_of(self, made: Replay) -> bool:
        pinned, request = language.parse(made.query), language.parse("" if made.selection else self.query)
        return (
            language.is_pin_of(pinned, request, made.created_at, _DRAFTED_WITHIN)
            and made.selection == list(self.scope.selection)
            and self._are_options_of(made)
            and self.edit == made.edit
            and self._is_pace_of(made)
        )

    def _are_options_of(self, made: Replay) -> bool:
        """Return whether the options are equal, ignoring predicted groups, which may have changed."""
        theirs = Options.from_replay(made)
        if self.options.without_groups is None:
            theirs = replace(theirs, without_groups=None)
        return self.options == theirs

    def _is_pace_of(self, made: Replay) -> bool:
        """Return whether the pace is the requested one, according to the audit of the draft.

        The replay's own pace has a number for each open value, and may have been changed. The audit of a draft by an
        older version has no requested pace.
        """
        drafted = AuditEvent.objects.filter(object=f"replay:{made.pk}", act="replay.draft", allowed=True).first()
        text = drafted.after if drafted is not None and drafted.after else {}
        return _REQUESTED_PACE not in text or text[_REQUESTED_PACE] == self.pace


_REQUESTED_PACE = "asked_pace"


def _find_by_key(viewer: Viewer, key: str, request: _Request) -> Replay | None:
    made = Replay.objects.filter(idempotency_key=key).first()
    if made is None:
        return None
    if made.actor != viewer.name or not request.is_of(made):
        raise Refused(
            "key_reused",
            f"This idempotency key was used for replay #{made.pk} with a different request. Nothing was changed. "
            "Use a new key for another search, selection, arguments, options or pace.",
            field="idempotency_key",
        )
    return made


def _nothing_to_replay(scope: Target, seen: Preview) -> Refused:
    if seen.matched and (opened := _open_item_refusal(scope.selection)):
        return opened
    reasons = (
        (f"{row['count']:,} " if seen.matched > 1 else "") + row["reason"].rstrip(".") for row in seen.blocked[:3]
    )
    text = f"{explain_nothing(seen, '; '.join(reasons))} Nothing was changed."
    if any(row["code"] == LEFT_OUT for row in seen.blocked):
        text += " Name the groups to exclude (without_groups); an empty list sends all."
    accept = [row["accept"] for row in seen.blocked if row.get("accept")]
    return Refused("nothing_to_replay", text, **({"accept": accept} if accept else {}))


def _open_item_refusal(selection: Sequence[int]) -> Refused | None:
    if len(selection) != 1:
        return None
    open_items = ReplayItem.objects.filter(failure__in=selection, state__in=OPEN_ITEM).exclude(failure__state="gone")
    item = open_items.select_related("replay").first()
    if item is None:
        return None
    replay = item.replay
    since = replay.started_at or replay.created_at
    message = (
        f"{replay.actor} is already replaying this job: replay #{replay.pk}, since {dated(since, timezone.now(), with_seconds=True)} UTC. "
        "Nothing was changed."
    )
    return Refused("already_open", message, replay=replay.pk, by=replay.actor, since=since)


def launch(viewer: Viewer, **request: Any) -> Replay:
    """Draft and start in one act; `request`: arguments of `draft`. Raises Refused, and then leaves no new draft.

    An existing draft with the same idempotency key is started, and remains if its start is refused.
    """
    key = request.get("idempotency_key")
    before = set(Replay.objects.filter(idempotency_key=key).values_list("pk", flat=True)) if key else set()
    made, ready = _create_draft(viewer, **request)
    try:
        return _start_once(viewer, made, timezone.now(), ready)
    except Refused as refused:
        if made.pk in before:
            raise
        with transaction.atomic():
            if Replay.objects.filter(pk=made.pk, state=ReplayState.DRAFT).delete()[0]:
                rights.record(
                    viewer, "replay.discard", made, [], reason=f"Its start was refused: {refused.message}"[:500]
                )
        raise


def start(viewer: Viewer, replay: Replay, now: datetime | None = None) -> Replay:
    """Freeze the jobs, then send them or wait for approval. Raises Refused; the replay then remains a draft.

    A replay that `draft` returned for its idempotency key and that has started is returned unchanged.
    """
    return _start_once(viewer, replay, now or timezone.now(), None)


def _start_once(viewer: Viewer, replay: Replay, now: datetime, ready: Readiness | None) -> Replay:
    try:
        _start(viewer, replay, now, ready)
    except Refused:
        # A concurrent identical request started it.
        if not _is_started_by_key(viewer, replay):
            raise
    replay.refresh_from_db()
    return replay


def _start(viewer: Viewer, replay: Replay, now: datetime, ready: Readiness | None) -> None:
    rights.must_act(viewer, replay, "replay.start")
    if not Replay.objects.filter(pk=replay.pk, state=ReplayState.DRAFT).exists():
        raise wrong_state(replay, "started")
    replay = copy(replay)  # changes to this copy take effect only if the start succeeds
    replay.highest_item = ReplayItem.objects.aggregate(Max("pk"))["pk__max"] or 0
    # Chosen before the transaction, which would otherwise block all other writers.
    choice = _choose_jobs(viewer, replay, now, ready)
    try:
        with transaction.atomic():
            _begin(viewer, replay, choice, now)
    except IntegrityError as error:
        # PostgreSQL checks foreign keys at commit: frozen jobs were pruned meanwhile.
        raise Refused(
            "changed", "Some of these jobs were just pruned. Nothing was started. Start the replay again."
        ) from error


def _is_started_by_key(viewer: Viewer, replay: Replay) -> bool:
    if not replay.idempotency_key or replay.actor != viewer.name:
        return False
    return Replay.objects.filter(pk=replay.pk).exclude(state=ReplayState.DRAFT).exists()


@dataclass(frozen=True, slots=True)
class _Choice:
    """Jobs that a start would freeze now."""

    frozen: freezing.Frozen
    first: list[freezing.Place]
    taken: dict[tuple[int, str], int]  # (replay, its actor) -> number of the draft's jobs it took before this start
    needs_approval: str  # the reason; empty if no approval is needed
    dangerous: list[str]  # tasks that need approval, for the person who approves


def _choose_jobs(viewer: Viewer, replay: Replay, now: datetime, ready: Readiness | None) -> _Choice:
    """Return the jobs to freeze.

    `ready`: of the draft, if this start follows it in one act; its statements run again now.
    """
    scope = Target(replay.query, tuple(replay.selection))
    inside = scope.within(viewer, now).filter(pk__lte=replay.scope_max_id)
    if ready is None:
        ready = Readiness(viewer, scope, max_id=replay.scope_max_id, options=Options.from_replay(replay), now=now)
    shuffle = replay.key if replay.pace.get("shuffle") else ""
    frozen = freezing.freeze(ready.owned(), shuffle, _read_groups if replay.pace.get("canary") else None)
    if not frozen.total:
        raise _nothing_left(scope)
    _refuse_if_changed(replay, frozen.total)
    refuse_unfit(Options.from_replay(replay), frozen.sources, replay.pace.get("priority"))
    outcomes.refuse_blind_pace(parse_pace(replay.pace), frozen.sources)  # the pace may have changed since the draft
    needs_approval = rights.approval_reason(ready.rows(), frozen.total)
    return _Choice(
        frozen,
        freezing.build_places(replay, frozen.first, 1),
        _count_taken_since_draft(replay, inside, frozen.total),
        needs_approval,
        rights.dangerous_tasks(ready.rows()) if needs_approval else [],
    )


def _read_groups(ids: Sequence[int]) -> dict[int, int | None]:
    found: dict[int, int | None] = {}
    for start in range(0, len(ids), 1_000):
        found |= dict(Failure.objects.filter(pk__in=ids[start : start + 1_000]).values_list("pk", "group_id"))
    return found


def _count_taken_since_draft(replay: Replay, inside: QuerySet[Failure], total: int) -> dict[tuple[int, str], int]:
    missing = replay.matched - sum(row["count"] for row in replay.blocked) - total
    if missing <= 0:
        return {}
    theirs = ReplayItem.objects.filter(failure__in=inside.values("pk"), replay__started_at__gte=replay.created_at)
    counted = theirs.order_by().values_list("replay", "replay__actor").annotate(n=Count("pk")).order_by("-n")
    found: dict[tuple[int, str], int] = {}
    for pk, actor, count in counted:
        # At most the missing jobs; jobs taken from now on are reported when the items are created.
        if taken := min(count, missing):
            found[pk, actor] = taken
        missing -= taken
    return found


def _begin(viewer: Viewer, replay: Replay, choice: _Choice, now: datetime) -> None:
    frozen, needs_approval = choice.frozen, choice.needs_approval
    replay.started_at, replay.total = now, frozen.total
    waits = {"state": ReplayState.AWAITING_APPROVAL, "state_since": now, "approval_because": needs_approval}
    columns = waits if needs_approval else controlling.start_columns(replay, now)
    # With the pace that the jobs were chosen for: it determines their keys and their order.
    begun = Replay.objects.filter(pk=replay.pk, state=ReplayState.DRAFT, pace=replay.pace).update(
        **columns,
        started_at=now,
        highest_item=replay.highest_item,
        total=frozen.total,
        planned=frozen.total,
        by_source=frozen.by_source,
        taken=sum(choice.taken.values()),
        blocked=freezing.merge_blocked(replay.blocked, freezing.taken_rows(choice.taken)),
    )
    if not begun:
        if Replay.objects.filter(pk=replay.pk, state=ReplayState.DRAFT).exists():
            raise Refused("changed", "The pace was just changed. Nothing was started. Start the replay again.")
        raise wrong_state(replay, "started")
    total = frozen.total
    # A replay that waits for approval takes no jobs, so it has no items.
    freezing.write_batches(replay, frozen, with_first=bool(needs_approval))
    if not needs_approval:
        total -= len(choice.first) - freezing.insert_items(replay, choice.first)
        if not total:
            raise _nothing_left(Target(replay.query, tuple(replay.selection)))
        _refuse_if_changed(replay, total)
    rights.record(
        viewer,
        "replay.start",
        replay,
        frozen.sources,
        reason=replay.reason,
        before={"state": ReplayState.DRAFT},
        after={"state": columns["state"], "total": total, "pace": columns.get("pace", replay.pace)}
        | ({"approval": needs_approval} if needs_approval else {}),
    )
    if needs_approval:
        notices.notify_approval(replay, frozen.sources, needs_approval, choice.dangerous)


def _nothing_left(scope: Target) -> Refused:
    """Return the refusal of a draft whose jobs have all been taken, recovered or discarded."""
    return _open_item_refusal(scope.selection) or Refused(
        "nothing_to_replay",
        "Nothing is left to replay: all jobs were claimed, recovered or discarded in the meantime. Nothing was changed.",
    )


def _refuse_if_changed(replay: Replay, total: int) -> None:
    if not replay.snapshot:
        return
    previewed_count = int(replay.snapshot.split(".")[2])
    if abs(previewed_count - total) > _CHANGED_TOO_MUCH * previewed_count:
        raise Refused(
            "changed",
            f"The preview showed {previewed_count:,} jobs, now {total:,} can be replayed: some were replayed, "
            "recovered or discarded in the meantime. Nothing was started. Preview again.",
            field="snapshot",
        )


def _refuse_other_request(snapshot: str, seen: Preview) -> None:
    """Raise Refused if this start requests something other than its preview."""
    if snapshot.count(".") < 4:
        return
    _, _, count, _, digest = snapshot.split(".")
    if digest == seen.options.digest or count == str(seen.replayable):
        return
    accepted = [name for n, name in enumerate(ACCEPTABLE) if int(digest[0], 16) >> n & 1]
    missing = [name for name in accepted if name not in seen.options.accept]
    added = [name for name in seen.options.accept if name not in accepted]
    counts = f"The preview had {int(count):,} jobs, this start has {seen.replayable:,}. Nothing was changed."
    if missing:
        names, them = " and ".join(missing), "it" if len(missing) == 1 else "them"
        text = (
            f"The preview accepted {names}, but this start does not: name {them} in accept, or preview without {them}."
        )
        raise Refused("changed", f"{text} {counts}", field="accept", accept=missing)
    if added:
        names = " and ".join(added)
        text = f"This start accepts {names}, but the preview did not: preview with the same accept."
        raise Refused("changed", f"{text} {counts}", field="accept")
    text = "The preview and this start exclude different groups: give both the same without_groups, or preview again."
    raise Refused("changed", f"{text} {counts}", field="without_groups")


def approve(
    viewer: Viewer,
    replay: Replay,
    reason: str = "",
    now: datetime | None = None,
    *,
    is_as_shown: Callable[[Replay], bool] | None = None,
) -> Replay:
    """Approve as the second person: exactly the frozen jobs are sent. Raises Refused.

    `rights.approver_refusal` decides who can approve. `is_as_shown`: whether the replay is as the person was shown it.
    """
    now = now or timezone.now()
    sources = rights.must_approve(viewer, replay)
    with transaction.atomic():
        # Read again: the person who started it may have changed its pace since.
        current = Replay.objects.select_for_update(no_key=True).filter(pk=replay.pk).first()
        if current is None:
            raise wrong_state(replay, "approved")
        if is_as_shown is not None and not is_as_shown(current):
            raise Refused("changed", f"Replay #{replay.pk} was changed after you reviewed it. Nothing was approved.")
        begins = controlling.start_columns(current, now)
        approved = Replay.objects.filter(pk=replay.pk, state=ReplayState.AWAITING_APPROVAL).update(
            **begins,
            approver=representable(viewer.name)[:150],
            approved_by_id=viewer.person_id,
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
            after={"state": begins["state"], "started_by": replay.actor, "total": replay.total},
        )
    freezing.create_first_items(replay)
    replay.refresh_from_db()
    return replay
