"""The pages that reached the demo's pager, for /demo/."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jobs_admin import config
from jobs_admin.core.alert_metrics import METRICS, Link

SHOWN = 5
_TONES = {"alert.resolved": "recovered", "ping": "replaying", "replay.done": "recovered", "replay.held": "retrying"}


@dataclass(frozen=True, slots=True)
class Page:
    tone: str
    words: str
    title: str
    message: str
    taken_at: datetime
    again: str  # how often it came, where that was more than once
    url: str
    quarantine_url: str  # of the quarantined jobs, where it is about those
    replay_url: str


@dataclass(frozen=True, slots=True)
class Pager:
    pages: list[Page]


def present(seen: dict[str, Any]) -> Pager:
    return Pager([_page(one) for one in seen["pages"][:SHOWN]])


def _page(one: dict[str, Any]) -> Page:
    times = one["times"]
    return Page(
        tone=_TONES.get(one["type"], "dead"),
        words=one["type"].rpartition(".")[2],
        title=one["title"],
        message=one["message"],
        taken_at=datetime.fromtimestamp(one["taken_at"], UTC),
        again=f"received {times} times with one id, shown once" if times > 1 else "",
        url=_path_on_desk(one["url"]),
        quarantine_url=_path_on_desk(one["failures_url"]) if _is_of_quarantine(one) else "",
        replay_url=_path_on_desk(one["replay_url"]),
    )


def _is_of_quarantine(one: dict[str, Any]) -> bool:
    metric = METRICS.get(one["metric"])
    return metric is not None and metric.link is Link.QUARANTINE


def _path_on_desk(url: str) -> str:
    """Return the path of a URL of this desk, so that it opens on the host of the page; "" for other URLs."""
    base = config.setting("URL") + "/"
    return url.removeprefix(config.setting("URL")) if url.startswith(base) else ""
