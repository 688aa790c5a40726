"""A replay as a page shows it: its state in a sentence, its bar, its picture over time, what can be done with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from django.urls import reverse
from django.utils import timezone

from dashboard.replays import accepted as replay_accepted
from dashboard.replays import forms as replay_forms
from dashboard.replays import paces as replay_paces
from dashboard.replays import picture as replay_picture
from dashboard.web import links
from dashboard.web.figures import duration
from dashboard.web.moments import clock, zone_name
from dashboard.web.text import part_first
from jobs_admin import replays
from jobs_admin.core import query as language
from jobs_admin.core import untrusted
from jobs_admin.core.text import class_name
from jobs_admin.installation import COMMAND
from jobs_admin.models import Group, Replay, ReplayItem
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.models.replay import ENDED, SENDING, START, ItemState, ReplayState
from jobs_admin.replays import learned_limit
from jobs_admin.replays.obstacles import LEFT_OUT
from jobs_admin.replays.unreported import SentWhileOff, Unattended

STEP = 1.5  # of one press
_MUCH_SLOWER = 0.5  # of its rate, or less: workers limit the speed of a replay
_MOST_QUEUES = 3  # named in a sentence
_LONGEST_ADDRESS = 4_000  # characters of a form that is sent within an address
FAST_UP_TO = 100_000  # jobs: the page of more is too expensive to poll every second
BY = {"slower": 1 / STEP, "faster": STEP}

# In the order of the bar: what is settled first, what waits last.
PARTS = (
    ("succeeded", "succeeded", "recovered"),
    ("failed_again", "failed again", "dead"),
    ("running", "running", "replaying"),
    ("sent", "sent, waiting for a worker", "replaying"),
    ("uncertain", "uncertain", "quarantined"),
    ("planned", "not sent yet", "discarded"),
    ("cancelled", "cancelled", "discarded"),
)
_CLIMBS_FIRST = (ReplayState.AWAITING_APPROVAL, ReplayState.RAMPING)  # nothing has slowed it down
_SLOWED = ("backed_off", "slower")  # kinds of evidence


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the progress bar."""

    state: str
    words: str
    tone: str
    count: int
    x: float  # 0..100
    width: float


@dataclass(frozen=True, slots=True)
class Row:
    """A replay on the list."""

    replay: Replay
    url: str
    scope: str
    parts: list[Part]
    settled: int
    sent_none: bool
    drafted_jobs: int | None  # of a draft; None where it was started


@dataclass(frozen=True, slots=True)
class Faster:
    """One press: the pace times 1.5, or by it."""

    name: str
    words: str  # the pace that it makes
    by: str


@dataclass(frozen=True, slots=True)
class Summary:
    sentence: str
    tone: str
    parts: list[Part]
    settled: int
    percent: int
    rate_now: float | None  # measured, see `progress.rates_now`; None when nothing is being sent
    pace_words: str
    picture: replay_picture.Picture | None
    is_live: bool
    is_moving: bool  # polled every second: jobs are being sent or in flight
    can_pause: bool
    can_resume: bool
    can_cancel: bool
    can_pace: bool
    can_approve: bool
    steps: list[Faster]
    amount: str  # what the field for another pace holds
    is_ramp: bool
    patch: str
    how: list[tuple[str, str]]  # how its jobs are sent, where it is not as usual
    remaining: str  # how long the rest takes at the pace, in words
    scope: str
    scope_url: str
    sent_none: bool  # it ended, and every job of it was left out or refused


@dataclass(frozen=True, slots=True)
class FailedAgain:
    """A group of jobs of this replay that failed again."""

    title: str
    culprit: str  # place in the code, which distinguishes groups of one title
    count: int
    compared: str  # with the errors that these jobs died of before, in words
    group_url: str
    failures_url: str


LATEST, ALL = "latest", "all"  # lists of items that are not those of one state
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
    """A row of the list of jobs."""

    item: ReplayItem
    compared: str  # of one that failed again: whether the error is that of its run before


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
    # Only of a cancelled replay are jobs cancelled; else they are excluded, refused, or not fit to be sent any more.
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
    """Return the requested scope in words."""
    if replay.seen_sources is not None:
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
    # A cancelled replay is still alive while what it sent has not come home; of one that is done nothing more comes.
    return Summary(
        sentence=sentence(replay),
        tone=_tone(replay),
        parts=parts(replay),
        settled=replay.settled,
        percent=int(replay.settled_percent),
        rate_now=over_time.rate_now if sending and replay.planned else None,
        pace_words=replay_paces.in_words(replay.pace),
        picture=replay_picture.picture(over_time, phases),
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
        scope_url="" if replay.selection and replay.seen_sources is None else _scope_url(replay),
        sent_none=_sent_none(replay),
    )


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft: its number of jobs, and the form that opens it as a preview."""

    jobs: int  # that matched, less those left out
    url: str
    fields: list[tuple[str, str]]  # of the form that opens it: scope, pace, options, groups, reason
    method: str  # get, or post where the fields are too long for an address


def draft(replay: Replay, left_out: Collection[str]) -> Draft | None:
    """Return the draft; None where the replay is none. `left_out`: the fingerprints of the groups that it goes without."""
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
    """Return a sentence if no worker takes its jobs, with the queues that the viewer may see; else ""."""
    if found is None:
        return ""
    queues = [f"{queue or 'no queue'} of {source}" for source, queue in found.queues if viewer.may(VIEWER, source)]
    named, more = ", ".join(queues[:_MOST_QUEUES]) or "its queues", len(queues) - _MOST_QUEUES
    others = f" and {more:,} more" if more > 0 else ""
    since = f"{clock(found.since, timezone.now())} {zone_name(found.since)}"
    return f"No worker has taken a job since {since}. Check that a worker consumes from {named}{others}."


def guard_off(found: SentWhileOff | None) -> str:
    """Return that outcomes were not reported because the guard was off, and what to do; "" where that is not so."""
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
    """Return how long the rest takes to be sent, in words; "" where that is unknown. `rate_now`: measured, in jobs a second."""
    if not replay.planned or not replay.rate or replay.state in ENDED:
        return ""
    if replay.state == ReplayState.CANARY:
        return "known after the canary"
    which = "the present rate" if replay.state in SENDING else "its starting rate"
    at_present = f"about {_roughly(replay.planned / (min(rate_now, replay.rate) or replay.rate))} at {which}"
    if rate_now and rate_now < _MUCH_SLOWER * replay.rate:
        return at_present  # the workers are slower than the pace
    ramp, every = replay.pace.get("ramp") or {}, replay.pace.get("every")
    # A steady pace, too, climbs back to its rate after a hold.
    to = ramp.get("to") or replay.pace.get("rate") or (1 / every if every else 0)
    learned = learned_limit(replay)
    limit = min(to, learned[0]) if learned else to
    if replay.rate >= limit:
        return duration(replay.planned / replay.rate)
    if learned:
        return f"{at_present}, {_roughly(replay.planned / limit)} at the learned limit"
    if replay.state not in _CLIMBS_FIRST:
        return at_present  # it was slowed down: the speed of the next climb is not known
    begins = min(ramp.get("from") or replay.rate, replay.rate)
    soonest = _climbing_s(replay.planned, replay.rate, to, to - begins)
    return f"{at_present}, {duration(soonest)} at the soonest"


def _roughly(seconds: float) -> str:
    """Return a duration in words, in full minutes if five minutes or longer."""
    return duration(round(seconds / 60) * 60 if seconds >= 300 else seconds)


def _slowed_down(replay: Replay) -> str:
    """Return when and why a replay that is sending goes slower than before; "" where it does not."""
    evidence = replay.evidence or {}
    before = untrusted.number(evidence.get("rate"))
    if replay.state not in SENDING or evidence.get("kind") not in _SLOWED or not before:
        return ""
    if not replay.planned or not replay.rate or replay.rate >= before:
        return ""
    at = datetime.fromisoformat(evidence["at"])
    return f"at {clock(at, timezone.now())} {zone_name(at)}. {evidence['sentence']}"


def _climbing_s(jobs: int, rate: float, to: float, full: float) -> float:
    """Return the seconds in which `jobs` are sent if the rate climbs at its limit (docs/replays.md, Climb)."""
    seconds, left = 0, float(jobs)
    while rate < to and left > 0:
        left -= rate
        rate = min(to, rate + min(rate / 10, full / 45))
        seconds += 1
    return seconds + max(0.0, left) / rate


def _scope_url(replay: Replay) -> str:
    """Return the list of the requested scope; of the replay's own jobs once its items exist."""
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
    """Faster and slower, with what each comes to."""
    found = []
    for name, by in BY.items():
        if (pace := replay_paces.scaled(replay.pace, by)) is not None:
            words = replay_paces.in_words(pace).removeprefix("careful, ")
            found.append(Faster(name.capitalize(), words, name))
    return found


def how(replay: Replay) -> list[tuple[str, str]]:
    """Return the options that are not the default, in words."""
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
        found.append(("Accepted", ", ".join(replay_accepted.which(name) for name in replay.accepted)))
    if slowed_down := _slowed_down(replay):
        found.append(("Slowed down", slowed_down))
    if replay.planned and replay.state not in ENDED and (learned := learned_limit(replay)):
        limit, failed_at = map(replay_paces.rate_in_words, learned)
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
    """Return the list that the page opens on: what failed again, else the latest jobs that were sent."""
    if replay.failed_again:
        return ItemState.FAILED_AGAIN
    return ItemState.CANCELLED if replay.cancelled and not replay.sent_in_all + replay.planned else LATEST


def read_items(viewer: Viewer, replay: Replay, which: str, after: str | None, limit: int) -> replays.ItemPage:
    """Return a page of the chosen list. `latest` is one page: what is in flight, then the latest settled jobs."""
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


def tabs(replay: Replay, on: str) -> list[Tab]:
    """Return the lists: those of one state in the order of attention, then the latest and all."""
    url = reverse("redrive:replay-detail", args=[replay.pk])
    listed: list[tuple[str, str, int | None]] = [
        (state, _called(replay, state, words), count)
        for state, words, _ in sorted(PARTS, key=lambda part: part[0] != ItemState.FAILED_AGAIN)
        if (count := getattr(replay, state)) or on == state
    ]
    at = 1 if replay.failed_again or on == ItemState.FAILED_AGAIN else 0
    if replay.sent_in_all or on == LATEST:
        listed.insert(at, (LATEST, "latest", None))
    listed.append((ALL, "all", replay.total))
    return [Tab(name, words, count, f"{url}?items={name}#items", on == name) for name, words, count in listed]


@dataclass(frozen=True, slots=True)
class Next:
    """Next steps of an ended replay."""

    words: str
    failures: str  # label of the link to its dead jobs; "" where it has none
    failures_url: str
    replay_url: str


def next_steps(replay: Replay, dead: int, compared: str) -> Next | None:
    """Return what is next; None while it goes on. `dead`: its jobs that are dead now. `compared`: their errors, in words."""
    if replay.state not in ENDED or (replay.sent + replay.running and replay.state != ReplayState.DONE):
        return None
    if not dead:
        done = "No job of this replay is dead." if replay.failed_again or replay.cancelled else ""
        return Next(f"{done} Nothing is left to do.".strip(), "", "", "") if not replay.uncertain else None
    words = [f"{compared}."] if compared else []
    if replay.failed_again:
        words.append("Fix the cause, then replay the failed jobs again.")
    if replay.cancelled:
        words.append(
            f"{replay.cancelled:,} unsent job{'' if replay.cancelled == 1 else 's'} can be replayed at any time."
        )
    text = f"replay:{replay.pk} state:dead"
    label = f"Open {dead:,} failure{'' if dead == 1 else 's'}"
    return Next(" ".join(words), label, links.list_url(text), links.new_replay(text))


def coverage(matched: int, sent: int, off: tuple[int, int], others: int) -> str:
    """Return how the number of jobs follows from the matching ones: `262 of 478 matching jobs: 216 in 10 groups are off.`

    `off`: excluded with their group, and the number of those groups. `others`: excluded for another reason. "" where
    all that match are sent.
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
    """Return how the replay's number of jobs follows from what matched; "" where all are in it, or it is seen in part."""
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
