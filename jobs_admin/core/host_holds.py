"""Holds of single hosts: a dependency's jobs fail there while they succeed on other hosts, as on a host without a
network.

A host on hold starts only probes, and its outcomes are not evidence against the dependency. The hold ends with a
success, or when the host is silent, such as a removed container. If no other host succeeds any longer, a failed probe
counts as evidence against the dependency.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jobs_admin.core.outage import LIVE_S
from jobs_admin.core.outcomes import Outcome, check_values, clip, host_key

MOST_HOSTS = 5  # on hold at a time: more failing hosts are an outage of the dependency
PROBE_S, PROBE_SHARE, LONGEST_PROBE_S = (
    5.0,
    0.05,
    20.0,
)  # interval of probes: this share of the time on hold, within bounds
MOST_ERROR, MOST_KINDS = 120, 3


@dataclass(slots=True)
class HostHolds:
    current: dict[str, dict[str, Any]] = field(default_factory=dict)  # host -> since, seen, evidence

    def add(self, host: str, evidence: dict[str, Any], now: float) -> bool:
        """Put a host on hold. Return whether there was room."""
        if len(self.current) >= MOST_HOSTS and host not in self.current:
            return False
        kinds = sorted(evidence["kinds"].items(), key=lambda one: -one[1])[:MOST_KINDS]
        short = evidence | {"kinds": dict(kinds), "first_error": clip(evidence["first_error"], MOST_ERROR)}
        self.current = {**self.current, host: {"since": round(now, 3), "seen": round(now, 3), "evidence": short}}
        return True

    def note(self, outcomes: Sequence[Outcome], now: float) -> tuple[list[Outcome], list[Outcome], str]:
        """Update the holds: a success ends one.

        Return the outcomes that count as evidence, the outcomes of released jobs on a host on hold (with `ok` None),
        and the host of a failed probe ("" for none).
        """
        found, met, failed = list[Outcome](), list[Outcome](), ""
        for one in outcomes:
            host = host_key(one.host)
            hold = self.current.get(host)
            if hold is None:
                found.append(one)
            elif one.ok and (one.started_at or now) >= hold["since"]:
                self.current = {name: other for name, other in self.current.items() if name != host}
                failed = "" if failed == host else failed
                found.append(one)
            elif one.ok is None and one.started_at is not None:
                found.append(one)
            else:
                is_probe = one.ok is False and (one.started_at or now) >= hold["since"]
                failed = host if is_probe else failed
                if one.ticket:
                    met.append(replace(one, ok=None))
        return found, met, failed

    def end_unseen(self, now: float, seen: Collection[str] = ()) -> None:
        """End the holds of hosts without an outcome for `LIVE_S`. `seen`: hosts with an outcome now."""
        current = {
            host: hold | {"seen": round(now, 3)} if host in seen else hold for host, hold in self.current.items()
        }
        self.current = {host: hold for host, hold in current.items() if now - hold["seen"] < LIVE_S}

    def probe_s(self, host: str, now: float) -> float:
        """Return the seconds between two probes of a host."""
        since: float = self.current.get(host_key(host), {}).get("since", now)
        return min(LONGEST_PROBE_S, max(PROBE_S, PROBE_SHARE * (now - since)))

    def latest(self) -> float:
        """Return the start time of the latest hold; 0 if there is none."""
        return max((hold["since"] for hold in self.current.values()), default=0.0)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> HostHolds:
        """Parse stored holds. Raises TypeError, KeyError or ValueError for any other value."""
        check_values(values, str)
        values = {host: {"seen": hold["since"], **hold} for host, hold in values.items()}
        check_values((hold[name] for hold in values.values() for name in ("since", "seen")), float)
        if len(values) > MOST_HOSTS or not all(isinstance(hold["evidence"], dict) for hold in values.values()):
            raise ValueError(len(values))
        return HostHolds(values)
