"""For load balancers and supervisors: is the process alive, and can it do its work."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import redis
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from dashboard.web.api.tokens import viewer_of_request
from jobs_admin import config
from jobs_admin.models import Source
from jobs_admin.models.access import VIEWER, Viewer
from jobs_admin.queues import liveness

FAILED_ROUNDS_LIMIT = 3  # in a row: about two seconds; one alone is a connection that broke


@require_safe
@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    """Liveness: the process answers. Database and Redis are not checked: a restart of this process would not fix those."""
    return HttpResponse("ok", content_type="text/plain; charset=utf-8")


@require_safe
@login_not_required
def readyz(request: HttpRequest) -> HttpResponse:
    """Readiness: 200 if failures are captured and filed, else 503. The failing part is shown to a token only.

    With `?strict=1` every configured source has to be reachable, sampled and read too, its reports filed in time, and the
    audit's end the anchored one.
    """
    now = datetime.now(UTC)
    checks = _checks(now)
    viewer = viewer_of_request(request) if checks["database"]["ok"] else None
    if request.GET.get("strict") == "1" and checks["database"]["ok"]:
        checks["sources"] = _sources(viewer, now)
        with suppress(redis.RedisError, config.BadConfiguration):  # a check of its own
            stall = liveness.stalled_audit()
            checks["audit"] = {"ok": stall is None, **({"why": stall.why} if stall else {})}
    is_ready = all(check["ok"] for check in checks.values())
    answer: dict[str, object] = {"ready": is_ready}
    if viewer is not None:
        answer["checks"] = checks
    return JsonResponse(answer, status=200 if is_ready else 503, headers={"Cache-Control": "no-store"})


def _checks(now: datetime) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {"database": _database()}
    try:
        failed = liveness.failed_rounds("ingest")
        found["redis"] = {"ok": True}
        lag_s = _least_lag_s(now)
        found["ingest"] = {
            "ok": lag_s <= liveness.LATE_REPORT_S and failed < FAILED_ROUNDS_LIMIT,
            "lag_s": round(lag_s, 1),
            "failed_rounds": failed,
        }
        late = liveness.find_stale(now)
        found["watch"] = {"ok": late is None, **({"why": late.text} if late else {})}
    except (redis.RedisError, config.BadConfiguration) as error:
        found["redis"] = {"ok": False, "why": f"The store does not answer ({type(error).__name__})."}
    return found


def _least_lag_s(now: datetime) -> float:
    """Return how long reports wait in the stream where they wait least; 0 where none waits.

    Where ingest files nothing, they wait in every stream. One stream alone says nothing of ingest: the times in it are its workers'
    to write.
    """
    waiting = [lag for lag in liveness.ingest_lags_s(now).values() if lag]
    return min(waiting, default=0.0)


def _sources(viewer: Viewer | None, now: datetime) -> dict[str, object]:
    """Check of all sources: those that cannot be reached or read, or are filed late, named only where the viewer may see them."""
    away = Source.objects.filter(is_configured=True, is_reachable=False)
    why = {source.name: f"The source is unreachable: {source.why_unreachable}" for source in away}
    with suppress(redis.RedisError, config.BadConfiguration):  # a check of its own
        why |= liveness.late_sources(now)
    why |= {name: stall.why for name, stall in liveness.stalled_sources(now).items() if stall is not None}
    named = {name: text for name, text in why.items() if viewer is not None and viewer.may(VIEWER, name)}
    return {"ok": not why, **({"not_read": named} if named else {})}


def _database() -> dict[str, object]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM jobs_admin_failurecount LIMIT 1")
        return {"ok": True}
    except DatabaseError as error:
        return {"ok": False, "why": f"The database does not answer ({type(error).__name__})."}


healthz.right = readyz.right = "anyone"
