"""Obstacles to the replay of a dead job.

All counts of replayable jobs and all reasons why others cannot be replayed use them.

Each obstacle is a condition on the row of a failure, so that the database counts and excludes by the same condition.
Obstacles that currently apply to no job are omitted.

Messages that cannot be decrypted are estimated by sampling, because keys change seldom and a key is lost at one point
in time. Some messages, spread evenly over the ids, are decrypted; the border between a readable and an unreadable one
is found by bisection, and all messages between two unreadable ones count as unreadable. If this is wrong for a job,
only the preview is wrong: the sender decrypts every message before sending it and reports the one that it cannot
decrypt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from cryptography.fernet import InvalidToken
from django.db import connection
from django.db.models import Q

from jobs_admin import config
from jobs_admin.core.text import list_some, terminal_line
from jobs_admin.db import statements
from jobs_admin.fleet import heartbeats
from jobs_admin.fleet.heartbeats import SampledWorkers
from jobs_admin.models import Failure, FailureCount, Payload, Replay, ReplayItem, Source
from jobs_admin.models.failure import Caveat, FailureState
from jobs_admin.models.replay import OPEN_ITEM, ReplayState
from jobs_admin.queues import coverage
from jobs_admin.replays.options import Options
from jobs_admin.sources.base import READ_ONLY

_OPENABLE_SAMPLES = 16  # spread evenly over the ids
_LARGEST_SAMPLE = 64 * 1024  # bytes of the largest message that is decrypted for this


def find_unopenable_ranges() -> list[tuple[int, int]]:
    """Return (first, last) ids of failures between which no message can be decrypted; none if all can."""
    # Two subqueries: with both aggregates in one, SQLite scans the index from end to end.
    table = Payload._meta.db_table
    ends = f"SELECT (SELECT MIN(failure_id) FROM {table}), (SELECT MAX(failure_id) FROM {table})"
    ((first, last),) = statements.fetch_rows(ends)
    if first is None:
        return []
    step = max(1, (last - first) // (_OPENABLE_SAMPLES - 1))
    tried = _sample_openable([*range(first, last, step), last])
    found: list[tuple[int, int]] = []
    begin = None if not tried or tried[0][1] else first
    for (before, was_open), (after, is_open) in pairwise(tried):
        if was_open == is_open:
            continue
        border = _find_border(before, after, is_open)
        if is_open and begin is not None:
            found.append((begin, border - 1))
            begin = None
        else:
            begin = border
    # Later messages are encrypted with a key that exists.
    return found if begin is None else [*found, (begin, last)]


def _find_border(low: int, high: int, is_open: bool) -> int:
    """Return the first id of the border: it is like `high`, not like `low`."""
    while high - low > 1:
        middle = (low + high) // 2
        met = _sample_openable([middle])
        if not met or met[0][0] >= high or met[0][1] == is_open:
            high = middle
        else:
            low = met[0][0]
    return high


def _sample_openable(places: Iterable[int]) -> list[tuple[int, bool]]:
    """Return, for each place, the first failure from that id whose message is not large, and whether it opens."""
    table = Payload._meta.db_table
    first = (
        f"SELECT k.id FROM {table} k WHERE k.failure_id >= v.column1 AND k.is_whole AND k.size <= {_LARGEST_SAMPLE} "
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT p.failure_id, p.body FROM (VALUES {', '.join(f'({int(place)})' for place in places)}) AS v "
            f"JOIN {table} p ON p.id = ({first} ORDER BY k.failure_id LIMIT 1)"
        )
        return [(pk, _can_open(body)) for pk, body in sorted({row[0]: row[1] for row in cursor.fetchall()}.items())]


def _can_open(body: bytes) -> bool:
    try:
        config.payload_keys().decrypt(bytes(body))
    except InvalidToken:
        return False
    return True


TABLE = Failure._meta.db_table

OPEN = "open"
LEFT_OUT = "group"
WHY_NOT = {
    FailureState.RETRYING: "retrying automatically: they will run again",
    FailureState.REPLAYING: "already sent by a replay, outcome pending",
    FailureState.QUARANTINED: "in quarantine",
    FailureState.RECOVERED: "already recovered",
    FailureState.DISCARDED: "discarded",
    FailureState.GONE: "gone: no longer in their source, or sent where outcomes are not reported",
}


@dataclass(frozen=True, slots=True)
class Obstacle:
    code: str
    reason: str
    condition: str  # SQL condition on a dead failure; `{t}` stands for its table
    values: tuple[object, ...] = ()
    accept: str = ""  # the option that sends these jobs nevertheless
    index: str = ""  # index that SQLite needs to find these jobs
    place: Q | None = None  # the same condition on a counter, if counters have it

    @property
    def sql(self) -> str:
        """The condition on a row of the failures' table.

        SQLite would read a row of several kilobytes for one column. The rows of an obstacle are adjacent in some index,
        so their ids are selected from it once per statement.
        """
        if connection.vendor == "postgresql" or not self.index:
            return f"({self.condition.format(t=TABLE)})"
        by = f"INDEXED BY {self.index}"
        return (
            f"{TABLE}.id IN (SELECT o.id FROM {TABLE} o {by} WHERE o.state = 'dead' AND {self.condition.format(t='o')})"
        )


def find_obstacles(options: Options, now: datetime) -> list[Obstacle]:
    """Return the obstacles that are not accepted, by precedence: the first that applies to a job is its reason."""
    places = _dead_places()
    samples = {source: heartbeats.latest_samples(source, now) for source in _configured_sources(places)}
    found = [
        *_open(),
        *_sources(places),
        *_tasks(places, samples, now),
        *_queues(places, samples, options.to_queue),
        *_messages(now),
        *find_excluded_groups(options),
    ]
    return [one for one in found if one.accept not in options.accept or not one.accept]


def find_excluded_groups(options: Options) -> Iterator[Obstacle]:
    """Yield the excluded groups. They come last, so that they count only jobs without another obstacle."""
    if ids := options.without_groups:
        n = len(ids)
        reason = f"in {'an excluded group' if n == 1 else f'{n:,} excluded groups'}"
        condition = f"{{t}}.group_id IN ({', '.join(['%s'] * n)})"
        place = Q(group_id__in=ids)
        yield Obstacle(LEFT_OUT, reason, condition, ids, index="failure_by_group", place=place)


def _dead_places() -> dict[str, tuple[set[str], set[str]]]:
    """Return source -> queues and tasks that have dead jobs."""
    found: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    sql = f"SELECT DISTINCT source, queue, task FROM {FailureCount._meta.db_table} WHERE state = %s AND count > 0"
    for source, queue, task in statements.fetch_rows(sql, [FailureState.DEAD]):
        found[source][0].add(queue)
        found[source][1].add(task)
    return found


def _open() -> Iterator[Obstacle]:
    # If a source does not report how a job ends, jobs that a finished replay sent stay `sent`; their failures are gone,
    # not dead.
    waits = Q(sent__gt=0) & ~Q(state=ReplayState.DONE)
    if not Replay.objects.filter(Q(planned__gt=0) | Q(running__gt=0) | Q(uncertain__gt=0) | waits).exists():
        return
    states = ", ".join(f"'{state.value}'" for state in OPEN_ITEM)
    open_items = f"SELECT 1 FROM {ReplayItem._meta.db_table} i WHERE i.failure_id = {{t}}.id AND i.state IN ({states})"
    yield Obstacle(OPEN, "", f"EXISTS ({open_items})")


# -- destinations -------------------------------------------------------------------------------------------------


def _sources(places: dict[str, tuple[set[str], set[str]]]) -> Iterator[Obstacle]:
    configured = config.sources()
    away, closed = _read_states()
    unguarded = coverage.without_guard(places)
    for source in sorted(places):
        code, why = "", ""
        if source in unguarded:
            place = Q(source=source)
            yield Obstacle("seen", _SEEN, "{t}.source = %s", (source,), index="failure_by_source", place=place)
        elif source not in configured:
            code, why = "not_configured", "is not configured here (CELERY_BROKER_URL or REDRIVE_SOURCES)"
        elif source in away:
            code, why = "unreachable", "cannot be reached"
        elif source in closed:
            code, why = "read_only", f"is read-only: {closed[source]}"
        if code:
            yield Obstacle(
                code,
                f"source {source} {why}",
                "{t}.source = %s",
                (source,),
                index="failure_by_source",
                place=Q(source=source),
            )


def _read_states() -> tuple[set[str], dict[str, str]]:
    """Return the sources that are unreachable, and source -> why it accepts no changes, as last checked."""
    rows = Source.objects.filter(Q(is_reachable=False) | ~Q(findings=[])).values_list(
        "name", "is_reachable", "findings"
    )
    away: set[str] = set()
    closed: dict[str, str] = {}
    for name, is_reachable, findings in rows:
        if is_reachable is False:
            away.add(name)
        for one in findings:
            if one.get("id") == READ_ONLY:
                closed[name] = str(one.get("text", ""))
    return away, closed


def _tasks(
    places: dict[str, tuple[set[str], set[str]]], samples: dict[str, list[SampledWorkers]], now: datetime
) -> Iterator[Obstacle]:
    for source, latest in samples.items():
        known = heartbeats.known_tasks(source, now, latest)
        if known is None:
            continue
        # Messages without a task name have an obstacle of their own.
        unknown = sorted(task for task in places[source][1] - known if task and not task.startswith("celery."))
        if unknown:
            names = list_some([terminal_line(task, 60) for task in unknown], 3)
            reason = f"task not registered by any live worker of {source}: {names}"
            others = {task for other, (_, tasks) in places.items() if other != source for task in tasks}
            yield _place("unknown_task", reason, "task", unknown, source, is_shared=not others.isdisjoint(unknown))


def _queues(
    places: dict[str, tuple[set[str], set[str]]], samples: dict[str, list[SampledWorkers]], to_queue: str
) -> Iterator[Obstacle]:
    """Yield queues that an unguarded worker consumes: the outcomes of their jobs are not reported."""
    for source, latest in samples.items():
        wanted = {to_queue} if to_queue else places[source][0]
        for queue, guarded, workers in heartbeats.partly_guarded_queues(source, latest):
            if queue not in wanted:
                continue
            are = "has" if workers - guarded == 1 else "have"
            reason = (
                f"queue {terminal_line(queue, 60)}: {workers - guarded} of its {workers} live workers {are} no guard"
            )
            if to_queue:
                yield _place("unguarded", reason, "source", [source], source)
            else:
                is_shared = any(queue in queues for other, (queues, _) in places.items() if other != source)
                yield _place("unguarded", reason, "queue", [queue], source, is_shared=is_shared)


def _place(
    code: str, reason: str, column: str, names: list[str], source: str, *, accept: bool = True, is_shared: bool = False
) -> Obstacle:
    """Return an obstacle of all jobs of a source, or of those of some of its queues or tasks.

    The condition includes the source only if another one has the same names (`is_shared`): the index of names omits it.
    """
    condition, values = f"{{t}}.{column} IN ({', '.join(['%s'] * len(names))})", tuple(names)
    if is_shared:
        condition, values = f"{condition} AND {{t}}.source = %s", (*values, source)
    place = Q(source=source, **{f"{column}__in": names})
    return Obstacle(code, reason, condition, values, code if accept else "", f"failure_by_{column}", place)


def _configured_sources(places: dict[str, tuple[set[str], set[str]]]) -> list[str]:
    return sorted(places.keys() & config.sources().keys())


# -- properties of jobs -------------------------------------------------------------------------------------------

_BY_CAVEAT = "failure_with_caveat"
_SEEN = "seen, not replayable: no guard in its worker stored the message"
# Each part requires a value: a comparison with null, and its negation, are null and would exclude the job.
_EXPIRED = "{t}.caveats IS NOT NULL AND {t}.expires_at IS NOT NULL AND {t}.expires_at <= %s"


def _messages(now: datetime) -> Iterator[Obstacle]:
    special = f"FROM {TABLE} WHERE state = '{FailureState.DEAD}' AND caveats IS NOT NULL"
    seen = 0
    for (bits,) in statements.fetch_rows(f"SELECT DISTINCT caveats {special}"):
        seen |= bits
    if seen & Caveat.SEEN:
        yield _caveat("seen", _SEEN, Caveat.SEEN)
    if seen & Caveat.NO_MESSAGE:
        yield _caveat("no_message", "no message was stored", Caveat.NO_MESSAGE)
    if seen & Caveat.TRUNCATED:
        reason = "truncated: the message was too large to store completely"
        yield _caveat("truncated", reason, Caveat.TRUNCATED)
    if seen & Caveat.NO_FORM:
        reason = "message not in its queue system's format: it cannot get a new job ID, so it cannot be sent again"
        yield _caveat("no_form", reason, Caveat.NO_FORM)
    for first, last in find_unopenable_ranges():
        reason = "key missing: the message cannot be decrypted with the configured keys (REDRIVE_PAYLOAD_KEYS)"
        yield Obstacle("key_missing", reason, "{t}.id BETWEEN %s AND %s", (first, last))
    if seen & Caveat.CHORD:
        reason = "member of a chord that can no longer complete: the job would run, the chord's body would not"
        yield _caveat("chord", reason, Caveat.CHORD, accept="chord")
    past = connection.ops.adapt_datetimefield_value(now)
    if seen & Caveat.EXPIRES and statements.fetch_rows(f"SELECT 1 {special} AND expires_at <= %s LIMIT 1", [past]):
        reason = "expired: the expiry time set in the message has passed"
        yield Obstacle("expired", reason, _EXPIRED, (past,), "expired", _BY_CAVEAT)


def _caveat(code: str, reason: str, bit: int, accept: str = "") -> Obstacle:
    condition = f"{{t}}.caveats IS NOT NULL AND ({{t}}.caveats & {bit}) > 0"
    return Obstacle(code, reason, condition, accept=accept, index=_BY_CAVEAT)
