"""Filing of reports as rows, in one transaction: failures, attempts, payloads, groups, counters.

Repeated reports, in any order, split over several transactions and processes, result in the same rows:

- a failure has a natural key (source, queue and job id of run 1), and so has an attempt;
- the highest attempt (`report.rank`) decides the state of a failure, not the order of arrival;
- `lost` is an unobserved end. A worker's own report on that attempt replaces it, whichever comes first;
- counters change only with a new attempt row.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed_copy
from datetime import datetime
from typing import Any

from django.db import connection

from jobs_admin import config, trust
from jobs_admin.core import search_terms
from jobs_admin.core.envelope import UNREAD
from jobs_admin.core.trace_context import find_trace
from jobs_admin.db import counters, statements
from jobs_admin.db.counters import Counted
from jobs_admin.ingest import group_sightings
from jobs_admin.ingest.group_sightings import Sighting
from jobs_admin.ingest.lineages import verify_lineages
from jobs_admin.ingest.report import LOST, Report, document_without_stack, rank
from jobs_admin.models import (
    Attempt,
    Failure,
    Group,
    GroupAlias,
    Notice,
    Payload,
    Release,
    Source,
    Traceback,
)
from jobs_admin.models import terms as index
from jobs_admin.models.failure import Caveat, FailureState
from jobs_admin.trust import unsealing


def write_notices(filed: Iterable[tuple[int, Report]]) -> None:
    """Write notices for the reports, (failure id, report) each, that request one. Existing notices stay unchanged."""
    notices = [notice for failure, report in filed for notice in _build_notices(failure, report)]
    Notice.objects.bulk_create(notices, ignore_conflicts=True)


def _build_notices(failure: int, report: Report) -> Iterable[Notice]:
    about = {
        "failure": failure,
        "source": report.source,
        "queue": report.queue,
        "task": report.task,
        "job_id": report.job_id,
        "run": report.run,
        "policy": report.policy,
    }
    if report.escalate:
        key = f"escalated:{failure}:{report.run}"
        yield Notice(
            key=key,
            type="job.escalated",
            severity="warning",
            source=report.source,
            body=_escalation_body(report) | about,
        )
    if report.crashes is not None:
        key = f"poison:{failure}:{report.run}"
        yield Notice(
            key=key,
            type="poison.quarantined",
            severity="critical",
            source=report.source,
            body=_quarantine_body(report) | about,
        )


def _escalation_body(report: Report) -> dict[str, Any]:
    """Return the body of the notice about a job that used up its attempts under a policy with `exhausted: escalate`."""
    tries = "its only attempt" if report.attempt == 1 else f"all {report.attempt} attempts"
    return {
        "title": f"{report.task} needs attention",
        "message": f"A job of {report.task} on {report.queue} failed {tries}; its policy escalates such jobs.",
        "error_type": report.error_type,
    }


def _quarantine_body(report: Report) -> dict[str, Any]:
    crashes = json.loads(report.crashes or "[]")
    workers = sorted({crash["worker"] for crash in crashes if crash["worker"]})
    times = "once" if len(crashes) == 1 else f"{len(crashes)} times"
    return {
        "title": f"{report.task} is in quarantine",
        "message": f"A job of {report.task} on {report.queue} crashed its worker {times} and will not start again.",
        "workers": workers[:20],
        "crashes": crashes,
    }


Name = tuple[str, str, str]  # source, queue and job id of run 1
Rank = tuple[int, int, int]

_NAME_COLUMNS = ("source", "queue", "first_job_id")
# What list and page show of a failure: columns of its latest failed attempt.
_DISPLAY_COLUMNS = (
    "task", "group_id", "error_type", "message", "traceback_id", "max_attempts", "failed_at", "worker", "host",
    "release", "tenant", "priority", "labels", "args", "kwargs", "headers", "redacted", "expires_at",
    "event_id",
)  # fmt: skip
_MESSAGE_COLUMNS = ("task", "max_attempts", "tenant", "priority", "args", "kwargs", "headers", "redacted")
_STATE_COLUMNS = ("job_id", "run", "state", "kind", "reason", "attempts", "due_at", "crashes")
_COLUMNS = (*_NAME_COLUMNS, *_STATE_COLUMNS, *_DISPLAY_COLUMNS, "first_failed_at", "received_at", "caveats", "made_at")
# Those that the search index contains, besides the trace in the headers.
_SEARCHED_COLUMNS = (
    "job_id", "task", "error_type", "message", "traceback_id", "worker", "host", "release", "tenant", "args", "kwargs",
    "event_id",
)  # fmt: skip
_ATTEMPT_COLUMNS = (
    "failure_id", "run", "attempt", "kind", "job_id", "item_id", "group_id", "traceback_id", "error_type", "message",
    "reason", "ended_at", "received_at", "duration_s", "delay_s", "worker", "host", "release", "policy",
)  # fmt: skip
_PAYLOAD_COLUMNS = ("failure_id", "run", "body", "size", "sha256", "is_whole", "payload_key")


@dataclass(frozen=True, slots=True)
class Written:
    failures: int  # new failures
    attempts: int


def write(reports: Sequence[Report], now: datetime) -> Written:
    """File the reports in the caller's transaction. If it raises, a rollback removes everything."""
    _register_sources(reports, now)
    trust.note(trust.current(), _signers(reports), now)
    reports = verify_lineages(reports)
    marks = _References(_find_or_create_groups(reports), _find_or_create_stacks(reports))
    known, by_name = _reports_by_failure(reports)
    unknown = {name: mine for name, mine in by_name.items() if name not in known and _is_about_failure(mine)}
    fresh = _insert(unknown, marks, now)
    # Another process may have written the same failures since they were read: they are known after all.
    raced = _failure_ids(set(unknown) - set(fresh))
    known = {**known, **raced}
    of_failure = {known[name]: by_name[name] for name in by_name if name in known}
    before = _update(of_failure, marks, now)
    of_failure.update({fresh[name]: mine for name, mine in unknown.items() if name in fresh})
    counted = _write_attempts(of_failure, before, marks, now)
    _write_payloads(of_failure, before)
    write_notices((it.failure, it.report) for it in counted)
    queues = {pk: name[:2] for name, pk in {**known, **fresh}.items()}
    _write_counters(counted, marks, queues, now)
    _write_totals(counted, queues, before)  # last, for the reason given there
    return Written(len(fresh), len(counted))


def _signers(reports: Iterable[Report]) -> set[tuple[str, str]]:
    """Return (source, key id) of the reports that workers sent; "" if unsigned."""
    return {(r.source, r.key_id) for r in reports if not r.is_seen and not config.keeps_dead(r.source)}


@dataclass(frozen=True, slots=True)
class _References:
    groups: dict[str, int]  # by fingerprint
    stacks: dict[str, int]  # by hash

    def group(self, report: Report) -> int | None:
        return self.groups[report.fingerprint.value] if report.fingerprint else None

    def stack(self, report: Report) -> int | None:
        return self.stacks.get(report.stack_sha256)


# -- references of failures -------------------------------------------------------------------------------------


def _register_sources(reports: Iterable[Report], now: datetime) -> None:
    """Register new sources and releases."""
    sources = sorted({r.source for r in reports})
    known = {name for (name,) in statements.find(Source, ("name",), among=("name", sources))}
    Source.objects.bulk_create(
        [Source(name=s, is_configured=s in config.sources()) for s in sources if s not in known], ignore_conflicts=True
    )
    first: dict[tuple[str, str], datetime] = {}
    for r in reports:
        if r.release:
            first[r.source, r.release] = min(r.ended_at, first.get((r.source, r.release), now))
    versions: dict[str, list[str]] = defaultdict(list)
    for source, version in first:
        versions[source].append(version)
    news = set(first)
    for source, among in versions.items():
        news -= set(statements.find(Release, ("source", "version"), among=("version", among), source=source))
    Release.objects.bulk_create(
        [Release(source=s, version=v, at=first[s, v]) for s, v in sorted(news)], ignore_conflicts=True
    )


def _find_or_create_groups(reports: Iterable[Report]) -> dict[str, int]:
    first: dict[str, Report] = {}
    for r in reports:
        if r.fingerprint:
            first.setdefault(r.fingerprint.value, r)

    def find(values: Sequence[str]) -> dict[str, int]:
        found = dict(statements.find(Group, ("fingerprint", "id"), among=("fingerprint", values)))
        if len(found) < len(values):
            found |= dict(statements.find(GroupAlias, ("fingerprint", "group_id"), among=("fingerprint", values)))
        return found

    found = find(list(first))
    news = sorted(first.keys() - found.keys())
    Group.objects.bulk_create(
        [
            Group(
                fingerprint=value,
                error_type=r.error_type,
                message=r.fingerprint.title_message,
                culprit=r.fingerprint.culprit,
                first_seen=r.ended_at,
                last_seen=r.ended_at,
                first_release=r.release,
            )
            for value in news
            if (r := first[value]).fingerprint
        ],
        ignore_conflicts=True,
    )
    return found | find(news) if news else found


def _find_or_create_stacks(reports: Iterable[Report]) -> dict[str, int]:
    # The search terms of a stack come from its first report.
    first: dict[str, Report] = {}
    for r in reports:
        if r.stack_sha256:
            first.setdefault(r.stack_sha256, r)

    def find(hashes: Sequence[str]) -> dict[str, int]:
        return dict(statements.find(Traceback, ("sha256", "id"), among=("sha256", hashes)))

    found = find(list(first))
    news = sorted(first.keys() - found.keys())
    if not news:
        return found
    Traceback.objects.bulk_create([Traceback(sha256=h, text=first[h].stack) for h in news], ignore_conflicts=True)
    made = find(news)
    index.write_stacks(
        [(pk, first[h].stack_terms or search_terms.stack_document(first[h].stack)) for h, pk in made.items()]
    )
    return found | made


# -- failures ---------------------------------------------------------------------------------------------------


def _reports_by_failure(reports: Sequence[Report]) -> tuple[dict[Name, int], dict[Name, list[Report]]]:
    """Return the ids of known failures, and the reports of each failure in order of arrival.

    A report without lineage belongs to the job that it names; or, after a replay whose header was lost in transit, to
    the failure whose present run has that job id. The latter does not apply if the system stores its dead letters:
    there, an id is ambiguous without its queue (each queue of BullMQ counts from 1), and no header is lost.
    """
    known = _failure_ids({r.name for r in reports})
    counted = {source for source in {r.source for r in reports} if config.keeps_dead(source)}
    strays = defaultdict(set)
    for r in reports:
        if not r.has_lineage and r.name not in known and r.source not in counted:
            strays[r.source].add(r.job_id)
    by_job: dict[tuple[str, str], tuple[Name, int]] = {}  # -> name and current run
    for source, job_ids in strays.items():
        columns = ("id", "queue", "first_job_id", "job_id", "run")
        rows = statements.find(Failure, columns, among=("job_id", sorted(job_ids)), source=source)
        for pk, queue, first, job_id, run in sorted(rows, reverse=True):
            by_job[source, job_id] = (source, queue, first), run
            known[source, queue, first] = pk
    by_name: dict[Name, list[Report]] = defaultdict(list)
    for r in reports:
        name, run = r.name, r.run
        if not r.has_lineage and name not in known and r.source not in counted:
            # The first report of a job names it, even if a later one of the same job comes from another queue.
            name, run = by_job.setdefault((r.source, r.job_id), (name, 1))
        by_name[name].append(r if run == r.run else changed_copy(r, run=run))
    return known, by_name


def _failure_ids(names: Iterable[Name]) -> dict[Name, int]:
    by_queue: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, queue, job_id in names:
        by_queue[source, queue].append(job_id)
    found: dict[Name, int] = {}
    for (source, queue), job_ids in by_queue.items():
        rows = statements.find(
            Failure, ("first_job_id", "id"), among=("first_job_id", job_ids), source=source, queue=queue
        )
        found |= {(source, queue, job_id): pk for job_id, pk in rows}
    return found


def _is_about_failure(reports: Iterable[Report]) -> bool:
    """Return whether the reports concern a job that failed. A job that succeeded immediately is not stored.

    A success at a second attempt is stored: the report of its failure is delayed in a worker's spool. Dropping the
    success would leave the job `retrying`, then `lost`, and it would be replayed.
    """
    # A success with a reason ends a failure that was filed as lost, perhaps by another process that has not committed
    # yet. A success that was only seen in events does not count: its earlier failures were not seen, and no report
    # about them is in transit.
    return any(r.kind != "success" or (not r.is_seen and (r.attempt > 1 or r.has_lineage or r.reason)) for r in reports)


def _confirmed_reports(reports: Sequence[Report], reported: Container[tuple[int, int]] = ()) -> list[Report]:
    """Remove reports of lost or merely seen attempts whose end a worker reported.

    The worker's report is among these, or among the attempts (run, number) of `reported`. Of a report of a lost attempt
    only the message is stored, if the worker's report has none.
    """
    if len(reports) == 1 and reports[0].kind != LOST and not reports[0].is_seen:  # the usual case
        return list(reports)
    words = {(r.run, r.attempt) for r in reports if r.kind != LOST and not r.is_seen}
    ends = words | {(r.run, r.attempt) for r in reports if r.kind != LOST}
    return [
        r
        for r in reports
        if (r.run, r.attempt) not in (words if r.is_seen else ends if r.kind == LOST else ())
        and not ((r.is_seen or r.kind == LOST) and (r.run, r.attempt) in reported)
    ]


def _state(report: Report) -> str:
    if report.crashes is not None or report.kind in UNREAD:
        return FailureState.QUARANTINED.value
    return {"retry": FailureState.RETRYING, "success": FailureState.RECOVERED}.get(report.kind, FailureState.DEAD).value


def _state_columns(top: Report) -> dict[str, Any]:
    return {
        "job_id": top.job_id,
        "run": top.run,
        "state": _state(top),
        "kind": top.kind,
        "reason": top.reason,
        "attempts": top.attempt,
        "due_at": top.due_at,
        "crashes": top.crashes,
    }


def _display_columns(report: Report, marks: _References) -> dict[str, Any]:
    return {
        "task": report.task,
        "group_id": marks.group(report),
        "error_type": report.error_type,
        "message": report.message,
        "traceback_id": marks.stack(report),
        "max_attempts": report.max_attempts,
        "failed_at": report.ended_at,
        "worker": report.worker,
        "host": report.host,
        "release": report.release,
        "tenant": report.tenant,
        "priority": report.priority,
        "labels": report.labels,
        "args": report.args,
        "kwargs": report.kwargs,
        "headers": report.headers,
        "redacted": report.redacted,
        "expires_at": report.expires_at,
        "event_id": report.event_id,
    }


def _caveats(reports: Iterable[Report], expires_at: datetime | None, before: int | None) -> int | None:
    """Return the facts about the message that a replay needs, combined from these reports and `before`.

    A message that was once stored in full remains full, and a chord member remains one: so the order of reports is
    irrelevant.
    """
    caveats = before or 0
    for r in reports:
        if r.sealed is not None and caveats & Caveat.NO_MESSAGE:
            caveats += Caveat.TRUNCATED - Caveat.NO_MESSAGE
        if r.sealed is not None and r.is_raw_complete:
            caveats &= ~Caveat.TRUNCATED
        if r.is_chord_member:
            caveats |= Caveat.CHORD
        if r.is_formless:
            caveats |= Caveat.NO_FORM
        if not r.is_seen:
            caveats &= ~Caveat.SEEN
    caveats = caveats | Caveat.EXPIRES if expires_at else caveats & ~Caveat.EXPIRES
    return caveats or None


def _failed_reports(reports: Iterable[Report]) -> list[Report]:
    return [r for r in reports if r.kind != "success"]


def _insert(unknown: dict[Name, list[Report]], marks: _References, now: datetime) -> dict[Name, int]:
    """Insert unknown failures. Return the ids of those that did not exist."""
    rows, documents = [], {}
    # In order of arrival, because lists sort by id.
    for name, mine in unknown.items():
        seen = _confirmed_reports(mine)
        failed = _failed_reports(seen) or seen
        latest = max(failed, key=_precedence)
        row = dict(zip(_NAME_COLUMNS, name, strict=True))
        row |= _state_columns(max(seen, key=_precedence)) | _display_columns(latest, marks)
        row |= {"first_failed_at": min(r.ended_at for r in failed), "received_at": now}
        row["made_at"] = next((r.made_at for r in mine if r.made_at is not None), None)
        row["caveats"] = _caveats(mine, row["expires_at"], Caveat.NO_MESSAGE | Caveat.SEEN)
        rows.append([row[column] for column in _COLUMNS])
        documents[name] = search_document(row, latest)
    written = statements.insert(Failure, _COLUMNS, rows, conflict="DO NOTHING", returning=("id", *_NAME_COLUMNS))
    fresh = {(source, queue, job_id): pk for pk, source, queue, job_id in written}
    index.write_failures([(pk, documents[name]) for name, pk in fresh.items()])
    return fresh


def search_document(row: Mapping[str, Any], face: Report | None = None) -> str:
    """Return the text of the search index for a failure; `face` is the report that it shows."""
    # The report's terms equal those of the row, unless it is a success, or the row's name or job id comes from another
    # report.
    is_all = face is not None and face.terms and face.name == _name_of(row) and face.job_id == row["job_id"]
    made = face.terms if face is not None and is_all else document_without_stack(row)
    stack = row["traceback_id"]
    return f"{made} {search_terms.name('stack', str(stack))}" if stack else made


def _name_of(row: Mapping[str, Any]) -> Name:
    return row["source"], row["queue"], row["first_job_id"]


def _precedence(report: Report) -> tuple[Rank, bool]:
    """Return the sort key of reports: latest attempt, then reports that name the task."""
    return report.rank, report.task != ""


@dataclass(slots=True)
class _PriorAttempts:
    """Known attempts of a failure: the highest failed one in `face`, and the highest of each run."""

    face: Rank | None = None
    runs: dict[int, Rank] = field(default_factory=dict)
    reported: set[tuple[int, int]] = field(default_factory=set)  # attempts (run, number) whose end a worker reported


def _update(of_failure: dict[int, list[Report]], marks: _References, now: datetime) -> dict[int, _PriorAttempts]:
    """Merge the reports into known failures. Return the attempts that were known before."""
    before: dict[int, _PriorAttempts] = {pk: _PriorAttempts() for pk in of_failure}
    if not of_failure:
        return before
    rows = Failure.objects.filter(pk__in=of_failure).order_by("pk")
    if connection.features.has_select_for_update:
        # Locked in a fixed order; other writers of these rows wait for this transaction. "No key", because inserting an
        # attempt or a failure takes a share lock on its parent's key, and two holders could not both upgrade it.
        rows = rows.select_for_update(of=("self",), no_key=True)
    current = [dict(zip(("id", *_COLUMNS), values, strict=True)) for values in rows.values_list("id", *_COLUMNS)]
    known = Attempt.objects.filter(failure__in=of_failure)
    for pk, run, attempt, kind in known.values_list("failure_id", "run", "attempt", "kind"):
        it, place = before[pk], rank(run, attempt, kind)
        if kind != LOST:
            it.reported.add((run, attempt))
        if kind == "success":
            continue
        it.face = max(place, it.face or place)
        it.runs[run] = max(place, it.runs.get(run, place))
    changed, documents = [], []
    for row in current:
        change, face = _changes(row, of_failure[row["id"]], before[row["id"]], marks)
        new = row | change
        if new != row:
            changed.append([new[column] for column in _COLUMNS])
        # Other headers than those of the trace change with each attempt.
        if any(new[column] != row[column] for column in _SEARCHED_COLUMNS) or (
            new["headers"] != row["headers"] and find_trace(new["headers"]) != find_trace(row["headers"])
        ):
            documents.append((row["id"], search_document(new, face)))
    statements.insert(Failure, _COLUMNS, changed, conflict=statements.replace(_COLUMNS, key=(*_NAME_COLUMNS,)))
    index.write_failures(documents)
    return before


def _changes(
    row: dict[str, Any], reports: list[Report], before: _PriorAttempts, marks: _References
) -> tuple[dict[str, Any], Report | None]:
    """Return the changes to a failure by these reports, and the report that it now shows, if it is one of them."""
    change: dict[str, Any] = {}
    face = None
    seen = _confirmed_reports(reports, before.reported)
    if seen and _overrules(top := max(seen, key=_precedence), row):
        change |= _state_columns(top)
    failed = _failed_reports(seen)
    if failed:
        latest = max(failed, key=_precedence)
        is_better = bool((row["caveats"] or 0) & Caveat.SEEN) and not latest.is_seen and latest.rank == before.face
        if before.face is None or latest.rank > before.face or is_better:
            face = latest
            change |= _display_columns(latest, marks)
        elif not row["task"] and latest.task and latest.rank == before.face:
            # A better report of the same attempt: for a message that its queue dropped immediately, a copy names the
            # task.
            change |= {
                column: value for column, value in _display_columns(latest, marks).items() if column in _MESSAGE_COLUMNS
            }
            change["reason"] = latest.reason
        first = min(r.ended_at for r in failed)
        change["first_failed_at"] = first if before.face is None else min(first, row["first_failed_at"])
    change["caveats"] = _caveats(reports, change.get("expires_at", row["expires_at"]), row["caveats"])
    return change, face


def _overrules(top: Report, row: dict[str, Any]) -> bool:
    if row["state"] in {FailureState.REPLAYING, FailureState.GONE}:
        return top.run >= row["run"]  # this run has no report yet, or its source has the job again
    current = rank(row["run"], row["attempts"], row["kind"])
    if row["state"] == FailureState.DISCARDED:
        return top.rank[:2] > current[:2]
    return top.rank > current


# -- attempts, payloads, counters -------------------------------------------------------------------------------


def _write_attempts(
    of_failure: dict[int, list[Report]], before: dict[int, _PriorAttempts], marks: _References, now: datetime
) -> list[Sighting]:
    """Write the attempts. Return the new ones, each once."""
    first: dict[tuple[int, int, int, str], Report] = {}
    for pk in sorted(of_failure):
        seen = _confirmed_reports(of_failure[pk], before[pk].reported if pk in before else ())
        for r in sorted(seen, key=lambda r: not r.task):  # in the order in which their failure shows them
            first.setdefault((pk, r.run, r.attempt, r.kind), r)
    rows = [
        (
            pk, r.run, r.attempt, r.kind, r.job_id, r.item, marks.group(r), marks.stack(r), r.error_type, r.message,
            r.reason or r.observed, r.ended_at, now, r.duration_s, r.delay_s, r.worker, r.host, r.release, r.policy,
        )
        for (pk, *_), r in first.items()
    ]  # fmt: skip
    written = statements.insert(Attempt, _ATTEMPT_COLUMNS, rows, conflict="DO NOTHING", returning=_ATTEMPT_COLUMNS[:4])
    return [Sighting(row[0], first[row]) for row in written]


def _write_payloads(of_failure: dict[int, list[Report]], before: dict[int, _PriorAttempts]) -> None:
    """Store the raw message of each run's latest attempt. A complete message is not replaced by a partial one."""
    latest: dict[tuple[int, int], Report] = {}
    for pk, reports in of_failure.items():
        for r in reports:
            if r.sealed is not None:
                stored = latest.get((pk, r.run))
                if stored is None or (r.is_raw_complete, r.rank) > (stored.is_raw_complete, stored.rank):
                    latest[pk, r.run] = r
    later, earlier = [], []
    payload_key = unsealing.key_ids()[0]
    for (pk, run), r in sorted(latest.items(), key=lambda entry: entry[0]):
        known = before[pk].runs.get(run) if pk in before else None
        row = (pk, run, r.sealed, r.raw_size, r.raw_sha256, r.is_raw_complete, payload_key)
        if known is None or r.rank > known:
            later.append(row)
        elif r.is_raw_complete:
            earlier.append(row)
    table = Payload._meta.db_table
    replace = statements.replace(_PAYLOAD_COLUMNS, key=("failure_id", "run"))
    statements.insert(
        Payload, _PAYLOAD_COLUMNS, later, conflict=f"{replace} WHERE excluded.is_whole OR NOT {table}.is_whole"
    )
    statements.insert(Payload, _PAYLOAD_COLUMNS, earlier, conflict=f"{replace} WHERE NOT {table}.is_whole")


def _write_counters(
    counted: list[Sighting], marks: _References, queues: dict[int, tuple[str, str]], now: datetime
) -> None:
    groups: dict[tuple[int, datetime], list[int]] = defaultdict(lambda: [0, 0])
    by_queue: dict[tuple[str, str, datetime], list[int]] = defaultdict(lambda: [0, 0, 0])
    seen: dict[int, list[Sighting]] = defaultdict(list)
    for it in counted:
        r = it.report
        minute = r.ended_at.replace(second=0, microsecond=0)
        place = {"retry": 1, "success": 2}.get(r.kind, 0)
        by_queue[*queues[it.failure], minute][place] += 1
        group = marks.group(r)
        if group is not None:
            groups[group, minute][place] += 1
            seen[group].append(it)
    group_sightings.update_groups(seen)
    counters.add_group_counts(groups)
    counters.add_queue_counts(
        {key: dict(zip(("failed", "retried", "recovered"), n, strict=True)) for key, n in by_queue.items()}
    )


def _write_totals(
    counted: list[Sighting], queues: dict[int, tuple[str, str]], before: dict[int, _PriorAttempts]
) -> None:
    """Add these attempts to the totals for Prometheus.

    An attempt already counted as lost does not count as failed again.
    """
    found: dict[Counted, float] = defaultdict(float)
    for it in counted:
        r, (source, queue) = it.report, queues[it.failure]
        if r.kind == "success":
            found[Counted(counters.RECOVERED, source, queue)] += 1
            continue
        if r.kind == "retry":
            found[Counted(counters.RETRIES, source, queue)] += 1
        known = before[it.failure].runs.get(r.run) if it.failure in before else None
        if known == rank(r.run, r.attempt, LOST):
            continue
        found[Counted(counters.FAILURES, source, queue, r.task, counters.error_label(r.error_type, r.kind))] += 1
        if _state(r) == FailureState.DEAD:
            found[Counted(counters.DIED, source, queue, r.task)] += 1
    counters.add_totals(found)
