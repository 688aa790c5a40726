"""Policies in force, tasks with the policies that decide, and presets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from dashboard.policies import words as policy_words
from jobs_admin.core import backoff
from jobs_admin.core.policy import Match, parse
from jobs_admin.core.policy.presets import PRESETS
from jobs_admin.models import PolicyVersion


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    url: str
    matches: str
    mode: str
    curve: str  # delays between attempts
    ends: str  # number of attempts, and when it gives up
    version: int
    fleet: policy_words.Fleet
    published_at: datetime | None
    by: str
    expires_at: datetime | None


def lines(versions: Iterable[PolicyVersion], in_force: Mapping[str, Any]) -> list[Line]:
    return [_line(version, in_force.get(version.name)) for version in versions]


def _line(version: PolicyVersion, workers: Any) -> Line:
    curve, ends = policy_words.in_brief(version)
    match = Match(version.match_source, version.match_queue, version.match_task)
    return Line(
        version.name,
        reverse("redrive:policy-detail", args=[version.name]),
        policy_words.matches(match),
        version.mode,
        curve,
        ends,
        version.version,
        policy_words.fleet(workers, version.version),
        version.published_at,
        version.published_by,
        version.expires_at,
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """Policy that decides about a task, on some of its queues or on all."""

    queues: str  # "" if the same on all queues
    policy: str  # "": the task's own code
    mode: str
    version: int
    url: str  # URL of its policy, otherwise of a new one for it


@dataclass(frozen=True, slots=True)
class TaskLine:
    task: str
    source: str
    decides: list[Decision]


def tasks(found: Iterable[Any]) -> list[TaskLine]:
    """Return a line for each task registered by a live worker, those with a policy first."""
    by_task: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for one in found:
        name = one.policy.name if one.policy else ""
        by_task.setdefault((one.source, one.task), {}).setdefault(name, []).append(one)
    made = [
        TaskLine(
            task, source, [_decision(rows, len(by_policy) > 1) for _, rows in sorted(by_policy.items(), reverse=True)]
        )
        for (source, task), by_policy in by_task.items()
    ]
    return sorted(made, key=lambda line: not line.decides[0].policy)


def _decision(rows: list[Any], is_by_queue: bool) -> Decision:
    first = rows[0]
    queues = ", ".join(one.queue for one in rows) if is_by_queue else ""
    if first.policy is None:
        given = {"task": first.task, "source": first.source}
        return Decision(queues, "", "", 0, f"{reverse('redrive:policy-new')}?{urlencode(given)}")
    version = first.policy
    return Decision(
        queues, version.name, version.mode, version.version, reverse("redrive:policy-detail", args=[version.name])
    )


@dataclass(frozen=True, slots=True)
class Offer:
    """Preset for a new policy."""

    name: str
    title: str
    description: str
    curve: str
    attempts: str
    bars: str  # small chart of its delays
    url: str
    is_chosen: bool


def presets(chosen: str = "", given: Mapping[str, str] | None = None) -> list[Offer]:
    """Return the presets. `given`: the match that is added to each."""
    return [_offer(name, preset, chosen, given or {}) for name, preset in PRESETS.items()]


def _offer(name: str, preset: Any, chosen: str, given: Mapping[str, str]) -> Offer:
    policy = parse({**preset.document, "name": "preset"})
    url = f"{reverse('redrive:policy-new')}?{urlencode({'preset': name, **given})}"
    return Offer(
        name, preset.title, preset.purpose, policy_words.curve(policy), policy_words.attempts(policy.max_attempts),
        _bars([one.mean_s for one in backoff.schedule(policy)]), url, name == chosen,
    )  # fmt: skip


_SMALL = 12  # columns of the small chart, in a box of 12 × 20


def _bars(delays: list[float]) -> str:
    """Return the first delays as the outline of bars, on a scale of its own."""
    shown = delays[:_SMALL]
    top = max(shown, default=0) or 1
    return "M0 20" + "".join(f"V{20 - max(18 * one / top, 1):.1f}h1" for one in shown) + "V20z"
