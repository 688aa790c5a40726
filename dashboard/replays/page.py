"""The page of a replay: state as a sentence, progress bar, chart, and possible acts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone

from dashboard.replays import forms as replay_forms
from dashboard.replays import outlook as replay_outlook
from dashboard.replays import paces as replay_paces
from dashboard.web import links, time_range
from dashboard.web.figures import duration
from dashboard.web.moments import clock, zone_name
from dashboard.web.text import part_first
from jobs_admin import replays
from jobs_admin.core import figures, untrusted
from jobs_admin.core import query as language
from jobs_admin.core.pacing.text import pace_text
from jobs_admin.core.text import class_name, list_some
from jobs_admin.installation import COMMAND
from jobs_admin.models import Group, Replay, ReplayItem
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.replay import ENDED, SENDING, START, ItemState, ReplayState
from jobs_admin.replays import learned_limit
from jobs_admin.replays.obstacles import LEFT_OUT
from jobs_admin.replays.outcomes import SentWhileOff, Unattended

STEP = 1.5  # factor of one press
_MUCH_SLOWER = 0.5  # fraction of its rate at or below which workers limit the speed of a replay
_MOST_QUEUES = 3  # queues named in a sentence
_LONGEST_ADDRESS = 4_000  # characters of a form submitted in a URL
FAST_UP_TO = 100_000  # jobs: the page of a larger replay is too expensive to poll every second
BY = {"slower": 1 / STEP, "faster": STEP}

# In order of the bar: settled jobs first, waiting jobs last.
PARTS = (
    ("succeeded", "succeeded", "recovered"),
    ("failed_again", "failed again", "dead"),
    ("running", "running", "replaying"),
    ("sent", "sent, waiting for a worker", "replaying"),
    ("uncertain", "uncertain", "quarantined"),
    ("planned", "not sent yet", "discarded"),
    ("cancelled", "cancelled", "discarded"),
)
_CLIMBS_FIRST = (ReplayState.AWAITING_APPROVAL, ReplayState.RAMPING)  # states in which nothing has slowed it down
_SLOWED = ("backed_off", "slower")  # kinds of evidence


@dataclass(frozen=True, slots=True)
class Part:
    """Segment of the progress bar."""

    state: str
    words: str
    tone: str
    count: int
    x: float  # 0..100
    width: float


@dataclass(frozen=True, slots=True)
class Row:
    """Replay on the list."""

    replay: Replay
    url: str
    scope: str
    parts: list[Part]
    settled: int
    sent_none: bool
    drafted_jobs: int | None  # jobs of a draft; None if the replay was started


@dataclass(frozen=True, slots=True)
class Faster:
    """Change of the pace by one press: multiplied or divided by 1.5."""

    name: str
    words: str  # the resulting pace
    by: str


@dataclass(frozen=True, slots=True)
class Summary:
    sentence: str
    tone: str
    parts: list[Part]
    settled: int
    percent: int
    rate_now: float | None  # measured by `progress.rates_now`; None when nothing is being sent
    pace_words: str
    picture: replay_outlook.ProgressPicture | None
    is_live: bool
    is_moving: bool  # polled every second: jobs are being sent or in flight
    can_pause: bool
    can_resume: bool
    can_cancel: bool
    can_pace: bool
    can_approve: bool
    steps: list[Faster]
    amount: str  # value of the field for another pace
    is_ramp: bool
    patch: str
    how: list[tuple[str, str]]  # options that are not the default
    remaining: str  # time left at the current pace, as text
    scope: str
    scope_url: str
    sent_none: bool  # it has ended, with every job excluded or refused


@dataclass(frozen=True, slots=True)
class FailedAgain:
    """Group of jobs of this replay that failed again."""

    title: str
    culprit: str  # place in the code, which distinguishes groups with one title
    count: int
    compared: str  # comparison with the previous errors of these jobs, as text
    group_url: str
    failures_url: str


LATEST, ALL = "latest", "all"  # lists of items in several states
LATEST_FIRST = (LATEST, ItemState.FAILED_AGAIN, ItemState.SUCCEEDED)


@dataclass(frozen=True, slots=True)
class Tab:
    state: str
    words: str
    count: int | None
    url: str
    is_on: bool


@dataclass(frozen=True, slots=True)
class Job:
    """Row of the list of jobs."""

    item: ReplayItem
    compared: str  # of a job that failed again: whether the error is that of the previous run


def parts(replay: Replay) -> list[Part]:
    found, x = [], 0.0
    for state, words, tone in PARTS:
        count = getattr(replay, state)
        width = count / replay.total * 100 if replay.total else 0
        if count:
            found.append(Part(state, _called(replay, state, words), tone, count, round(x, 3), round(width, 3)))
        x += width
    return found


def _called(replay: Replay, state: str, words: str) -> str:
    # Jobs are cancelled only with their replay; otherwise they were excluded, refused, or could no longer be sent.
    if state != ItemState.CANCELLED or replay.state in (ReplayState.CANCELLED, ReplayState.STOPPED):
        return words
    return "not sent" if replay.state == ReplayState.DONE else "will not be sent"


def row(replay: Replay) -> Row:
    return Row(
        replay,
        reverse("redrive:replay-detail", args=[replay.pk]),
        scope(replay),
        parts(replay),
        replay.settled,
        _sent_none(replay),
        _drafted_jobs(replay) if replay.state == ReplayState.DRAFT else None,
    )


def scope(replay: Replay) -> str:
    """Return the requested scope as text."""
    if replay.hides_sources:
        return "jobs of several sources; only your sources are shown"
    if replay.selection:
        return "1 selected job" if len(replay.selection) == 1 else f"{len(replay.selection):,} selected jobs"
    return language.reading(language.parse(replay.query))


def summary(replay: Replay, over_time, phases, *, may_act: bool, may_approve: bool) -> Summary:
    sending = replay.state in {s.value for s in SENDING}
    over = replay.state in ENDED
    paused = replay.state in {ReplayState.PAUSED, ReplayState.HELD}
    waits = replay.sent + replay.running
    can_pace = may_act and not over and replay.planned > 0 and replay.state != ReplayState.AWAITING_APPROVAL
    # A cancelled replay is polled until its sent jobs are settled; a finished one no longer changes.
    return Summary(
        sentence=sentence(replay),
        tone=_tone(replay),
        parts=parts(replay),
        settled=replay.settled,
        percent=int(replay.settled_percent),
        rate_now=over_time.rate_now if sending and replay.planned else None,
        pace_words=pace_text(replay.pace),
        picture=replay_outlook.draw_progress(over_time, phases),
        is_live=not over or (waits > 0 and replay.state != ReplayState.DONE),
        is_moving=sending and replay.total <= FAST_UP_TO,
        can_pause=may_act and sending and replay.planned > 0,
        can_resume=may_act and paused,
        can_cancel=may_act and not over and replay.planned > 0,
        can_pace=can_pace,
        can_approve=may_act and may_approve,
        steps=steps(replay) if can_pace else [],
        amount=replay_paces.amount(replay.pace),
        is_ramp=bool(replay.pace.get("ramp")),
        patch=json.dumps(replay.patch, indent=2, ensure_ascii=False) if replay.patch else "",
        how=how(replay),
        remaining=remaining(replay, over_time.rate_now),
        scope=scope(replay),
        scope_url="" if replay.selection and not replay.hides_sources else _scope_url(replay),
        sent_none=_sent_none(replay),
    )


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft with its number of jobs, and the form that opens it as a preview."""

    jobs: int  # matching jobs, without excluded ones
    url: str
    fields: list[tuple[str, str]]  # fields of that form: scope, pace, options, groups, reason
    method: str  # get, or post if the fields are too long for a URL


def draft(replay: Replay, left_out: Collection[str]) -> Draft | None:
    """Return the draft; None if the replay is not a draft. `left_out`: fingerprints of excluded groups."""
    if replay.state != ReplayState.DRAFT:
        return None
    fields = [("reason", replay.reason), ("draft", str(replay.pk)), *replay_forms.Pace.fields_of(replay.pace)]
    fields += replay_forms.Options.fields_of(replays.Options.from_replay(replay), left_out)
    if replay.selection:
        fields.append(("selection", ",".join(map(str, replay.selection))))
    else:
        fields.append(("q", replay.query))
    is_long = sum(len(value) for _, value in fields) > _LONGEST_ADDRESS
    return Draft(_drafted_jobs(replay), reverse("redrive:replay-new"), fields, "post" if is_long else "get")


def _drafted_jobs(replay: Replay) -> int:
    return max(0, replay.matched - sum(row["count"] for row in replay.blocked))


def unattended_words(found: Unattended | None, viewer: Viewer) -> str:
    """Return a sentence if no worker takes its jobs, with the queues visible to the viewer; otherwise ""."""
    if found is None:
        return ""
    queues = [f"{queue or 'no queue'} of {source}" for source, queue in found.queues if viewer.may(VIEWER, source)]
    named = list_some(queues, _MOST_QUEUES) or "its queues"
    since = f"{clock(found.since, timezone.now())} {zone_name(found.since)}"
    return f"No worker has taken a job since {since}. Check that a worker consumes from {named}."


def guard_off(found: SentWhileOff | None) -> str:
    """Return that outcomes were not reported because the guard was off, and what to do; otherwise ""."""
    if found is None:
        return ""
    now, count = timezone.now(), found.items.count()
    since = clock(found.off.since, now)
    jobs = "1 job" if count == 1 else f"{count:,} jobs"
    if found.off.until is None:
        when, which = (
            f"The guard has been off since {since} {zone_name(found.off.since)}",
            f"are not reported. Switch it on: {COMMAND} on",
        )
    else:
        when = f"The guard was off from {since} to {clock(found.off.until, now)} {zone_name(found.off.until)}"
        which = "were not reported"
    then = "When their queue is empty, these jobs move to Uncertain within minutes: record there whether each ran."
    return f"{when}: outcomes of {jobs} {which}. {then}"


def _sent_none(replay: Replay) -> bool:
    return replay.state == ReplayState.DONE and 0 < replay.total == replay.cancelled


def _tone(replay: Replay) -> str:
    if replay.state == ReplayState.DONE and replay.failed_again:
        return "dead" if replay.failed_again > replay.succeeded else "retrying"
    return replay.state


def remaining(replay: Replay, rate_now: float) -> str:
    """Return the time until all is sent, as text; "" if unknown. `rate_now`: measured, in jobs per second."""
    if not replay.planned or not replay.rate or replay.state in ENDED:
        return ""
    if replay.state == ReplayState.CANARY:
        return "known after the canary"
    which = "the present rate" if replay.state in SENDING else "its starting rate"
    at_present = f"about {_roughly(replay.planned / (min(rate_now, replay.rate) or replay.rate))} at {which}"
    if rate_now and rate_now < _MUCH_SLOWER * replay.rate:
        return at_present  # workers are slower than the pace
    ramp, every = replay.pace.get("ramp") or {}, replay.pace.get("every")
    # After a hold, a constant pace also climbs back to its rate.
    to = ramp.get("to") or replay.pace.get("rate") or (1 / every if every else 0)
    learned = learned_limit(replay)
    limit = min(to, learned[0]) if learned else to
    if replay.rate >= limit:
        return duration(replay.planned / replay.rate)
    if learned:
        return f"{at_present}, {_roughly(replay.planned / limit)} at the learned limit"
    if replay.state not in _CLIMBS_FIRST:
        return at_present  # slowed down: the speed of the next climb is unknown
    begins = min(ramp.get("from") or replay.rate, replay.rate)
    soonest = _climbing_s(replay.planned, replay.rate, to, to - begins)
    return f"{at_present}, {duration(soonest)} at the soonest"


def _roughly(seconds: float) -> str:
    """Return a duration as text, in full minutes from five minutes on."""
    return duration(round(seconds / 60) * 60 if seconds >= 300 else seconds)


def _slowed_down(replay: Replay) -> str:
    """Return when and why a sending replay was slowed down; "" if it was not."""
    evidence = replay.evidence or {}
    before = untrusted.number(evidence.get("rate"))
    if replay.state not in SENDING or evidence.get("kind") not in _SLOWED or not before:
        return ""
    if not replay.planned or not replay.rate or replay.rate >= before:
        return ""
    at = datetime.fromisoformat(evidence["at"])
    return f"at {clock(at, timezone.now())} {zone_name(at)}. {evidence['sentence']}"


def _climbing_s(jobs: int, rate: float, to: float, full: float) -> float:
    """Return the seconds in which `jobs` are sent if the rate climbs at its maximum speed (docs/replays.md, Climb)."""
    seconds, left = 0, float(jobs)
    while rate < to and left > 0:
        left -= rate
        rate = min(to, rate + min(rate / 10, full / 45))
        seconds += 1
    return seconds + max(0.0, left) / rate


def _scope_url(replay: Replay) -> str:
    """Return the URL of the requested scope, or of the replay's own jobs once its items exist."""
    own = "" if replay.state == ReplayState.AWAITING_APPROVAL else f"replay:{replay.pk}"
    return links.list_url(f"{replay.query} {own}".strip())


def sentence(replay: Replay) -> str:
    """Return the state in a sentence."""
    return _SENTENCES.get(replay.state, _sending_sentence)(replay)


def _jobs(replay: Replay) -> str:
    return "1 job" if replay.total == 1 else f"{replay.total:,} jobs"


def _outcomes(replay: Replay) -> str:
    again = f", {replay.failed_again:,} failed again" if replay.failed_again else ""
    return f"{replay.succeeded:,} succeeded{again}"


def _in_flight(replay: Replay) -> str:
    waits = replay.sent + replay.running
    return f" {waits:,} in flight." if waits else ""


def _uncertain(replay: Replay) -> str:
    return f" {replay.uncertain:,} with unknown outcome." if replay.uncertain else ""


def _draft_sentence(replay: Replay) -> str:
    jobs = max(0, replay.matched - sum(row["count"] for row in replay.blocked))
    return f"Draft with {jobs:,} job{'' if jobs == 1 else 's'}. Nothing was sent."


def _approval_sentence(replay: Replay) -> str:
    return f"{_jobs(replay)} waiting for another operator's approval. Nothing was sent."


def _waiting_sentence(replay: Replay) -> str:
    begun = f"; {_outcomes(replay)}" if replay.sent + replay.running or replay.settled else ""
    return f"Outside sending hours: {replay.planned:,} of {_jobs(replay)} not sent yet{begun}."


def _done_sentence(replay: Replay) -> str:
    jobs, is_one = _jobs(replay), replay.total == 1
    if replay.failed_again == 0 and replay.succeeded == replay.total:
        return "The job succeeded." if is_one else f"All {jobs} succeeded."
    if _sent_none(replay):
        return "The job was not sent." if is_one else f"None of {jobs} were sent."
    never = f" {replay.cancelled:,} not sent; they stay dead." if replay.cancelled else ""
    details = f"Of {jobs}, {_outcomes(replay)}.{_uncertain(replay)}{never}"
    if replay.sent:
        more = "" if replay.sent == replay.total else f" {details}"
        return f"{replay.sent:,} of {jobs} sent. Their source does not report outcomes.{more}"
    return details


def _ended_sentence(replay: Replay) -> str:
    never = f"{replay.cancelled:,} not sent and still dead"
    return f"{replay.get_state_display()}: {never}; {_outcomes(replay)}.{_in_flight(replay)}"


def _paused_sentence(replay: Replay) -> str:
    left = f"{replay.planned:,} of {_jobs(replay)} not sent yet"
    return f"Paused: {left}; {_outcomes(replay)}.{_in_flight(replay)}"


def _blocked_sentence(replay: Replay) -> str:
    return f"Held: {replay.current_hold_reason or 'no reason recorded'}"


def _sending_sentence(replay: Replay) -> str:
    sent = f"{replay.sent_in_all:,} of {replay.total:,} sent"
    if replay.planned:
        phase = {ReplayState.CANARY: "Canary", ReplayState.RAMPING: "Ramping up"}.get(replay.state, "Sending")
        then = " The rest follow if the canary succeeds." if replay.state == ReplayState.CANARY else ""
        return f"{phase}: {sent}; {_outcomes(replay)}.{then}"
    if replay.sent + replay.running or replay.uncertain:
        rest = f"{sent}, the rest is excluded" if replay.cancelled else "All sent"
        return f"{rest}; {_outcomes(replay)}.{_in_flight(replay)}{_uncertain(replay)}"
    return f"Of {_jobs(replay)}, {_outcomes(replay)}."


_SENTENCES: dict[str, Callable[[Replay], str]] = {
    ReplayState.DRAFT: _draft_sentence,
    ReplayState.AWAITING_APPROVAL: _approval_sentence,
    ReplayState.WAITING: _waiting_sentence,
    ReplayState.DONE: _done_sentence,
    ReplayState.CANCELLED: _ended_sentence,
    ReplayState.STOPPED: _ended_sentence,
    ReplayState.PAUSED: _paused_sentence,
    ReplayState.HELD: _blocked_sentence,
}


def steps(replay: Replay) -> list[Faster]:
    """Return the faster and slower pace, with their results."""
    found = []
    for name, by in BY.items():
        if (pace := replay_paces.scaled(replay.pace, by)) is not None:
            words = pace_text(pace).removeprefix("careful, ")
            found.append(Faster(name.capitalize(), words, name))
    return found


def how(replay: Replay) -> list[tuple[str, str]]:
    """Return the options that are not the default, as text."""
    found = []
    if replay.attempts == "kept":
        found.append(("Attempts", "remaining attempts of each job"))
    elif replay.attempts != "reset":
        found.append(("Attempts", f"{replay.attempts} for each job"))
    if replay.to_queue:
        found.append(("Target queue", replay.to_queue))
    if replay.same_job_id:
        found.append(("Job id", "original"))
    if replay.accepted:
        found.append(("Accepted", ", ".join(replay_forms.accepted_jobs(name) for name in replay.accepted)))
    if slowed_down := _slowed_down(replay):
        found.append(("Slowed down", slowed_down))
    if replay.planned and replay.state not in ENDED and (learned := learned_limit(replay)):
        limit, failed_at = map(figures.rate, learned)
        found.append(("Learned limit", f"{limit}: jobs failed at {failed_at}. Change the pace to lift the limit."))
    return found


def failed_again_group(replay: Replay, found: replays.FailedGroup) -> FailedAgain:
    group = found.group
    return FailedAgain(
        str(group),
        group.culprit,
        found.count,
        replays.compare_errors([found]),
        reverse("redrive:group-detail", args=[group.name]),
        links.list_url(f"replay:{replay.pk} group:{group.name}"),
    )


def default_list(replay: Replay) -> str:
    """Return the list that the page opens with: jobs that failed again, otherwise the latest sent."""
    if replay.failed_again:
        return ItemState.FAILED_AGAIN
    return ItemState.CANCELLED if replay.cancelled and not replay.sent_in_all + replay.planned else LATEST


def read_items(viewer: Viewer, replay: Replay, which: str, after: str | None, limit: int) -> replays.ItemPage:
    """Return a page of the selected list. `latest` has one page: jobs in flight, then the latest settled jobs."""
    if which != LATEST:
        state, is_latest_first = None if which == ALL else which, which in LATEST_FIRST
        return replays.items(viewer, replay, state=state, after=after, limit=limit, is_latest_first=is_latest_first)
    rows: list[ReplayItem] = []
    for states in ((ItemState.RUNNING, ItemState.SENT), (ItemState.SUCCEEDED, ItemState.FAILED_AGAIN)):
        of_these = [
            item
            for state in states
            if getattr(replay, state)
            for item in replays.items(viewer, replay, state=state, limit=limit, is_latest_first=True).rows
        ]
        rows += sorted(of_these, key=lambda item: -item.n)
    return replays.ItemPage(rows[:limit], None, {})


def jobs(viewer: Viewer, items: list[ReplayItem]) -> list[Job]:
    """Return the rows of the list, each failure compared with the run before."""
    before = replays.read_errors_before(viewer, items)
    return [Job(item, _compared(item, before[item.pk]) if item.pk in before else "") for item in items]


def _compared(item: ReplayItem, before: Group | None) -> str:
    if before is None:
        return ""
    if before.pk == item.failed_group_id:
        return "Same error as before"
    now, was = (class_name(text) for text in (item.outcome.partition(":")[0], before.error_type))
    if now == was:
        return f"New error: {now}, not as before (was {part_first(before.title)})"
    return f"New error: {now} (was {was})"


def page_url(replay: Replay, range_name: str, items: str = "") -> str:
    """Return the URL of the page with a time range and a list of jobs; "" for the defaults."""
    fields = {name: value for name, value in ((time_range.PARAMETER, range_name), ("items", items)) if value}
    url = reverse("redrive:replay-detail", args=[replay.pk])
    return f"{url}?{urlencode(fields)}" if fields else url


def tabs(replay: Replay, on: str, range_name: str = "") -> list[Tab]:
    """Return the lists: one per state in order of attention, then the latest and all."""
    listed: list[tuple[str, str, int | None]] = [
        (state, _called(replay, state, words), count)
        for state, words, _ in sorted(PARTS, key=lambda part: part[0] != ItemState.FAILED_AGAIN)
        if (count := getattr(replay, state)) or on == state
    ]
    at = 1 if replay.failed_again or on == ItemState.FAILED_AGAIN else 0
    if replay.sent_in_all or on == LATEST:
        listed.insert(at, (LATEST, "latest", None))
    listed.append((ALL, "all", replay.total))
    return [
        Tab(name, words, count, f"{page_url(replay, range_name, name)}#items", on == name)
        for name, words, count in listed
    ]


@dataclass(frozen=True, slots=True)
class Next:
    """Next steps of an ended replay."""

    words: str
    failures: str  # label of the link to its dead jobs; "" for none
    failures_url: str
    replay_url: str
    is_cause_first: bool = False  # some jobs failed again: to read why comes before another replay


def next_steps(replay: Replay, dead: int, compared: str, still_dead: int = 0) -> Next | None:
    """Return the next steps; None while the replay is active.

    `dead`: its jobs that are dead now. `compared`: their errors, as text. `still_dead`: dead jobs of its scope,
    including excluded ones.
    """
    if replay.state not in ENDED or (replay.sent + replay.running and replay.state != ReplayState.DONE):
        return None
    if not dead:
        done = "No job of this replay is dead." if replay.failed_again or replay.cancelled else ""
        if still_dead and not replay.uncertain:
            jobs = f"{still_dead:,} excluded job{'' if still_dead == 1 else 's'}"
            text = f"{done} {jobs} {'is' if still_dead == 1 else 'are'} still dead."
            query = f"{replay.query} state:dead"
            return Next(text.strip(), f"Open {jobs}", links.list_url(query), links.new_replay(query))
        return Next(f"{done} Nothing is left to do.".strip(), "", "", "") if not replay.uncertain else None
    words = [f"{compared}."] if compared else []
    if replay.failed_again:
        words.append("Fix the cause, then replay the failed jobs again.")
    if replay.cancelled:
        words.append(f"{replay.cancelled:,} job{' was' if replay.cancelled == 1 else 's were'} not sent.")
    text = f"replay:{replay.pk} state:dead"
    label = f"Open {dead:,} failure{'' if dead == 1 else 's'}"
    return Next(" ".join(words), label, links.list_url(text), links.new_replay(text), replay.failed_again > 0)


def coverage(matched: int, sent: int, off: tuple[int, int], others: int) -> str:
    """Return how the number of jobs follows from the matching ones; "" if all matching jobs are sent.

    `262 of 478 matching jobs: 216 in 10 groups are off.` `off`: jobs excluded with their group, and the number of
    groups. `others`: jobs excluded for other reasons.
    """
    jobs_off, groups = off
    parts = []
    if jobs_off:
        where = f" in {groups:,} group{'' if groups == 1 else 's'}" if groups else " in excluded groups"
        parts.append(f"{jobs_off:,}{where} {'is' if jobs_off == 1 else 'are'} off")
    if others > 0:
        parts.append(
            f"{others:,} {'is' if others == 1 else 'are'} excluded for other reasons"
            if parts
            else f"{others:,} {'is' if others == 1 else 'are'} excluded"
        )
    return f"{sent:,} of {matched:,} matching jobs: {', '.join(parts)}." if parts else ""


def coverage_of(replay: Replay) -> str:
    """Return the `coverage` of a replay; "" if all matching jobs are sent, or the replay is only partly visible."""
    if replay.seen_sources is not None or replay.state == ReplayState.DRAFT or not replay.matched:
        return ""
    off = sum(row["count"] for row in replay.blocked if row.get("code") == LEFT_OUT)
    groups = sum(row["phase"] == START for row in replay.set_aside)
    return coverage(replay.matched, replay.total, (off, groups), replay.matched - replay.total - off)


def numbers(text: str) -> dict[str, int]:
    """Return the numbers of a form; empty if they are not numbers."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, int)} if isinstance(found, dict) else {}
