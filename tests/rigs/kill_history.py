"""Rules that hold between the lines that jobs wrote and the rows that the desk has of them, after workers were killed.

*Missing*: about-to-raise lines without a row of that job and attempt that reports a failure. *Vanished*: jobs that began, and of
which there is neither a line that they are through nor a row of their last attempt. Both must be none under late ack, but for
messages that kombu itself lost (see `bench/capture_kills.py`), and under early ack where a policy asks for the start ledger.
*Invented*, which must be none in any case: a row of a job that never began, a failure that was never raised, a success that never
was; more lost children than were killed. *Duplicates*: an attempt that began more than once must be reported so by the broker
(`redelivered`), and has one row of each kind. States and counters must say what the rows say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.rigs.journal_jobs import END, RAISE, START, Line

LOST = ("worker_lost", "lost_retry", "lost")  # kinds that tell of a process, not of what the job did
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class Desk:
    """The desk's rows, by SQL."""

    attempts: list[tuple[str, int, str]]  # of each row job, attempt, and kind; a retry after a lost child: `lost_retry`
    states: dict[str, tuple[str, int]]  # job -> state, attempts
    counted: dict[str, float] = field(
        default_factory=dict
    )  # by counters of the queue: failed, retried, recovered; and what heartbeats told
    in_groups: int = 0  # failed attempts, by the counters of groups


# To be run in a process of the desk.
QUERY = """
from django.db.models import Sum
sums = QueueCounter.objects.filter(step=60).aggregate(*(Sum(name) for name in ("failed", "retried", "recovered", "started", "succeeded")))
in_groups = GroupCounter.objects.filter(step=60).aggregate(n=Sum("failed") + Sum("retried"))["n"]
say({
    "attempts": [
        (job, attempt, "lost_retry" if kind == "retry" and error.endswith("WorkerLostError") else kind)
        for job, attempt, kind, error in Attempt.objects.values_list("failure__first_job_id", "attempt", "kind", "error_type")
    ],
    "states": {job: [state, n] for job, state, n in Failure.objects.values_list("first_job_id", "state", "attempts")},
    "counted": {name.partition("__")[0]: n or 0 for name, n in sums.items()},
    "in_groups": in_groups or 0,
})
"""


def desk(answer: dict[str, Any]) -> Desk:
    return Desk(
        [(job, attempt, kind) for job, attempt, kind in answer["attempts"]],
        {job: (state, n) for job, (state, n) in answer["states"].items()},
        answer["counted"],
        answer["in_groups"],
    )


def checked(sent: int, lines: Iterable[Line], filed: Desk, killed: Counter[str]) -> dict[str, Any]:
    """Names of jobs where there are few, else how many."""
    at: dict[str, dict[tuple[str, int], list[Line]]] = {what: defaultdict(list) for what in (START, RAISE, END)}
    for line in lines:
        at[line.what][line.job, line.attempt].append(line)
    rows: dict[tuple[str, int], set[str]] = defaultdict(set)
    for job, attempt, kind in filed.attempts:
        rows[job, attempt].add(kind)
    jobs = {f"j{n}" for n in range(sent)}
    began, through = {job for job, _ in at[START]}, {job for job, _ in at[END]}
    failed = {place for place, kinds in rows.items() if kinds - {"success"}}
    last: dict[str, int] = {}
    for job, attempt in at[START]:
        last[job] = max(attempt, last.get(job, 0))
    return {
        "jobs": sent,
        "began": len(began),
        "through": len(through),
        "attempts_about_to_raise": len(at[RAISE]),
        "rows_of_attempts": len(filed.attempts),
        "missing": list_or_count(at[RAISE].keys() - failed),
        "vanished": list_or_count(job for job in began - through if (job, last[job]) not in failed),
        "lost_before_they_start": list_or_count(jobs - began - {job for job, _ in rows}),
        "invented": list_or_count(_invented(at, rows, killed)),
        "children_lost": sum(_of_a_child(kinds) for kinds in rows.values()),
        "filed_lost": sum("lost" in kinds for kinds in rows.values()),
        "told_of_no_start": list_or_count(
            place for place, kinds in rows.items() if kinds & set(LOST) and place not in at[START]
        ),
        "attempts_begun_again": sum(len(starts) > 1 for starts in at[START].values()),
        "begun_again_unflagged": list_or_count(
            place for place, starts in at[START].items() if sum(not line.is_again for line in starts) > 1
        ),
        # What a main process had not told yet when it was killed is not counted: five seconds at most.
        "starts_counted": f"{filed.counted.get('started', 0):.0f} of {sum(map(len, at[START].values()))}",
        "through_and_told_as_lost": sum(
            job in through and state not in ("recovered",) for job, (state, _) in filed.states.items()
        ),
        # Their last attempt is to be retried, and that is nowhere.
        "gone_while_retrying": list_or_count(job for job, (state, _) in filed.states.items() if state == "retrying"),
        "wrong_states": list_or_count(_wrong_states(filed, through, rows)),
        "wrong_counters": _wrong_counters(filed),
    }


def _invented(
    at: dict[str, dict[tuple[str, int], list[Line]]], rows: dict[tuple[str, int], set[str]], killed: Counter[str]
) -> list[str]:
    found = []
    for place, kinds in rows.items():
        for kind in kinds:
            if kind == "success":
                is_true = place in at[END]
            elif kind in LOST:  # whoever has it may die between being given a job and the job's first line
                continue
            else:
                is_true = place in at[RAISE]
            if not is_true:
                found.append(f"{place[0]} {place[1]} {kind}")
    lost = sum(map(_of_a_child, rows.values()))
    if lost > killed["child"]:
        found.append(f"{lost} children lost, {killed['child']} killed")
    return found


def _of_a_child(kinds: set[str]) -> bool:
    return bool(kinds & {"worker_lost", "lost_retry"})


def _wrong_states(filed: Desk, through: set[str], rows: dict[tuple[str, int], set[str]]) -> list[str]:
    found = []
    for job, (state, attempts) in filed.states.items():
        if state == "retrying":
            continue
        kinds = rows[job, attempts]
        if "success" in kinds:
            is_right = state == "recovered"
        elif job in through:  # its child died before it could hand that in
            is_right = state == "dead" and bool(kinds & set(LOST))
        else:
            is_right = state == "dead" and bool(kinds - {"success", "retry", "lost_retry"})
        if not is_right:
            found.append(f"{job}: {state} after {attempts}, {'+'.join(sorted(kinds))}")
    return found


def _wrong_counters(filed: Desk) -> dict[str, str]:
    kinds = Counter(kind for *_, kind in filed.attempts)
    retried = kinds["retry"] + kinds["lost_retry"]
    true = {"failed": kinds.total() - retried - kinds["success"], "retried": retried, "recovered": kinds["success"]}
    true["in_groups"] = true["failed"] + retried
    counted = {**filed.counted, "in_groups": filed.in_groups}
    return {name: f"{counted.get(name)} for {n} rows" for name, n in true.items() if counted.get(name) != n}


def list_or_count(found: Iterable[object]) -> list[str] | int:
    named = sorted(map(str, found))
    return named if len(named) <= _MOST_NAMED else len(named)
