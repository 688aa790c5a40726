"""Preview of a replay, list of replays, one replay while it runs, and its acts."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.holds import notes as pause_notes
from dashboard.replays import forms as replay_forms
from dashboard.replays import hold as replay_hold
from dashboard.replays import outlook as replay_outlook
from dashboard.replays import paces as replay_paces
from dashboard.replays import page as replay_page
from dashboard.replays import preview as replay_preview
from dashboard.web import forms, links, time_range
from dashboard.web.access import can
from dashboard.web.htmx import go, render_page
from dashboard.web.toasts import add_toast
from jobs_admin import automations, replays
from jobs_admin.core.pacing.text import pace_text
from jobs_admin.core.refused import Refused
from jobs_admin.groups import group_finder
from jobs_admin.models import Replay
from jobs_admin.models.access import OPERATOR, VIEWER, Viewer
from jobs_admin.models.replay import ENDED, ItemState, ReplayState
from jobs_admin.replays import outcomes, progress, spread
from jobs_admin.replays.obstacles import LEFT_OUT
from jobs_admin.replays.outcomes import find_sent_while_off, find_unattended
from jobs_admin.rights import people

ROWS, JOBS = 50, 20  # rows of the list of replays, and of a replay's jobs


@require_safe
@can(VIEWER, by_source=True)
def index(request: HttpRequest) -> HttpResponse:
    found = replays.listing(request.viewer, after=request.GET.get("after"), limit=ROWS)
    context = {
        "rows": [replay_page.row(replay) for replay in found.rows],
        "next": found.next,
        "source_query": f"?{urlencode({'source': focus})}" if (focus := request.viewer.focus) else "",
        "is_first": "after" not in request.GET,
        "may_act": request.viewer.may_anywhere(OPERATOR),
    }
    return render_page(request, "redrive/replays/list.html", context, part="replays")


@require_http_methods(["GET", "HEAD", "POST"])
@can(OPERATOR)
def new(request: HttpRequest) -> HttpResponse:
    """Preview a replay (GET, or POST with a long selection), which changes nothing; `step=start` starts it."""
    given = request.POST if request.method == "POST" else request.GET
    scope = forms.Scope(given)
    if not scope.is_valid():
        add_toast(request, " ".join(text for texts in scope.errors.values() for text in texts), level="error")
        return go(request, reverse("redrive:failure-list"))
    what = scope.cleaned_data
    # A missing search does not mean everything: that requires an empty `q`.
    if not what["selection"] and "q" not in given:
        return render_page(request, "redrive/replays/new.html", {"is_unscoped": True}, part="preview")
    if what["selection"]:
        what["q"] = ""
    choices = _Choices(replay_forms.Pace(given), replay_forms.Options(given))
    if request.method == "POST" and given.get("step") == "start" and choices.is_valid():
        return _start(request, what, choices)
    is_refused = given.get("step") == "start" and not choices.is_valid()
    return _preview_page(request, what, choices, status=422 if is_refused else 200)


@dataclass(slots=True)
class _Choices:
    """Pace and options as typed."""

    pace: replay_forms.Pace
    options: replay_forms.Options

    def is_valid(self) -> bool:
        return self.pace.is_valid() and self.options.is_valid()

    @property
    def in_words(self) -> dict[str, Any]:
        """Return them for the engine. Raises Refused."""
        return {"pace": self.pace.document, "options": replays.Options.parse(self.options.document)}

    def refuse(self, refused: Refused) -> bool:
        """Show a refusal of the engine at its field; return whether the field is of the pace or an option."""
        field = refused.field or ""
        if refused.code == "bad_pace":
            self.pace.refuse(field.removeprefix("pace."), refused.message)
        elif refused.code == "bad_option":
            self.options.refuse(field, refused.message)
        return refused.code in {"bad_pace", "bad_option"}


def _start(request: HttpRequest, what: dict, choices: _Choices) -> HttpResponse:
    saw = replay_page.numbers(request.POST.get("seen", ""))
    is_at_once = (choices.pace.document or {}).get("style") == "at_once"
    form = replay_forms.Start(request.POST, jobs=saw.get("replayable", 2), is_at_once=is_at_once)
    if not form.is_valid():
        return _preview_page(request, what, choices, form=form, status=422)
    try:
        started = replays.launch(
            request.viewer,
            query=what["q"],
            selection=what["selection"],
            reason=form.cleaned_data["reason"],
            snapshot=form.cleaned_data["snapshot"],
            idempotency_key=form.cleaned_data["idempotency_key"] or None,
            **choices.in_words,
        )
        if opened := request.POST.get("draft", ""):
            _discard_opened(request, opened)
    except Refused as refused:
        if choices.refuse(refused):
            return _preview_page(request, what, choices, form=form, status=422)
        return _preview_page(request, what, choices, form=form, refused=refused, status=409)
    return go(request, reverse("redrive:replay-detail", args=[started.pk]))


def _preview_page(
    request: HttpRequest,
    what: dict,
    choices: _Choices,
    *,
    form: replay_forms.Start | None = None,
    refused: Refused | None = None,
    status: int = 200,
) -> HttpResponse:
    given = request.POST if request.method == "POST" else request.GET
    # The snapshot stays the same while the pace is changed; "anew" and a refusal read the current jobs.
    snapshot = "" if refused or given.get("step") == "anew" else given.get("snapshot", "")
    try:
        preview = _previewed(request, what, choices, snapshot)
    except Refused as why:
        context = {"refused": refused or why, "q": what["q"], "back_url": links.list_url(what["q"])}
        return render_page(request, "redrive/replays/new.html", context, part="preview", status=422)
    columns = replay_preview.columns(preview, {})
    context = replay_preview.plan(preview, choices.pace, choices.options) | {
        "q": preview.query,
        "reading": replay_preview.reading(preview.query),
        "selection": ",".join(map(str, what["selection"])),
        "selected": len(what["selection"]),
        "preview": preview,
        "columns": columns,
        "scope_words": replay_preview.scope_words(columns),
        "choices": replay_preview.choices(preview),
        "draft": given.get("draft", ""),
        "picture": replay_outlook.picture(preview, preview.last_hour),
        "form": form,
        "reason": given.get("reason", ""),
        "refused": refused,
        "changed": replay_preview.changed_since(request.POST.get("seen", ""), preview) if refused else [],
        "idempotency_key": uuid.uuid4().hex,
        "back_url": links.list_url(what["q"]),
        "paused": _paused(request, preview),
    }
    if choices.options.document.get("patch") and not choices.options.errors:
        context |= _changes(request, what, choices, preview)
    return render_page(request, "redrive/replays/new.html", context, part="preview", status=status)


def _paused(request: HttpRequest, preview: replays.Preview) -> str:
    """Return a warning if jobs would be sent to a paused place."""
    counts = {"queue": preview.by_queue, "task": preview.by_task, "tenant": preview.by_tenant}
    places = {kind: [name for name, _ in found] for kind, found in counts.items()}
    if target := preview.options.to_queue:
        places["queue"] = [target]
    return pause_notes.warning(request.viewer, preview.sources, places, timezone.now())


def _changes(request: HttpRequest, what: dict, choices: _Choices, preview: replays.Preview) -> dict[str, Any]:
    """Return the changes of the patch in each sent job, page by page."""
    options = choices.in_words["options"]
    after = request.POST.get("changes_after") or None
    scope = replays.Target(preview.query, tuple(what["selection"]))
    page = replays.list_patched_jobs(request.viewer, scope, options.patch, after=after, limit=10, options=options)
    return {"changes": replay_preview.changes(page), "changes_next": page.next, "changes_first": after is None}


def _previewed(request: HttpRequest, what: dict, choices: _Choices, snapshot: str) -> replays.Preview:
    """Return the requested plan; if a field is refused, the plan without it, and the error beside the field."""
    given: dict[str, Any] = {"query": what["q"], "selection": what["selection"], "snapshot": snapshot}
    try:
        return replays.preview(request.viewer, **given, **choices.in_words)
    except Refused as why:
        if why.code == "changed":  # the snapshot is of another selection
            return _previewed(request, what, choices, "")
        if not choices.refuse(why):
            raise
        style = choices.pace.cleaned_data.get("style")
        return replays.preview(
            request.viewer, **given, pace={"style": style} if style and why.field != "pace" else None
        )


def _discard_opened(request: HttpRequest, opened: str) -> None:
    """Discard the draft from which this start was opened."""
    with suppress(ValueError, OverflowError, Replay.DoesNotExist, Refused):
        replays.discard(request.viewer, replays.find(request.viewer, int(opened)), "Started as a replay.")


def get_replay(request: HttpRequest, pk: int) -> Replay:
    try:
        return replays.find(request.viewer, pk)
    except Replay.DoesNotExist as error:
        raise Http404(f"No replay {pk}, or you have no role on its source.") from error


@require_safe
@can(VIEWER)
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    return page(request, get_replay(request, pk))


_LISTS = (*ItemState.values, replay_page.LATEST, replay_page.ALL)


def page(request: HttpRequest, replay: Replay, *, status: int = 200, **more: object) -> HttpResponse:
    """Show the replay as a page or as its live part; acts return it too."""
    now = timezone.now()
    over, picker = _time_range(request, replay, now)
    listed = which if (which := request.GET.get("items", "")) in _LISTS else ""
    which = listed or replay_page.default_list(replay)
    url = replay_page.page_url(replay, over, listed)
    after = request.GET.get("after")
    items = replay_page.read_items(request.viewer, replay, which, after, JOBS)
    uncertain = []
    if replay.uncertain:
        uncertain = replays.items(request.viewer, replay, state=ItemState.UNCERTAIN, limit=ROWS).rows
    again = replays.failed_again_groups(request.viewer, replay) if replay.failed_again else []
    compared = replays.compare_errors(again)
    failing = replays.failing_groups(request.viewer, replay) if replay.state == ReplayState.HELD else []
    aside = replays.groups_aside(request.viewer, replay)
    approval = _approval(request, replay)
    # The panel of a held replay already has the details.
    found_unattended = None if replay.state == ReplayState.HELD else find_unattended(replay, now)
    context = {
        "replay": replay,
        "time_range": picker,
        "hold": replay_hold.hold(replay, failing),
        "automation": automations.find_starter(request.viewer, replay.pk),
        "aside": replay_hold.aside(replay, request.viewer, aside),
        "draft": replay_page.draft(replay, [one.group.name for one in aside]),
        "approval": approval,
        "shown": replay_page.summary(
            replay,
            progress.over_time(replay, now, now - time_range.RANGES[over] if over else None),
            progress.phases(replay),
            may_act=request.viewer.may_anywhere(OPERATOR),
            may_approve=approval is not None and not approval.why_not,
        ),
        "guard_off": replay_page.guard_off(find_sent_while_off(replay)) if replay.sent or replay.uncertain else "",
        "refused_outcomes": outcomes.refused_report_warnings(request.viewer, [replay], now).get(replay.pk, []),
        "unattended": replay_page.unattended_words(found_unattended, request.viewer),
        "failed_again": [replay_page.failed_again_group(replay, one) for one in again],
        "compared": compared,
        "next": _find_next_steps(request.viewer, replay, compared),
        "coverage": replay_page.coverage_of(replay),
        "excluded": [row for row in replay.blocked if row.get("code") != LEFT_OUT],
        "uncertain": uncertain,
        "jobs": replay_page.jobs(request.viewer, items.rows),
        "items_state": which,
        "is_latest_first": which in replay_page.LATEST_FIRST,
        "pruned": progress.count_pruned(replay),
        "items_next": items.next,
        "items_first": after is None,
        "may_act": request.viewer.may_anywhere(OPERATOR),
        "tabs": replay_page.tabs(replay, which, over),
        "list_url": replay_page.page_url(replay, over, which),
        "range_words": time_range.words(over) if over else "",
        "page_query": url.removeprefix(replay_page.page_url(replay, "")),
        "here": request.get_full_path() if request.method == "GET" else url,
        **more,
    }
    return render_page(request, "redrive/replays/detail.html", context, part="replay", status=status)


def _time_range(request: HttpRequest, replay: Replay, now: datetime) -> tuple[str, time_range.Picker | None]:
    """Return the requested range of the chart, "" for all of the replay, and the picker of a running replay."""
    began = replay.started_at
    offered = [
        one for one, length in time_range.RANGES.items() if began and replay.state not in ENDED and now - began > length
    ]
    name = time_range.requested(request)
    name = name if name in offered else ""
    url = replay_page.page_url(replay, "")  # the response to an act has a different URL
    complete = time_range.Choice("Since its start", url, not name)
    return name, time_range.picker(request, offered, name, complete, url=url)


@dataclass(frozen=True, slots=True)
class _Approval:
    names: list[str]  # users who may approve it, other than the one who started it
    why_not: str  # why the viewer may not
    columns: list[replay_preview.Column]  # content of the replay


def _approval(request: HttpRequest, replay: Replay) -> _Approval | None:
    """Return the approval; None if the replay waits for none."""
    if replay.state != ReplayState.AWAITING_APPROVAL:
        return None
    sources = replays.sources_of(replay)
    names = people.operators(sources, only_admins=replays.needs_admin(replay))
    why_not = replays.approver_refusal(request.viewer, replay, sources)
    return _Approval([name for name in names if name != replay.actor], why_not, _columns(request, replay))


def _columns(request: HttpRequest, replay: Replay) -> list[replay_preview.Column]:
    frozen = spread.spread_of_frozen(request.viewer, replay)
    listed = [name for name, _, _ in frozen.groups[: replay_preview.MOST_VALUES]]
    return replay_preview.columns(frozen, group_finder.read_places_by_name(listed, request.viewer))


@require_POST
@can(OPERATOR)
def pause(request: HttpRequest, pk: int) -> HttpResponse:
    return _act(request, pk, replays.pause, "Paused. Jobs already sent still run.")


@require_POST
@can(OPERATOR)
def resume(request: HttpRequest, pk: int) -> HttpResponse:
    """Resume, without the groups that are named: their jobs are excluded and released."""
    groups, query = request.POST.getlist("without_groups"), request.POST.get("without", "")
    act = partial(replays.resume, without_groups=groups, without=query)
    which = f"{len(groups)} groups" if len(groups) > 1 else "that group" if groups else "these jobs"
    return _act(request, pk, act, f"Resumed without {which}: they stay dead." if groups or query else "Replay resumed.")


@require_POST
@can(OPERATOR)
def bring_back(request: HttpRequest, pk: int) -> HttpResponse:
    """Send the jobs of groups that were excluded."""
    act = partial(replays.bring_back, groups=request.POST.getlist("group"))
    return _act(request, pk, act, "Group brought back. Its jobs are sent with the others.")


@require_POST
@can(OPERATOR)
def discard(request: HttpRequest, pk: int) -> HttpResponse:
    """Discard a draft."""
    replay = get_replay(request, pk)
    try:
        replays.discard(request.viewer, replay)
    except Refused as refused:
        return page(request, replay, status=409, refused=refused.message)
    add_toast(request, f"Draft #{pk} discarded. No job was changed.")
    return go(request, reverse("redrive:replay-list"))


@require_POST
@can(OPERATOR)
def approve(request: HttpRequest, pk: int) -> HttpResponse:
    """Approve as the second person."""
    return _act(request, pk, replays.approve, "Approved. The replay is starting.")


@require_POST
@can(OPERATOR)
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    return _act(request, pk, replays.cancel, "Cancelled. Running jobs finish; the other jobs stay dead.")


def _act(request: HttpRequest, pk: int, act: Callable[..., Replay], done: str) -> HttpResponse:
    replay = get_replay(request, pk)
    form = forms.Reason(request.POST)
    if not form.is_valid():
        return page(request, replay, status=422, refused="; ".join(form.errors["reason"]))
    return _answer(request, replay, done, lambda: act(request.viewer, replay, reason=form.cleaned_data["reason"]))


@require_POST
@can(OPERATOR)
def pace(request: HttpRequest, pk: int) -> HttpResponse:
    """Change the pace while it runs: by one press, or to the typed value."""
    replay = get_replay(request, pk)
    if step := replay_page.BY.get(request.POST.get("step", "")):
        changed = replay_paces.scaled(replay.pace, step)
    else:
        form = replay_forms.Pace(request.POST)
        if not form.is_valid():
            messages = "; ".join(text for texts in form.errors.values() for text in texts)
            return page(request, replay, status=422, pace_refused=f"{messages} Nothing was changed.")
        changed = replay_paces.at_rate(replay.pace, form.document or {})
    if changed is None:
        return page(request, replay, status=409, pace_refused="Out of range. Nothing was changed.")
    return _answer(
        request,
        replay,
        f"Pace changed: {pace_text(changed)}.",
        lambda: replays.change_pace(request.viewer, replay, changed),
        beside="pace_refused",
    )


@require_POST
@can(OPERATOR)
def resolve(request: HttpRequest, pk: int, n: int) -> HttpResponse:
    """Resolve a job of unknown outcome: it ran, or it was lost."""
    replay = get_replay(request, pk)
    as_ = request.POST.get("as", "")
    if as_ not in {"ran", "lost"}:
        return page(request, replay, status=422, refused="Choose run or lost. Nothing was changed.")
    done = f"Job {n:,} recorded as {'run' if as_ == 'ran' else 'lost: dead again'}."
    return _answer(request, replay, done, lambda: replays.resolve_item(request.viewer, replay, n, as_=as_))


@require_POST
@can(OPERATOR)
def resolve_all(request: HttpRequest, pk: int) -> HttpResponse:
    """Settle all uncertain jobs, or those that match a search, after they were counted.

    `as=preview` only counts them; so does an act on a search other than `counted`.
    """
    replay, as_, query = get_replay(request, pk), request.POST.get("as", ""), request.POST.get("q", "").strip()
    if as_ == "preview" or (as_ in {"ran", "lost"} and request.POST.get("counted") != query):
        try:
            count = replays.find_uncertain(request.viewer, replay, query).count()
        except Refused as refused:
            return page(request, replay, status=409, refused=refused.message)
        return page(request, replay, resolving={"query": query, "count": count})
    if as_ not in {"ran", "lost"}:
        return page(request, replay, status=422, refused="Choose run or lost. Nothing was changed.")
    try:
        count = replays.resolve_all(request.viewer, replay, as_, query)
    except Refused as refused:
        return page(request, get_replay(request, pk), status=409, refused=refused.message)
    jobs = "1 job" if count == 1 else f"{count:,} jobs"
    if as_ == "ran":
        add_toast(request, f"{jobs} recorded as run.")
    else:
        again = links.new_replay(f"replay:{pk} state:dead")
        add_toast(request, f"{jobs} recorded as lost: dead again.", link=again, link_text="Replay jobs")
    return _show(request, get_replay(request, pk))


def _answer(request: HttpRequest, replay: Replay, done: str, act, *, beside: str = "refused") -> HttpResponse:
    try:
        act()
    except Refused as refused:
        return page(request, get_replay(request, replay.pk), status=409, **{beside: refused.message})
    add_toast(request, done)
    return _show(request, get_replay(request, replay.pk))


def _show(request: HttpRequest, replay: Replay) -> HttpResponse:
    """Return the page after an act as it was: the act's URL has its time range and list of jobs."""
    if request.htmx:
        return page(request, replay)
    which = request.GET.get("items", "")
    url = replay_page.page_url(replay, time_range.requested(request), which if which in _LISTS else "")
    return go(request, url)


def _find_next_steps(viewer: Viewer, replay: Replay, compared: str) -> replay_page.Next | None:
    if replay.state not in ENDED:
        return None
    dead, excluded = replays.count_dead(viewer, replay), replays.count_excluded_dead(viewer, replay)
    return replay_page.next_steps(replay, dead, compared, excluded)
