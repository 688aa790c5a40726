"""What a replay was held or slowed down for, as its page tells it: a sentence, and the numbers and groups behind it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from jobs_admin.core.clock import clock
from jobs_admin.core.pacing import Evidence
from jobs_admin.core.text import class_name
from jobs_admin.models import Replay
from jobs_admin.models.access import Viewer
from jobs_admin.replays import seeing
from jobs_admin.replays.seeing import Queue
from jobs_admin.rights import group_sight

_MOST_GROUPS = 5  # that are named


def tell(
    replay: Replay, because: Evidence, deserted: Sequence[Queue], since: datetime, now: datetime
) -> tuple[str, dict[str, Any]]:
    """The sentence, and what goes into `Replay.evidence`; `since`: judged is what was sent from then on.

    The column holds what `core.pacing.Evidence` says (kind, failed, judged, limit …) and: sentence, at, sent,
    unsettled, planned, succeeded, failed_again, queues (without a worker), groups [{group, fingerprint, title, culprit, count,
    same, is_new}] of the failed, the commonest first, and others (failed in groups that are not named).
    """
    failed = seeing.failed_of_last(replay, because.judged, since) if because.judged else []
    seen = group_sight.viewer_of_sources(replay.by_source)
    named = group_sight.read(seen, [one.group for one in failed[:_MOST_GROUPS] if one.group])
    new = seeing.new_groups(replay, named)
    told = {
        "at": now.isoformat(),
        "sent": seeing.sent(replay),
        "unsettled": replay.sent + replay.running,
        "planned": replay.planned,
        "succeeded": replay.succeeded,
        "failed_again": replay.failed_again,
        "groups": [
            {
                "group": group.pk,
                "fingerprint": group.name,
                "title": group.title,
                "culprit": group.culprit,
                "count": one.count,
                "same": one.same,
                "is_new": group.pk in new,
            }
            for one in failed
            if (group := named.get(one.group or 0))
        ],
    }
    told["others"] = sum(one.count for one in failed) - sum(row["count"] for row in told["groups"])
    if because.kind == "workers_gone":
        told["queues"] = [list(queue) for queue in deserted]
        sentence = _workers_gone(because, deserted, now)
    else:
        sentence = because.sentence(_title(seen, because))
    return sentence, {**because.as_dict(), **told, "sentence": sentence}


def _title(seen: Viewer, because: Evidence) -> str:
    """As short as it can be recognised by: `TimeoutError at shop/pay.py in charge`."""
    group = group_sight.read(seen, [because.group]).get(because.group) if because.group else None
    if group is None:
        return ""
    return f"{class_name(group.error_type)} at {group.culprit}" if group.culprit else group.title


def _workers_gone(because: Evidence, deserted: Sequence[Queue], now: datetime) -> str:
    many_sources = len({source for source, _ in deserted}) > 1
    names = [f"{source}/{queue}" if many_sources else queue for source, queue in deserted] or ["its queues"]
    seen = [at for queue in deserted if (at := seeing.last_staffed(*queue))]
    since = max(seen, default=now - timedelta(seconds=because.seconds))
    jobs = "1 job is" if because.unsettled == 1 else f"{because.unsettled:,} jobs are"
    where = names[0] if len(names) == 1 else f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
    return f"No live worker takes from {where} since {clock(since, now)} UTC, and {jobs} sent and not settled."
