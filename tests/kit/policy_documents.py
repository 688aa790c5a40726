"""Documents of every shape of policy that is allowed, and what stands in `backoff.json`."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from hypothesis import strategies as some

from jobs_admin.core.policy import LONGEST_S, MOST_ATTEMPTS, MOST_DELAYS

CASES = json.loads((Path(__file__).parents[1] / "jobs_admin/core/backoff.json").read_text())

SECONDS = some.one_of(some.just(0), some.integers(0, int(LONGEST_S)), some.floats(0, LONGEST_S), some.floats(0, 1))
POSITIVE = some.one_of(some.floats(1e-3, 1), some.floats(1e-3, LONGEST_S), some.just(1e-3))
SHARE = some.floats(0, 1)

GROWING = some.one_of(
    some.fixed_dictionaries(
        {"kind": some.just("exponential"), "first_delay_s": SECONDS, "factor": some.floats(1, 100)}
    ),
    some.fixed_dictionaries({"kind": some.sampled_from(["linear", "fixed"]), "first_delay_s": SECONDS}),
    some.fixed_dictionaries(
        {"kind": some.just("polynomial"), "first_delay_s": SECONDS, "power": some.floats(0, 10), "plus_s": SECONDS}
    ),
    some.fixed_dictionaries(
        {"kind": some.just("table"), "delays_s": some.lists(SECONDS, min_size=1, max_size=MOST_DELAYS).map(sorted)}
    ),
)
JITTERS = some.one_of(
    some.fixed_dictionaries({"kind": some.sampled_from(["none", "full", "equal", "celery", "sidekiq"])}),
    some.fixed_dictionaries({"kind": some.sampled_from(["down", "plus_minus"]), "fraction": SHARE}),
    some.fixed_dictionaries({"kind": some.just("additive"), "seconds": SECONDS}),
)
_DRAWN = {"backoff": some.fixed_dictionaries({"kind": some.just("decorrelated"), "first_delay_s": POSITIVE})}
_REST = {"max_attempts": some.integers(1, MOST_ATTEMPTS)}

_GLOB = some.text("ab.*_", min_size=1, max_size=12)
_OPTIONAL = {
    "name": some.from_regex(r"[a-z0-9][a-z0-9._-]{3,62}", fullmatch=True).filter(lambda name: name != "preview"),
    "match": some.fixed_dictionaries({}, optional={"source": _GLOB, "queue": _GLOB, "task": _GLOB}),
    "mode": some.sampled_from(["observe", "enforce"]),
    "native": some.sampled_from(["replace", "after"]),
    "retry_after": some.fixed_dictionaries({"respect": some.booleans(), "jitter": SHARE, "cap_s": SECONDS}),
    "classes": some.lists(
        some.fixed_dictionaries({"error": _GLOB, "as": some.sampled_from(["transient", "permanent", "rate_limited"])}),
        max_size=5,
    ),
    "budget": some.fixed_dictionaries(
        {"per_minute": some.just(0) | some.floats(0.0001, 1e6), "burst": some.integers(1, 100_000)},
        optional={"group": some.just("partners")},
    ),
    "poison": some.fixed_dictionaries({"crashes": some.integers(1, 100), "window_s": some.floats(1, 600)}),
    "concurrency": some.fixed_dictionaries(
        {"key": some.sampled_from(["tenant", "kwargs.a.b", "args.0"]), "limit": some.integers(1, 9)}
    ),
    "rate_limit": some.fixed_dictionaries({"max": some.integers(1, 1_000_000), "per_s": some.floats(0.001, 86_400)}),
    "breaker": some.fixed_dictionaries(
        {}, optional={"dependency": some.just("warehouse"), "max_hold_s": some.floats(1, LONGEST_S)}
    ),
    "exhausted": some.sampled_from(["dead", "escalate"]),
    "file_lost": some.booleans(),
    "expires_at": some.datetimes(min_value=datetime(2001, 1, 1), max_value=datetime(2100, 1, 1)).map(
        lambda at: at.isoformat() + "Z"
    ),
    "note": some.text(some.characters(exclude_categories=("Cs", "Cc")), max_size=50),
}


def _first_s(backoff) -> float:
    if backoff["kind"] == "table":
        return backoff["delays_s"][0]
    if backoff["kind"] == "polynomial":
        return max(backoff["plus_s"], backoff["first_delay_s"])
    return backoff["first_delay_s"]


def _capped(document):
    first = max(0.001, _first_s(document["backoff"]))
    if first > LONGEST_S:
        return some.just(document)
    return some.one_of(some.just(document), some.floats(first, LONGEST_S).map(lambda cap: {**document, "cap_s": cap}))


GROWING_POLICIES = some.fixed_dictionaries({"backoff": GROWING, "jitter": JITTERS, **_REST}).flatmap(_capped)
DRAWN_POLICIES = some.fixed_dictionaries({**_DRAWN, **_REST}).flatmap(_capped)
POLICIES = some.one_of(GROWING_POLICIES, DRAWN_POLICIES)
COMPLETE_POLICIES = some.tuples(POLICIES, some.fixed_dictionaries({}, optional=_OPTIONAL)).map(
    lambda two: {**two[0], **two[1]}
)
