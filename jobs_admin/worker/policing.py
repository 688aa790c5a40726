"""Retry components of one worker: built before the pool forks, started after it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import Any

import redis

from jobs_admin.core import keys
from jobs_admin.core.policy import ENFORCE, Policy
from jobs_admin.worker.acting import Acting
from jobs_admin.worker.at_start import AtStart
from jobs_admin.worker.breakers import Breakers
from jobs_admin.worker.broker import Publisher, redis_of, redis_of_store
from jobs_admin.worker.budget import GRANTED, REFUSED, Budgets, Grant, Shares
from jobs_admin.worker.calls import Calls
from jobs_admin.worker.decision import Notes
from jobs_admin.worker.delays import Delays
from jobs_admin.worker.later import SCHEDULE_SECONDS, Later
from jobs_admin.worker.line import BACKGROUND_TIMEOUT, client
from jobs_admin.worker.policies import CAPTURE, Policies
from jobs_admin.worker.report import Origin
from jobs_admin.worker.retrying import Retrying
from jobs_admin.worker.store import Store

_CEILINGS = {b"off": "off", b"drain": CAPTURE}  # highest mode of any policy after `manage.py off` and `drain`

logger = logging.getLogger("redrive.worker")


class Policing:
    """Retry components. The guard uses `acting`, the heartbeat calls `obey`."""

    def __init__(
        self, app: Any, origin: Origin, store: Store, url: str, ceiling: str, at_start: AtStart, calls: Calls
    ) -> None:
        self.policies = Policies(origin.source, ceiling, store.spool.directory)
        with contextlib.suppress(redis.RedisError, OSError), client(url) as connection:
            # Once before the first job; after a failure the heartbeat retries each second.
            answers: Any = connection.mget(keys.switch(), keys.policies_version())
            self.obey(connection, *answers)
        self._calls = calls
        notes = Notes()
        self.later, delays = _later(app, origin, url)
        in_force = self.policies.in_force()
        self.breakers = breakers = Breakers(
            origin, in_force, delays, client(url), self.later.hurry, lambda: self.policies.are_read
        )
        budgets = Budgets(calls, origin.source)
        self.shares = shares = Shares()

        def spend(policy: Policy) -> Grant:
            budget = policy.budget
            if budget is None:
                return GRANTED
            name = budget.group or policy.name
            is_granted = budgets.spend(name, budget.per_minute, budget.burst)
            if is_granted is None:
                return shares.take(name, budget)
            return GRANTED if is_granted else REFUSED

        self._retrying = Retrying(origin, self.policies.in_force(), notes, at_start, spend, breakers.open_breakers())
        self.acting = Acting(origin, in_force, notes, self.later, at_start, spend, breakers)

    def wrap(self, tasks: Iterable[Any]) -> None:
        for task in tasks:
            self._retrying.wrap(task)

    def begin_child(self, **_: Any) -> None:
        """Connect in a newly forked process of the pool, so that its first job does not wait for it."""
        try:
            if self.policies.in_force().counts_starts():
                self._calls.connect()
        except Exception:  # no error of ours may keep a process from starting
            logger.exception("Redrive could not make a process of the pool ready.")

    def obey(self, connection: redis.Redis, switch: bytes | None, number: bytes | None) -> bool:
        """Apply the store's values. Return whether something changed. Raises redis.RedisError."""
        is_capped = self.policies.hold_to(_CEILINGS.get(switch or b"", ENFORCE))
        return self.policies.poll(connection, number) or is_capped

    def start(self) -> None:
        self.later.start()
        self.breakers.start()

    def stop(self) -> None:
        self.breakers.stop()
        self.later.stop()
        self.breakers.farewell()


def _later(app: Any, origin: Origin, store_url: str) -> tuple[Later, Delays]:
    """Return the scheduler of delayed jobs, and their Redis for another thread."""
    broker = app.conf.broker_read_url or app.conf.broker_url
    options = app.conf.broker_transport_options or {}
    of_broker = None
    if isinstance(broker, str) and "credential_provider" not in options:
        of_broker = redis_of(broker, app.conf.broker_use_ssl)
    dialled = of_broker or redis_of_store(store_url)
    if dialled is None:
        raise ValueError("the store's URL cannot be used")
    publisher = None if of_broker else Publisher(app.connection_for_write)
    for_jobs, own, others = (
        Delays(dialled(seconds), origin.source)
        for seconds in (SCHEDULE_SECONDS, BACKGROUND_TIMEOUT, BACKGROUND_TIMEOUT)
    )
    return Later(origin, for_jobs, own, publisher), others
