"""Breakers in one worker.

It writes the outcomes of its jobs to the store; the breakers in the store decide which jobs may start.

The pool's children read open breakers from the board. The main process counts outcomes and puts jobs that may not start
on hold. One worker at a time, with a lease in the breaker's document, releases them. No job waits for a call in this
module. If the store is unreachable, the last known state stays in force for a minute; then all breakers are closed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis

from jobs_admin.core import keys, untrusted
from jobs_admin.core.breaker import CLOSED, OPEN, Breaker, Outcome
from jobs_admin.worker import report
from jobs_admin.worker.breaker_mode import FleetMode
from jobs_admin.worker.decision import Decision
from jobs_admin.worker.delays import Delays
from jobs_admin.worker.next_message import HOLD, HOLD_FAILED
from jobs_admin.worker.open_breakers import OpenBreakers, count_of, expiry_of, is_overdue, left_s, opening_of, ticket_of
from jobs_admin.worker.pending_outcomes import PendingOutcomes
from jobs_admin.worker.policies import Board, Chosen, InForce, TooLong
from jobs_admin.worker.report import Origin

HELD = "held"  # reason: the breaker is open
MOST_BREAKERS = 100  # of a source
RECHECK_S, LONGEST_RECHECK_S, RECHECKED_PER_S = (
    900.0,
    6 * 3600.0,
    50,
)  # until a job on hold is checked if no worker releases it
LEASE_S, RENEW_S = 5.0, 3.0
LEADING_S, FOLLOWING_S, ACTIVE_S, IDLE_S = 0.1, 0.3, 0.1, 1.0  # between two rounds
ACTIVE_FOR_S = 10.0  # after a failure
COUNT_EVERY_S = 5.0
STALE_S = 60.0  # without the store; after it all breakers are closed
TRIES = 5
WITHDRAWN_PER_S, WITHDRAWN_AFTER_S, DRAINED_AT_ONCE = 20.0, 15.0, 100
FORGET_EVERY_S, FORGOTTEN_AFTER_S = 3600.0, 7 * 86_400.0
FAREWELL_S, FRESH_S = 1.0, 5.0
_BOARD_BYTES = 256 * 1024

logger = logging.getLogger("redrive.worker")


class Breakers:
    """Breakers of one worker.

    Jobs call `note_…`, `breaker_of` and `recheck_s` in any thread of the main process; `run` has its own thread.
    """

    def __init__(
        self,
        origin: Origin,
        in_force: InForce,
        delays: Delays,
        store: redis.Redis,
        hurry: Callable[[], None],
        are_policies_read: Callable[[], bool],
    ) -> None:
        """`delays` and `store`: only for the thread. `hurry`: moves released jobs to their queues at once.

        `are_policies_read`: returns whether the store has policies and this worker has read them.
        """
        self._are_policies_read = are_policies_read
        self._origin = origin
        self._in_force = in_force
        self._delays = delays
        self._store = store
        self._hurry = hurry
        self._key = keys.breakers(origin.source)
        self._swap = store.register_script((Path(__file__).parent / "breaker.lua").read_text())
        self._board = Board(_BOARD_BYTES)
        self._written: dict[str, Any] = {}
        self._id = uuid4().hex
        self._host = socket.gethostname()
        self._mode = FleetMode(store, origin.source, in_force.may_enforce)
        # Breaker with this host on hold -> start of the latest probe (monotonic), and its job.
        self._probed: dict[str, tuple[float, str]] = {}
        self._ahead_s = 0.0  # lead of the store's clock over this host's
        self._lock = threading.Lock()
        self._pending: dict[str, PendingOutcomes] = defaultdict(PendingOutcomes)
        self._read: dict[str, Breaker] = {}  # entries are never changed
        self._holding: dict[str, Breaker] = {}  # the breakers in `_read` that put jobs on hold
        self._on_hold: dict[str, int] = {}  # breaker -> jobs on hold at the latest count
        self._counted_at = self._reached_at = float("-inf")
        self._active_until = 0.0
        self._withdrawn_at: dict[str, float] = {}  # breaker without a policy -> time of its latest release
        self._unreported: dict[str, tuple[int, str]] = {}  # breaker -> number of released jobs, and their ticket
        self._leading: set[str] = set()
        self._documents_checked_at = 0.0  # monotonic: latest check for documents without a policy
        self._is_logged = self._is_full = False
        self._thread: threading.Thread | None = None
        self._sooner = threading.Event()
        self._stopped = threading.Event()
        self.on_opened: Callable[[], None] = lambda: None
        # Starts jobs that this worker could not put on hold. Arguments: breaker, maximum, ticket. Returns the number of
        # started jobs.
        self.start_in_hand: Callable[[str, int, str], int] = lambda name, most, ticket: 0

    def open_breakers(self) -> OpenBreakers:
        return OpenBreakers(self._board)

    # For jobs

    @property
    def is_holding(self) -> bool:
        return bool(self._holding)

    def describe(self) -> list[str]:
        """Return the breakers that this worker obeys, for the heartbeat."""
        return sorted(self._in_force.breakers() or ())

    def breaker_of(self, request: Any, *, may_probe: bool = False) -> str:
        """Return the breaker that holds a job, or "" if the job may start.

        `may_probe`: it may start as this host's probe.
        """
        if not self._holding:
            return ""
        chosen = self._choose(request)
        name = (chosen.policy.breaker_name or "") if chosen is not None and chosen.is_enforced else ""
        breaker = self._holding.get(name)
        if breaker is None or chosen is None:
            return ""
        headers, now = request.request_dict, self._now()
        is_free = not breaker.covers_host(self._host) or self._probes_host(breaker, str(request.id), now, may_probe)
        tenant = self.tenant_of(request) if breaker.tenants else ""
        ticket = ticket_of(headers, name)
        if is_free and breaker.admits(ticket, now, tenant, str(request.type)):
            return ""
        if not is_free:
            return "" if is_overdue(chosen.policy, headers) or (_expires_in_s(request, now) or 1.0) <= 0 else name
        # The ticket is from a later opening than this worker has read. Expired jobs start too: Celery reports them.
        if (opening_of(ticket) > breaker.openings and now < expiry_of(ticket)) or is_overdue(chosen.policy, headers):
            return ""
        return "" if (_expires_in_s(request, now) or 1.0) <= 0 else name

    def _probes_host(self, breaker: Breaker, job: str, now: float, may_probe: bool) -> bool:
        """Return whether a job may start as the probe of this host. A host runs one probe at a time."""
        at, probe = self._probed.setdefault(breaker.name, (time.monotonic(), ""))
        if probe == job:
            return True
        if not may_probe or time.monotonic() - at < breaker.hosts.probe_s(self._host, now):
            return False
        self._probed[breaker.name] = (time.monotonic(), job)
        return True

    def recheck_s(self, request: Any) -> float:
        """Return the seconds until a job on hold is checked without a release: less if it expires or reaches its
        longest hold.
        """
        now, chosen = self._now(), self._choose(request)
        name = "" if chosen is None else chosen.policy.breaker_name or ""
        # Longer with more jobs, so that a source checks at most 50/s. The release does not depend on it.
        recheck_s = min(LONGEST_RECHECK_S, max(RECHECK_S, self._on_hold.get(name, 0) / RECHECKED_PER_S))
        ends = (
            _expires_in_s(request, now),
            None if chosen is None else left_s(chosen.policy, request.request_dict, now),
        )
        return max(0.0, min([recheck_s * random.uniform(0.8, 1.2), *(end for end in ends if end is not None)]))

    def _end_probe(self, request: Any) -> None:
        """Clear this host's probe if it was this job."""
        for name, (at, job) in list(self._probed.items()):
            if job == str(request.id):
                self._probed[name] = at, ""

    def note_success(self, request: Any, runtime_s: float | None) -> None:
        self._end_probe(request)
        chosen = self._choose(request)
        name = "" if chosen is None else chosen.policy.breaker_name or ""
        holder, ticket = self._ticket(request)
        if holder or (name and name in self._holding):
            outcome = Outcome(
                True,
                tenant=self.tenant_of(request),
                task=str(request.type),
                host=self._host,
                ticket=ticket,
                started_at=self._started_at(request),
                runtime_s=runtime_s,
            )
            self._note(holder or name, outcome)
        elif name:
            tenant = self.tenant_of(request)
            with self._lock:
                self._pending[name].count(tenant, str(request.type), runtime_s or 0.0)

    def note_end(self, request: Any, decision: Decision | None) -> None:
        """Record an attempt that did not succeed. Without evidence, record only the end of a released job."""
        self._end_probe(request)
        chosen = self._choose(request)
        name = "" if chosen is None else chosen.policy.breaker_name or ""
        evidence = decision.read_evidence() if decision is not None else {}
        holder, ticket = self._ticket(request)
        is_failure = "kind" in evidence and bool(name)
        if not is_failure or (holder and holder != name):
            self.note_unused(request, is_answer=bool(evidence.get("is_answer")))
        if not is_failure:
            return
        outcome = Outcome(
            False,
            tenant=self.tenant_of(request),
            task=str(request.type),
            host=self._host,
            subject=report.digest_of(request),
            kind=str(evidence["kind"]),
            wish_s=evidence.get("wish_s"),
            ticket=ticket if holder == name else "",
            started_at=self._started_at(request),
            ended_at=self._now(),
            attempt=report.attempt_of(request),
            error=str(evidence.get("error", "")),
            failed_before=count_of(request.request_dict.get(HOLD_FAILED)),
        )
        self._note(name, outcome)

    def note_unused(self, request: Any, *, is_answer: bool = False) -> None:
        """Record that a released job ended or was put on hold again without an outcome.

        `is_answer`: its dependency answered.
        """
        self._end_probe(request)
        holder, ticket = self._ticket(request)
        if holder:
            self._note(
                holder,
                Outcome(
                    True if is_answer else None,
                    tenant=self.tenant_of(request),
                    task=str(request.type),
                    host=self._host,
                    ticket=ticket,
                    started_at=self._started_at(request),
                ),
            )

    def _note(self, name: str, outcome: Outcome) -> None:
        with self._lock:
            pending = self._pending[name]
            is_first = not pending.outcomes and time.monotonic() > self._active_until
            pending.add(outcome)
        breaker = self._read.get(name)
        # Write the outcome of a probe, and the first failure after a quiet period, at once. Batch later ones.
        if (outcome.ticket and breaker is not None and breaker.state == OPEN) or (is_first and outcome.ok is False):
            self._sooner.set()

    def _ticket(self, request: Any) -> tuple[str, str]:
        """Return the breaker that released a job, and the ticket; ("", "") of any other job."""
        headers = request.request_dict
        holder = headers.get(HOLD)
        ticket = ticket_of(headers, holder) if isinstance(holder, str) else ""
        return (holder, ticket) if ticket and (holder in self._read or holder in self._on_hold) else ("", "")

    def _started_at(self, request: Any) -> float | None:
        return None if request.time_start is None else request.time_start + self._ahead_s

    def _now(self) -> float:
        """Return the time by the store's clock, in Unix seconds."""
        return time.time() + self._ahead_s

    def note_bound(self, name: str) -> None:
        """Record that a job could not be put on hold because the limit of delayed jobs is reached."""
        with self._lock:
            self._pending[name].at_bound = True

    def _choose(self, request: Any) -> Chosen | None:
        return self._in_force.choose(report.known_queue(request, self._origin), str(request.type))

    @property
    def knows_tenants(self) -> bool:
        return bool(self._origin.tenant_paths)

    def dependency_of(self, request: Any) -> str:
        """Return the breaker that a policy names for a job, in any mode; "" for none."""
        chosen = self._choose(request)
        return "" if chosen is None else chosen.policy.breaker_name or ""

    def tenant_of(self, request: Any) -> str:
        """Return the tenant of a job, or "" if unknown."""
        paths = self._origin.tenant_paths
        return report.tenant_of(request.args, request.kwargs, paths) if paths else ""

    # In the thread

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name="redrive-breakers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._sooner.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            wait_s = IDLE_S
            try:
                wait_s = self._round()
            except Exception:  # the thread must not end: without it no breaker would close
                logger.exception("Redrive's breakers failed; the thread continues.")
            self._sooner.wait(wait_s)
            if self._sooner.is_set() and not self._stopped.is_set():
                self._sooner.clear()
                time.sleep(0.01)  # to write simultaneous failures together

    def farewell(self) -> None:
        """Write the last outcomes, and give up the leases. After `stop`."""
        if self._thread is None or time.monotonic() - self._reached_at > FRESH_S:
            return
        self._thread.join(FAREWELL_S)
        if not self._thread.is_alive():
            try:
                self._round()
            except Exception:
                logger.exception("Redrive's breakers could not write their last outcomes.")

    def _round(self) -> float:
        """Write pending outcomes to the store, and read the breakers. Return the seconds until the next round."""
        with self._lock:
            pending, self._pending = dict(self._pending), defaultdict(PendingOutcomes)
        if any(one.outcomes for one in pending.values()):
            self._active_until = time.monotonic() + ACTIVE_FOR_S
        modes, can_release = self._in_force.breakers(), self._count_holds()
        names = sorted({*(modes or ()), *self._on_hold, *pending})
        try:
            pipeline = self._store.pipeline(transaction=False)
            pipeline.time()
            pipeline.hmget(self._key, names or [""])
            (seconds, micro), texts = pipeline.execute()
        except (redis.RedisError, OSError) as error:
            self._put_back(pending)
            return self._missed(error, names)
        self._ahead_s = seconds + micro / 1_000_000 - time.time()
        found, missed = dict[str, Breaker](), dict[str, Exception]()
        self._leading.clear()
        for name, text in zip(names, texts, strict=False):
            try:
                found[name] = self._exchange(name, text, modes, pending.get(name, PendingOutcomes()), can_release)
            except (
                Exception
            ) as error:  # an error in one document, or in the delayed jobs' Redis, must not stop the others
                missed[name] = error
                self._put_back({name: pending.get(name, PendingOutcomes())})
        with contextlib.suppress(redis.RedisError, OSError):
            self._forget_documents(modes, names)
        self._read = {**{name: one for name, one in self._read.items() if name in missed}, **found}
        if missed:
            return self._missed(next(iter(missed.values())), list(missed))
        self._reached_at, self._is_logged = time.monotonic(), False
        self._publish()
        if self._leading:
            return LEADING_S
        if self._holding or self._on_hold:
            return FOLLOWING_S * random.uniform(0.8, 1.2)
        return ACTIVE_S if time.monotonic() < self._active_until else IDLE_S * random.uniform(0.8, 1.2)

    def _missed(self, error: Exception, names: list[str]) -> float:
        """Keep the last known state of these breakers in force for `STALE_S`.

        Return the seconds until the next round.
        """
        if not self._is_logged:
            self._is_logged = True
            logger.warning("Redrive cannot exchange the state of breakers with the store (%r) and will retry.", error)
        if time.monotonic() - self._reached_at > STALE_S:
            self._read = {name: one for name, one in self._read.items() if name not in names}
        self._publish()
        return IDLE_S

    def _count_holds(self) -> bool:
        """Count jobs on hold. Return whether the delayed jobs' Redis answers; it can differ from the store."""
        try:
            if time.monotonic() - self._counted_at > COUNT_EVERY_S:
                names, self._on_hold = {*self._delays.holding()}, {}
                self._counted_at = time.monotonic()
            else:
                names = self._leading
            for name in names:
                if count := self._delays.count_holds(name):
                    self._on_hold[name] = count
                else:
                    self._delays.release(name, 0, "")  # removes the breaker from the set of breakers with jobs on hold
                    self._on_hold.pop(name, None)
        except (redis.RedisError, OSError):
            return False
        return True

    def _forget_documents(self, modes: Mapping[str, bool] | None, names: list[str]) -> None:
        """Once an hour, remove documents that have no policy and no jobs on hold and were unchanged for a week."""
        if (
            modes is None
            or not self._are_policies_read()
            or time.monotonic() - self._documents_checked_at < FORGET_EVERY_S
        ):
            return
        is_first, self._documents_checked_at = not self._documents_checked_at, time.monotonic()
        if is_first:
            return
        stored: Any = self._store.hgetall(self._key)
        for field_, text in stored.items():
            name = field_.decode("utf-8", "replace")
            at = untrusted.read_object(text.partition(b" ")[2]).get("at")
            if name not in names and isinstance(at, int | float) and self._now() - at > FORGOTTEN_AFTER_S:
                self._store.hdel(self._key, field_)

    def _put_back(self, pending: Mapping[str, PendingOutcomes]) -> None:
        with self._lock:
            for name, one in pending.items():
                self._pending[name].merge(one)

    def _exchange(
        self,
        name: str,
        text: bytes | None,
        modes: Mapping[str, bool] | None,
        pending: PendingOutcomes,
        can_release: bool,
    ) -> Breaker:
        """Write one breaker's pending outcomes into its document, and release jobs if this worker has the lease.

        Return the breaker as stored.
        """
        outcomes = pending.as_list(self._host)
        for tries in range(TRIES):
            breaker, now = Breaker.parse(name, text), self._now()
            number = breaker.number
            if modes is not None and name in modes:
                self._withdrawn_at.pop(name, None)
                self._mode.follow(breaker, is_enforced=modes[name], now=now)
            breaker.note(outcomes, now)
            if pending.at_bound:
                breaker.extra["at_bound"] = round(now, 3)
                breaker.number += 1
            leads = can_release and self._leads(breaker, now)
            if leads:
                self._leading.add(name)
            else:
                self._leading.discard(name)
            if leads and name not in self._unreported:
                self._release(breaker, modes, now)
            if name in self._unreported:  # includes a round that could not write it
                breaker.released(self._unreported[name][0], now, self._unreported[name][1])
            if breaker.number == number:
                self._unreported.pop(name, None)
                return breaker
            breaker.number = number + 1
            answer: Any = self._swap(keys=[self._key], args=[name, number, breaker.render(), MOST_BREAKERS])
            if answer == 1:
                self._unreported.pop(name, None)
                return breaker
            if answer == -1:
                if not self._is_full:
                    self._is_full = True
                    logger.error("Redrive's breaker %.200s never opens: the source has %d.", name, MOST_BREAKERS)
                return Breaker(name)
            text = answer
            time.sleep(random.uniform(0, 0.01) * (tries + 1))
        self._put_back({name: pending})
        return Breaker.parse(name, text)

    def _leads(self, breaker: Breaker, now: float) -> bool:
        """Return whether this worker releases the breaker's jobs.

        Take the lease if it is free; renew it if it is ours.
        """
        if breaker.state == CLOSED and not self._on_hold.get(breaker.name) and not breaker.on_hold:
            return False
        holder, until = _lease(breaker.extra.get("lease"))
        is_ours = holder == self._id and now < until
        if self._stopped.is_set():
            if is_ours:
                breaker.extra.pop("lease")
                breaker.number += 1
            return False
        if is_ours and until - now > RENEW_S:
            return True
        if is_ours or not now < until <= now + 10 * LEASE_S:
            breaker.extra["lease"] = [self._id, round(now + LEASE_S, 3)]
            breaker.number += 1
        return is_ours

    def _release(self, breaker: Breaker, modes: Mapping[str, bool] | None, now: float) -> None:
        name, ticket = breaker.name, ""
        on_hold = self._on_hold.get(name, 0)
        if modes is None:
            wanted = DRAINED_AT_ONCE  # mode `off` or `drain` releases all jobs
        elif name not in modes:
            wanted = self._share_of_withdrawn(name)
        else:
            wanted, ticket = breaker.tick(now, on_hold), breaker.ticket(now)
        if not wanted or not on_hold:
            return
        went = self.start_in_hand(name, wanted, ticket) if ticket else 0
        self._unreported[name] = (went, ticket)
        if wanted > went:
            went += self._delays.release(name, wanted - went, ticket, is_probe=bool(ticket) and breaker.state == OPEN)
            self._unreported[name] = (went, ticket)
            self._hurry()

    def _share_of_withdrawn(self, name: str) -> int:
        """Return the number of jobs to release now for a breaker without a policy; 0 if this worker may not have
        read the policies yet.
        """
        if not self._in_force.may_enforce() or not self._are_policies_read():
            self._withdrawn_at.pop(name, None)
            return 0
        now = time.monotonic()
        wanted = int(min(1.0, now - self._withdrawn_at.setdefault(name, now + WITHDRAWN_AFTER_S)) * WITHDRAWN_PER_S)
        if wanted > 0:
            self._withdrawn_at[name] = now
        return max(0, wanted)

    def _publish(self) -> None:
        """Put the read breakers in force: here, and in the pool's children through the board."""
        before = self._holding
        modes = self._in_force.breakers() or {}
        known = {name: one for name, one in self._read.items() if name in modes}
        page = {
            name: {
                "state": one.state,
                "openings": one.openings,
                "holds": one.state != CLOSED and not one.observe,
                "here": one.covers_host(self._host),
                "tenants": one.tenants,
            }
            for name, one in known.items()
            if one.openings or one.hosts.current
        }
        with self._lock:
            self._holding = {name: known[name] for name, one in page.items() if one["holds"] or one["here"]}
            self._probed = {name: probe for name, probe in self._probed.items() if page.get(name, {}).get("here")}
        if page != self._written:
            try:
                self._board.write(json.dumps(page).encode())
                self._written = page
            except TooLong:
                logger.error(
                    "Redrive has too many breakers for this worker. The latest changes are not in force in its pool."
                )
        for name in sorted(self._holding.keys() - before.keys()):
            where = " on this host" if page[name]["here"] and not page[name]["holds"] else ""
            why = "others succeed" if where else _last_reason(self._holding[name])
            logger.warning("Redrive holds the jobs of %.200s%s: %s.", name, where, why)
        for name in sorted(before.keys() - self._holding.keys()):
            logger.warning("Redrive no longer holds jobs of %.200s.", name)
        if self._holding and self._holding.keys() != before.keys():
            self.on_opened()


def _lease(value: Any) -> tuple[str, float]:
    """Return the holder and the end of a lease, in Unix seconds."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], int | float):
        return str(value[0]), float(value[1])
    return "", 0.0


def _expires_in_s(request: Any, now: float) -> float | None:
    expires = request.expires
    try:
        return None if expires is None else float(expires.timestamp()) - now
    except (AttributeError, ValueError, OverflowError):
        return None


def _last_reason(breaker: Breaker) -> str:
    return str(breaker.history[-1].get("why", "")) if breaker.history else ""
