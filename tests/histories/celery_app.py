"""The app of a real, guarded Celery worker whose jobs end as a history says: `celery -A tests.histories.celery_app:app worker`."""

from __future__ import annotations

import os

import redis

from tests.kit.celery import PartnerDown, app

PARKED = "parked"  # nobody consumes this queue
_plans = redis.Redis.from_url(os.environ["HISTORY_PLANS"], decode_responses=True)


@app.task(name="history", bind=True, max_retries=None)
def history(self, n: str, error: str, queue: str) -> str:
    """Ends as the plan of job `n` says next: ok, fail, retry (at once) or wait (until a person moves it to its queue)."""
    outcome = _plans.lpop(f"plan:{n}") or "ok"
    _plans.incr("executions")
    if outcome == "ok":
        return "well"
    if outcome in ("retry", "wait"):
        raise self.retry(exc=PartnerDown(error), countdown=0, queue=PARKED if outcome == "wait" else queue)
    raise PartnerDown(error)
