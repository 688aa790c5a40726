"""Attempts of a failure for one page: the latest, and the number of attempts of each run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count
from django.db.models.functions import Left

from jobs_admin.core.refused import NotFound
from jobs_admin.models import Attempt, Failure

MOST_ATTEMPTS = 64
EARLIER = 500  # attempts of a long run in one response
MESSAGE_SHOWN = 160  # characters


@dataclass(frozen=True, slots=True)
class Ended:
    """One attempt in a row of the timeline."""

    pk: int
    run: int
    attempt: int
    kind: str
    job_id: str
    error_type: str
    message: str  # its first MESSAGE_SHOWN characters
    reason: str
    ended_at: datetime
    duration_s: float | None
    delay_s: float | None
    worker: str
    host: str
    release: str
    policy: str


@dataclass(frozen=True, slots=True)
class History:
    ended: list[Ended]  # the latest, oldest first
    counts: dict[int, int]  # run -> its attempts, listed or not


def history(failure: Failure) -> History:
    """Return the latest MOST_ATTEMPTS attempts of all runs, and the number of attempts of each run."""
    found = list(_rows(failure.attempt_set.order_by("-run", "-attempt", "-ended_at", "-id")[: MOST_ATTEMPTS + 1]))
    counts: dict[int, int] = {}
    if len(found) > MOST_ATTEMPTS:
        found = _drop_partial(found, MOST_ATTEMPTS)
        runs = failure.attempt_set.order_by().values_list("run").annotate(n=Count("id"))
        counts = dict(runs)
    else:
        for ended in found:
            counts[ended.run] = counts.get(ended.run, 0) + 1
    return History(found[::-1], counts)


def earlier(failure: Failure, run: int, before: int | None) -> tuple[list[Ended], bool]:
    """Return attempts of a run below number `before` (None: all), oldest first, and whether there are earlier ones."""
    found = failure.attempt_set.filter(run=run, **({} if before is None else {"attempt__lt": before}))
    rows = list(_rows(found.order_by("-attempt", "-ended_at", "-id")[: EARLIER + 1]))
    more = len(rows) > EARLIER
    return (_drop_partial(rows, EARLIER) if more else rows)[::-1], more


def _rows(found) -> Iterator[Ended]:
    names = (
        "pk",
        "run",
        "attempt",
        "kind",
        "job_id",
        "error_type",
        "head",
        "reason",
        "ended_at",
        "duration_s",
        "delay_s",
    )
    more = ("worker", "host", "release", "policy")
    values = found.annotate(head=Left("message", MESSAGE_SHOWN + 1)).values_list(*names, *more)
    return (Ended(*row) for row in values)


def _drop_partial(latest: list[Ended], most: int) -> list[Ended]:
    """Return the first `most`, without splitting the rows of one attempt number.

    Further rows are requested by attempt number.
    """
    cut = latest[most]
    last = (cut.run, cut.attempt)
    complete = [ended for ended in latest[:most] if (ended.run, ended.attempt) != last]
    return complete or latest[:most]


def get(failure: Failure, pk: int) -> Attempt:
    """Return one attempt of the failure with the hash of its stack. Raises Attempt.DoesNotExist."""
    if pk >= 2**63:  # exceeds the range of ids
        raise Attempt.DoesNotExist
    return failure.attempt_set.select_related("traceback").defer("traceback__text").get(pk=pk)


def find(failure: Failure, run: int, attempt: int) -> Attempt:
    """Return the attempt with this number; of two reported ends, the last one. Raises Attempt.DoesNotExist."""
    pks = failure.attempt_set.filter(run=run, attempt=attempt).order_by("-ended_at", "-id").values_list("pk", flat=True)
    return get(failure, pks.first() or 2**63)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two attempts to compare."""

    left: Attempt
    right: Attempt
    ended: list[Ended]  # attempts to choose from, oldest first


def choose_pair(failure: Failure, left: str = "", right: str = "") -> Pair | None:
    """Return two attempts of the failure, each given as `2.1` (run and attempt) or by its id.

    By default, the latest failed attempt and the one that is most useful to compare it with; None without a second one.
    Raises NotFound.
    """
    ended = history(failure).ended
    after = _chosen(failure, right) or _get_or_none(failure, _latest_failed(ended))
    before = _chosen(failure, left) or _get_or_none(failure, _before(ended, after))
    if before is None and not right and after is not None:  # it failed once and has succeeded since
        before, after = after, _get_or_none(failure, _latest_success(ended))
    return None if after is None or before is None else Pair(before, after, ended)


def missing_pair(failure: Failure) -> str:
    """Return why there is no pair to choose, as a sentence."""
    if failure.attempt_set.exists():
        return "The failure has a single attempt: nothing to compare it with."
    return "The failure has no failed attempts to compare."


_ATTEMPT = re.compile(r"(\d{1,9})\.(\d{1,9})|(\d{1,19})", re.ASCII)


def _chosen(failure: Failure, text: str) -> Attempt | None:
    if not text:
        return None
    named = _ATTEMPT.fullmatch(text)
    try:
        if named is None:
            raise Attempt.DoesNotExist
        return get(failure, int(named[3])) if named[3] else find(failure, int(named[1]), int(named[2]))
    except Attempt.DoesNotExist as error:
        raise NotFound(f"Failure {failure.pk} has no attempt {text[:40]}.") from error


def _get_or_none(failure: Failure, pk: int | None) -> Attempt | None:
    return None if pk is None else get(failure, pk)


def _latest_failed(ended: Sequence[Ended]) -> int | None:
    return next((one.pk for one in reversed(ended) if one.kind != "success"), None)


def _latest_success(ended: Sequence[Ended]) -> int | None:
    return next((one.pk for one in reversed(ended) if one.kind == "success"), None)


def _before(ended: Sequence[Ended], right: Attempt | None) -> int | None:
    """Return the last attempt of the previous run, else the previous attempt; None without one.

    The previous run comes first because a replay changes most.
    """
    if right is None:
        return None
    failed = [one for one in ended if one.kind != "success" and one.pk != right.pk]
    runs = [one for one in failed if one.run < right.run] or [one for one in failed if one.run == right.run]
    earlier_ones = [one for one in runs if (one.run, one.attempt) < (right.run, right.attempt)] or runs
    return earlier_ones[-1].pk if earlier_ones else None
