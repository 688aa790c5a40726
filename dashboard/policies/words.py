"""Policy as text: its delays, its end, and the outage that it survives."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from dashboard.web.figures import duration, number
from dashboard.web.quantities import plain
from jobs_admin import policies
from jobs_admin.core import policy as core
from jobs_admin.core.figures import exact_duration
from jobs_admin.core.policy import Backoff, Jitter, Match, Policy
from jobs_admin.core.retry_times import Totals, totals
from jobs_admin.installation import COMMAND
from jobs_admin.models import PolicyVersion

_STANDINGS = {core.ENFORCE: "in force", core.OBSERVE: "observed only"}  # of a published version, by its mode
_TINY = 0.05  # relative difference of times that count as equal


def standing(version: PolicyVersion) -> str:
    """Return `in force`, or `observed only`: workers record the decisions of this published version, and apply none."""
    return _STANDINGS[version.mode]


def curve(policy: Policy) -> str:
    """Return the delays: `5 s, doubling, at most 10 min, ± 10 %`."""
    if not policy.retries:
        return "retries left to the task’s own code"
    parts = [_backoff(policy.backoff)]
    if policy.cap_s is not None and policy.backoff.kind != "fixed":
        parts.append(f"at most {exact_duration(policy.cap_s)}")
    if policy.backoff.kind != "decorrelated":
        parts.append(_jitter(policy.jitter))
    return ", ".join(parts)


def _backoff(backoff: Backoff) -> str:
    first = exact_duration(backoff.first_delay_s)
    match backoff.kind:
        case "exponential" if backoff.factor == 2:
            return f"{first}, doubling"
        case "exponential":
            return f"{first}, × {plain(backoff.factor)} each time"
        case "linear":
            return f"{first} more each time"
        case "fixed":
            return f"always {first}"
        case "table":
            shown = ", ".join(map(exact_duration, backoff.delays_s[:5]))
            return shown + (" …" if len(backoff.delays_s) > 5 else "")
        case "polynomial":
            plus = f" + {exact_duration(backoff.plus_s)}" if backoff.plus_s else ""
            return f"(n − 1)^{plain(backoff.power)} × {first}{plus}"
        case _:
            return f"decorrelated from {first}"


def _jitter(jitter: Jitter) -> str:
    part = f"{plain(round(jitter.fraction * 100, 4))} %"
    return {
        "none": "no jitter",
        "full": "full jitter",
        "equal": "equal jitter",
        "down": f"up to {part} earlier",
        "plus_minus": f"± {part}",
        "additive": f"up to {exact_duration(jitter.seconds)} later",
        "celery": "full jitter in whole seconds",
        "sidekiq": "Sidekiq’s jitter",
    }[jitter.kind]


def attempts(count: int) -> str:
    return "1 attempt, no retry" if count == 1 else f"{count:,} attempts"


def gives_up(found: Totals) -> str:
    """Return the end: `after 4 min` or `after 4 min on average, 2 min to 6 min`."""
    if found.longest_s == 0:
        return "at once"
    middle = duration(found.p50_s)
    if _is_same(found.shortest_s, found.longest_s):
        return f"after {middle}"
    return f"after ~{middle} ({duration(found.shortest_s)} to {duration(found.longest_s)})"


def outage(found: Totals) -> str:
    """Return the outage that jobs survive, and the one that none survives, as the time between the attempts."""
    surely, nearly, longest = _below(found.shortest_s), _below(found.p1_s), _above(found.longest_s)
    if found.longest_s == 0:
        return "Survives no outage: no delays."
    if _is_same(found.shortest_s, found.longest_s):
        return f"Survives an outage of {duration(surely)}, not longer."
    if surely >= nearly * 0.8:
        return f"Survives an outage of {duration(surely)}, not of {duration(longest)}."
    return f"99 % of jobs survive a {duration(nearly)} outage; none survive {duration(longest)}."


def _is_same(shortest: float, longest: float) -> bool:
    return longest - shortest <= longest * _TINY / 10


def _below(seconds: float) -> float:
    """Return the value rounded down to the shown precision."""
    step = _step(seconds)
    return math.floor(seconds / step + 1e-9) * step


def _above(seconds: float) -> float:
    step = _step(seconds)
    return math.ceil(seconds / step - 1e-9) * step


def _step(seconds: float) -> float:
    return next(step for bound, step in ((2, 0.1), (120, 1), (600, 5), (7200, 60), (math.inf, 600)) if seconds < bound)


def matches(match: Match) -> str:
    """Return the match as text: `shop.deliver on webhooks of shop`."""
    task = "all tasks" if match.task == "*" else match.task
    queue = "" if match.queue == "*" else f" on {match.queue}"
    source = "" if match.source == "*" else f" of {match.source}"
    return f"{task}{queue}{source}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Workers that run a version: a sentence, and whether all live ones do."""

    words: str
    is_all: bool
    more: str = ""  # workers on other versions, and those held back


def fleet(running: Any, version: int) -> Fleet:
    """Return the workers of a version as text. `running`: the result of `policies.in_force` for its name, or None."""
    if running is None or not running.is_known:
        return Fleet("workers not known: the store does not answer", False)
    if not running.worker_count:
        return Fleet("no matching guarded worker is active", False)
    on = running.on.get(version, 0)
    others = [
        f"{count:,} {'without the policy' if number is None else f'on v{number}'}"
        for number, count in sorted(running.on.items(), key=lambda one: (one[0] is None, one[0] or 0))
        if number != version and count
    ]
    limited_by_mode = [
        f"{count:,} only {mode}, by REDRIVE_MODE or `{COMMAND} drain`"
        for mode, count in running.held_back.items()
        if count
    ]
    workers = f"{running.worker_count:,} worker{'' if running.worker_count == 1 else 's'}"
    words = f"{workers} on v{version}" if on == running.worker_count else f"{on:,} of {workers} on v{version}"
    refused = [f"refused by {name}: {why}" for name, why in running.refused.items()]
    unseen = [
        f"{count:,} job{'' if count == 1 else 's'} started {how}"
        for count, how in (
            (running.uncounted, "uncounted: the store did not answer"),
            (running.unkept, "without a start record: not recorded as lost if their worker crashed"),
            (running.unplaced, "without a policy: queue unknown"),
        )
        if count
    ]
    if running.overrun:
        unseen.append(
            f"limit exceeded by {running.overrun:,} job{'' if running.overrun == 1 else 's'}: a worker did not respond "
            "for 30 s, so its slots were given to other jobs"
        )
    if running.shared_out:
        retries = f"{running.shared_out:,} retr{'y' if running.shared_out == 1 else 'ies'}"
        unseen.append(f"{retries} from the workers’ shares of the budget, because the store did not answer in time")
    return Fleet(
        words,
        on == running.worker_count and not limited_by_mode,
        "; ".join([*others, *limited_by_mode, *refused, *unseen]),
    )


@dataclass(frozen=True, slots=True)
class Observed:
    words: str
    more: str  # further changes


def observed(found: policies.Observed) -> Observed:
    """Return the changes that an observing policy would have made, for its line in the list."""
    if not found.attempts:
        return Observed("no failed attempts evaluated yet", "")
    seen = f"the latest {found.attempts:,} failed attempts" if found.is_capped else _attempts_text(found.attempts)
    more = [
        f"{count:,} {words}"
        for count, words in (
            (found.tried_again, "retried instead of dead"),
            (found.given_up, "dead instead of retried"),
            (found.waited_otherwise, "retried at another time"),
        )
        if count
    ]
    return Observed(f"would have changed {found.changed:,} of {seen}", ", ".join(more))


def _attempts_text(attempts: int) -> str:
    return f"{attempts:,} failed attempt{'' if attempts == 1 else 's'}"


def budget(policy: Policy) -> str:
    """Return the maximum number of retries that the budget allows in any minute; "" without a budget."""
    if policy.budget is None:
        return ""
    if not policy.budget.per_minute:
        return "no retries: the budget is 0"
    return f"at most {number(math.ceil(policy.budget.most_in(60)))} retries/min for all jobs"


def budget_left(left: Any) -> str:
    """Return the remaining budget as text. `left`: a `policies.BudgetLeft`."""
    if not left.is_known:
        return "budget not known: the store does not answer"
    if left.least is None:
        return f"budget: {number(left.per_minute)} retries/min"
    where = "" if len(left.left) < 2 else " (lowest)"
    return f"{number(left.least)} retries left in the budget{where}, refills {number(left.per_minute)}/min"


def in_brief(version: PolicyVersion) -> tuple[str, str]:
    """Return the delays, and the number and duration of the attempts."""
    readable = policies.readable([version])
    if not readable:
        return "written by a newer Redrive or by hand; not used by workers", "cannot be read"
    policy = readable[0]
    if not policy.retries:
        return curve(policy), "limits only"
    over = totals(policy).p50_s
    return curve(policy), f"{attempts(policy.max_attempts)}{f' over {duration(over)}' if over else ''}"


_NOT_IN_NAME = re.compile(r"[^a-z0-9_]+")


def name_for(task: str, otherwise: str) -> str:
    """Return a suggested name for a policy of this task: `shop.tasks.deliver` -> `deliver`."""
    last = task.rpartition(".")[2].lower()
    return _NOT_IN_NAME.sub("-", last).strip("-_")[:63] or otherwise
