"""The desk's half of a history: an empty desk at will, and every count of it held against a model and against its link."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tests.histories.kit import Divergence

_SHOWN = 12
_LINKS_FOLLOWED = 4  # of many queues and groups: each is a search


class JobKey(NamedTuple):
    source: str
    queue: str
    job_id: str  # of run 1


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected states of a job on the desk. More than one state: which of them is a matter of time."""

    states: frozenset[str]
    run: int | None = None  # None: whichever
    attempts: int | None = None  # in the current run

    @classmethod
    def in_states(cls, *states: str, run: int | None = None, attempts: int | None = None) -> Expected:
        return cls(frozenset(states), run, attempts)


def open_desk(folder: Path, sources: str, store_url: str) -> None:
    """Set up Django in this process, once, on an empty desk in `folder`. `sources` is the text of sources.toml."""
    from tests.kit import migrated
    from tests.rigs.empty_desk import desk

    (folder / "sources.toml").write_text(sources)
    shutil.copyfile(migrated.database(), folder / "redrive.sqlite3")
    desk(folder, REDRIVE_SOURCES=str(folder / "sources.toml"), REDRIVE_REDIS_URL=store_url)


def empty_desk() -> None:
    """Every table as after the migrations, and nothing remembered of the history before."""
    from django.db import connection

    from tests.kit import migrated

    connection.ensure_connection()
    assert not connection.in_atomic_block
    with closing(sqlite3.connect(migrated.database())) as template:
        template.backup(connection.connection)
    forget_all()


def forget_all() -> None:
    """Drop what modules of the desk remember from round to round, as a new process has it."""
    from jobs_admin import config, ingest
    from jobs_admin.desk import overview
    from jobs_admin.groups import regrouping
    from jobs_admin.queues import sampling
    from jobs_admin.replays import sending
    from jobs_admin.retries import awaiting, pulling, rechecking

    for sender in sending._senders.values():
        sender.close()
    for remembered in (
        sending._senders, rechecking._rested, rechecking._places, pulling._threads, awaiting._timeouts_s, sampling._oldest,
        sampling._checked_at, regrouping._found,
    ):  # fmt: skip
        remembered.clear()
    ingest._reading = ingest._Reading()
    close_adapters()
    config.store.cache_clear()
    overview.forget()


def close_adapters() -> None:
    """Connections of this process to the sources; the next one who asks gets new ones."""
    from jobs_admin import config

    for name in config.sources():
        if config.adapter.cache_info().currsize:
            with contextlib.suppress(Exception):
                config.adapter(name).close()
    config.adapter.cache_clear()


def before_fork() -> None:
    """Close what must not be shared with a forked process."""
    from django.db import connections

    forget_all()
    connections.close_all()


def operator():
    """Actors in histories."""
    from jobs_admin.models.access import OPERATOR, Viewer

    return Viewer("ann", {"*": OPERATOR})


def compare(expected: Mapping[JobKey, Expected]) -> None:
    """The desk equals the model, and each count equals what its link shows. Raises Divergence, naming what differs."""
    compare_jobs(expected)
    compare_counts()


def compare_jobs(expected: Mapping[JobKey, Expected]) -> None:
    """Every job of the model exactly once, in its state, run and attempts; no other job."""
    from jobs_admin.models import Failure, Unfiled

    found: dict[JobKey, tuple[str, int, int, str]] = {}
    wrong = []
    columns = ("source", "queue", "first_job_id", "state", "run", "attempts", "reason")
    for source, queue, job_id, *values in Failure.objects.values_list(*columns):
        key = JobKey(source, queue, job_id)
        if key in found:
            wrong.append(f"{key} is there twice")
        found[key] = tuple(values)
    for key, must in expected.items():
        if key not in found:
            wrong.append(f"{key} is missing; expected {'/'.join(sorted(must.states))}")
            continue
        state, run, attempts, reason = found[key]
        for what, is_so, should in (
            ("state", state, must.states),
            ("run", run, {must.run}),
            ("attempts", attempts, {must.attempts}),
        ):
            if should != {None} and is_so not in should:
                wrong.append(
                    f"{key}: {what} {is_so!r}, expected {'/'.join(map(str, sorted(should)))} ({state}, run {run}: {reason})"
                )
    wrong += [f"{key} is on the desk and not in the model: {found[key]}" for key in found.keys() - expected.keys()]
    wrong += [f"unfiled: {why}" for why in Unfiled.objects.values_list("why", flat=True)]
    _refuse(wrong)


def compare_counts(*, with_attempts: bool = True) -> None:
    """Overview, queues, groups, facets and searches agree with each other and with the rows."""
    from jobs_admin import failures, groups, queues
    from jobs_admin.desk import overview
    from jobs_admin.models import Attempt, Failure, FailureCount
    from jobs_admin.models.failure import FailureState

    viewer, wrong = operator(), []
    rows = list(Failure.objects.values_list("pk", "source", "queue", "task", "group_id", "state", "run", "attempts"))
    by_state = Counter(row[5] for row in rows)
    by_queue = Counter((row[1], row[2], row[5]) for row in rows)
    by_group = Counter((row[4], row[5]) for row in rows)

    def must_equal(what: str, actual: object, truth: object) -> None:
        if actual != truth:
            wrong.append(f"{what}: {actual!r}, and its link shows {truth!r}")

    counted = {
        (source, queue, task, group or None, state): n
        for source, queue, task, group, state, n in FailureCount.objects.values_list(
            "source", "queue", "task", "group_id", "state", "count"
        )
        if n
    }
    must_equal("counters of failures", counted, dict(Counter(row[1:6] for row in rows)))
    empty_states = sorted(set(FailureState.values) - by_state.keys())
    # Of the states without a job one is searched for, which one depends on the history.
    for state in (*by_state, *empty_states[len(rows) % max(len(empty_states), 1) :][:1]):
        page = failures.search(viewer, f"state:{state}", limit=500)
        must_equal(f"state:{state} counts", page.count.number, by_state[state])
        if len(rows) <= 500:
            must_equal(
                f"state:{state} lists", sorted(row.pk for row in page.rows), sorted(r[0] for r in rows if r[5] == state)
            )
    if by_state:
        fullest = max(by_state, key=by_state.__getitem__)
        listed = sorted(row[0] for row in rows if row[5] == fullest)
        must_equal(f"state:{fullest} page by page", _listed(viewer, f"state:{fullest}", len(listed) // 2), listed)

    overview.forget()
    dead, more = overview.dead_by_queue(viewer)
    dead_queues = {(source, queue): n for (source, queue, state), n in by_queue.items() if state == "dead"}
    must_equal("overview: queues with dead jobs", len(dead) + more, len(dead_queues))
    for source, queue, n in dead:
        must_equal(f"overview: dead in {queue}", n, dead_queues.get((source, queue), 0))
    must_equal("overview: dead jobs and queues", overview._dead(viewer), (by_state["dead"], len(dead_queues)))
    for row in overview.sources(viewer):
        must_equal(
            f"overview: dead of {row.name}", row.dead, sum(n for (s, _), n in dead_queues.items() if s == row.name)
        )

    of_queues = queues.queue_page(viewer, limit=500).rows
    for row in of_queues:
        for state in ("dead", "retrying"):
            must_equal(f"queues: {state} in {row.queue}", getattr(row, state), by_queue[row.source, row.queue, state])
    missing = {(s, q) for (s, q, state), n in by_queue.items() if state == "dead"} - {
        (r.source, r.queue) for r in of_queues
    }
    must_equal("queues that are not listed", missing, set())

    page = groups.groups(viewer, limit=500)
    must_equal("groups: dead jobs of all", page.all_dead, by_state["dead"])
    must_equal("groups listed", {row.group.pk for row in page.rows}, {row[4] for row in rows if row[4]})
    attempts = list(Attempt.objects.values_list("failure_id", "run", "attempt", "kind", "group_id"))
    in_groups = Counter(group for *_, kind, group in attempts if group and kind != "success")
    for row in page.rows:
        for state in FailureState.values:
            must_equal(f"group {row.group.pk}: {state}", row.jobs_by_state.get(state, 0), by_group[row.group.pk, state])
        must_equal(f"group {row.group.pk}: dead", row.dead, by_group[row.group.pk, "dead"])
        if with_attempts:  # a group goes on counting those of failures that were pruned
            must_equal(f"group {row.group.pk}: failed attempts", row.count, in_groups[row.group.pk])
        found = _count(viewer, f"group:{row.group.fingerprint} state:dead")
        must_equal(f"group:{row.group.fingerprint} state:dead", found, by_group[row.group.pk, "dead"])

    facets = failures.facets(viewer, "state:dead", limit=500)
    must_equal("facet of queues", dict(facets["queue"]), dict(Counter(row[2] for row in rows if row[5] == "dead")))
    for queue in sorted({row[2] for row in rows})[:_LINKS_FOLLOWED]:
        found = _count(viewer, f'queue:"{queue}" state:dead')
        must_equal(f"queue:{queue} state:dead", found, sum(n for (_, q), n in dead_queues.items() if q == queue))
    wrong += _wrong_attempts(rows, attempts)
    _refuse(wrong)


def _count(viewer, text: str) -> int:
    from jobs_admin import failures
    from jobs_admin.core.query import parse

    return failures.count(viewer, parse(text, datetime.now(UTC))).number


def _listed(viewer, query: str, limit: int) -> list[int]:
    from jobs_admin import failures

    found: list[int] = []
    after = None
    while True:
        page = failures.search(viewer, query, after=after, limit=limit)
        found += [row.pk for row in page.rows]
        after = page.next
        if after is None:
            return sorted(found)


def _wrong_attempts(rows: Collection[tuple], attempts: Collection[tuple]) -> list[str]:
    """Each attempt once; a failure says as many attempts as its current run has."""
    wrong = [f"attempt {key} is there {n} times" for key, n in Counter(one[:4] for one in attempts).items() if n > 1]
    latest: dict[tuple[int, int], int] = defaultdict(int)
    for failure, run, attempt, *_ in attempts:
        latest[failure, run] = max(latest[failure, run], attempt)
    for pk, *_, state, run, lineage in rows:
        known = latest.get((pk, run))
        if known is not None and state not in ("replaying", "gone") and lineage != known:
            wrong.append(f"failure {pk} says {lineage} attempts in run {run}, its history has {known}")
    return wrong


def _refuse(wrong: list[str]) -> None:
    if wrong:
        more = f"\n… and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise Divergence("\n".join(["The desk is not what the model says:", *wrong[:_SHOWN]]) + more)
