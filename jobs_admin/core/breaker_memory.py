"""Stored state of a breaker: its fields, and the JSON document (at most `MOST_BYTES`) that workers and the desk
share.
"""

from __future__ import annotations

import json
import random as _random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from jobs_admin.core import untrusted
from jobs_admin.core.failure_runs import Parts
from jobs_admin.core.hold_release import LONGEST_TICKET_S, Release
from jobs_admin.core.host_holds import HostHolds
from jobs_admin.core.outage import Detector
from jobs_admin.core.outcomes import Outcome, check_values, clip, host_key

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half_open"
STATES = (CLOSED, OPEN, HALF_OPEN)
MOST_BYTES = 16_000
MOST_HISTORY = 50
# entries of the history about hosts: hosts with occasional failures must not displace transitions
MOST_HOST_ENTRIES = 10
HOST = "Host "  # prefix of the reason of an entry about one host
PROBE_S = 5.0  # minimum interval of probes; also before the first
PROBE_SHARE = 0.05  # interval as a share of the time since the opening
LONGEST_PROBE_S = 20.0  # maximum interval
LONGEST_STRAINED_S = 60.0  # maximum interval if openings follow each other
LONGEST_WISH_S = 600.0  # maximum Retry-After
PROBE_TICKET_S = 60.0  # time for a probe to start; doubled after each probe without an outcome
Memory = TypeVar("Memory", bound="BreakerMemory")


class BreakerMemory:
    """Fields of a breaker. Write changes by compare-and-set on `number`."""

    def __init__(self, name: str, random: Callable[[], float] = _random.random) -> None:
        self.name = name
        self.number = 0
        self.state = CLOSED
        self.since = 0.0
        self.openings = 0
        self.opened_at = 0.0  # first opening since the last closing
        self.observe = False
        self.tenants: list[str] = []  # keys of the tenants and tasks of a narrow opening; empty: all
        self.hosts = HostHolds()  # hosts that start no job of the dependency, in any state
        self.forced: dict[str, Any] | None = None
        self.evidence: dict[str, Any] | None = None  # of the latest opening
        self.history: list[dict[str, Any]] = []
        self.on_hold = 0  # jobs, at the latest tick
        self.starts = 0  # jobs that mode enforce would have put on hold, while open in mode observe
        self.probe: dict[str, Any] | None = None  # the running probe, and the deadline of its outcome
        self.next_probe_at = 0.0
        self.released_count = 0  # since the latest opening
        self.rate = 0.0  # jobs/s of the release
        self.extra: dict[str, Any] = {}  # unknown fields of the document
        self._at = 0.0
        self._strain = 1.0
        self._valid_s = PROBE_TICKET_S
        self._silent_probes = 0  # probes in a row that ended without evidence about the dependency
        self._runtime_s = 0.0
        self._detector = Detector()
        self._return = 0.0
        self._release: Release | None = None
        self._random = random

    # Documents

    @classmethod
    def from_dict(
        cls: type[Memory], name: str, values: dict[str, Any], random: Callable[[], float] = _random.random
    ) -> Memory:
        """Return the breaker of a document; a new one if the document is invalid."""
        try:
            found = cls(name, random)
            found._restore(values)
            return found
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError):
            return cls(name, random)

    @classmethod
    def parse(
        cls: type[Memory], name: str, text: bytes | str | None, random: Callable[[], float] = _random.random
    ) -> Memory:
        """Return the breaker of a stored value, `NUMBER JSON`; a new one if there is none."""
        raw = text.decode("utf-8", "replace") if isinstance(text, bytes) else text or ""
        number, _, document = raw.partition(" ")
        breaker = cls.from_dict(name, untrusted.read_object(document), random)
        breaker.number = untrusted.integer(number) or 0
        return breaker

    def render(self) -> bytes:
        """Return the value to store."""
        return f"{self.number} {json.dumps(self.as_dict(), separators=(',', ':'))}".encode()

    def as_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in _PLAIN} | {
            "released": self.released_count, "held": self.on_hold, "at": round(self._at, 3),
            "strain": round(self._strain, 3), "runtime_s": round(self._runtime_s, 3), "valid_s": self._valid_s,
            "silent_probes": self._silent_probes, "return": round(self._return, 3),
            "detector": self._detector.as_dict(), "release": self._release and self._release.as_dict(), "history": list(self.history),
            "hosts": {"held": self.hosts.current, "parts": self._detector.hosts.as_dict()},
        }  # fmt: skip
        while len(json.dumps(own)) > MOST_BYTES and len(own["history"]) > 1:
            own["history"] = own["history"][len(own["history"]) // 4 + 1 :]
        return {**self.extra, **own}

    def _restore(self, values: dict[str, Any]) -> None:
        for name, kind in _PLAIN.items():
            if name in values and isinstance(values[name], kind) and (values[name] is not None):
                setattr(self, name, values[name])
        if self.state not in STATES or not all(isinstance(one, str) for one in self.tenants):
            raise ValueError(self.state)
        for part, kinds in ((self.forced, _FORCED), (self.probe, _PROBE), (self.evidence, _EVIDENCE)):
            if part is not None and not all(isinstance(part.get(key), kind) for key, kind in kinds.items()):
                raise ValueError(part)
        numbers = (self.since, self.opened_at, self.next_probe_at, self.rate, self.openings, self.starts)
        check_values(
            (*numbers, *(values.get(name, 0) for name in ("released", "held", "at", "strain", "runtime_s", "return"))),
            float,
        )
        if self.forced is not None and self.forced["as"] != self.state:
            self.state = self.forced["as"]
        self.released_count, self.on_hold = int(values.get("released", 0)), int(values.get("held", 0))
        self._at, self._strain = float(values.get("at", 0.0)), float(values.get("strain", 1.0))
        self._runtime_s, self._return = float(values.get("runtime_s", 0.0)), float(values.get("return", 0.0))
        self._valid_s = min(LONGEST_TICKET_S, max(PROBE_TICKET_S, float(values.get("valid_s", 0.0))))
        self._silent_probes = int(values.get("silent_probes", 0))
        self._detector = Detector.from_dict(values.get("detector", {}))
        hosts = values.get("hosts", {})
        self.hosts = HostHolds.from_dict(hosts.get("held", {}))
        self._detector.hosts = Parts.from_dict(hosts.get("parts", {}))
        release = values.get("release")
        self._release = None if release is None else Release.from_dict(release)
        self.history = [one for one in values.get("history", []) if isinstance(one, dict)][-MOST_HISTORY:]
        self.extra = {name: one for name, one in values.items() if name not in _OWN}

    # Changes

    def _move(self, to: str, why: str, now: float) -> None:
        self.number += 1
        entry = {"at": round(now, 3), "from": self.state, "to": to, "why": clip(why, 80)}
        self.history = [*self.history, entry][-MOST_HISTORY:]
        self.state, self.since = to, round(now, 3)

    def _note_host(self, host: str, what: str, now: float, *, is_start: bool = False) -> None:
        """Record the start or end of a host's hold. The state does not change, and entries have unique times."""
        self.number += 1
        at, of_hosts = round(now, 3), [one for one in self.history if "host" in one]
        while any(one.get("at") == at for one in self.history):
            at = round(at + 0.001, 3)
        removed = of_hosts[: max(0, len(of_hosts) - MOST_HOST_ENTRIES + 1)]
        text = clip(f"{HOST}{host} {what}", 80)
        entry = {"at": at, "from": self.state, "to": self.state, "why": text, "host": host, "starts": is_start}
        self.history = [*(one for one in self.history if one not in removed), entry][-MOST_HISTORY:]

    def _add_host(self, host: str, evidence: dict[str, Any], now: float) -> bool:
        """Put a host on hold. Return whether there was room."""
        if not self.hosts.add(host, evidence, now):
            return False
        text = f"on hold: {evidence['failures']} of {evidence['attempts']} attempts failed"
        self._note_host(host, text, now, is_start=True)
        return True

    def _note_outcomes_of_hosts(
        self, outcomes: Sequence[Outcome], now: float
    ) -> tuple[list[Outcome], list[Outcome], str]:
        """Update the holds of hosts and record which ended. Return the values of `HostHolds.note`."""
        self._end_unseen_hosts(now, {host_key(one.host) for one in outcomes})
        before = self.hosts.current
        found = self.hosts.note(outcomes, now)
        self._note_end_of_hosts(before, "a job succeeded", now)
        return found

    def _end_unseen_hosts(self, now: float, seen: Collection[str] = ()) -> None:
        before = self.hosts.current
        self.hosts.end_unseen(now, seen)
        self._note_end_of_hosts(before, "no job for 10 min", now)

    def _note_end_of_hosts(self, before: Iterable[str], why: str, now: float) -> None:
        """Record the ends of holds: hosts that were on hold before and are no longer."""
        for host in before:
            if host not in self.hosts.current:
                self._note_host(host, f"resumed: {why}", now)

    def _release_hosts(self, now: float, why: str = "jobs fail on all hosts") -> None:
        before, self.hosts.current = self.hosts.current, {}
        self._note_end_of_hosts(before, why, now)

    def _plan_probe(self, now: float, wish_s: float = 0.0) -> None:
        open_s = max(0.0, now - self.opened_at)
        steady_s = min(LONGEST_PROBE_S, max(PROBE_S, PROBE_SHARE * open_s))
        interval_s = min(LONGEST_STRAINED_S, steady_s * self._strain) * (0.8 + 0.4 * self._random())
        self.next_probe_at = round(now + max(interval_s, min(LONGEST_WISH_S, wish_s)), 3)


_PLAIN: dict[str, Any] = {
    "state": str, "since": (int, float), "openings": int, "opened_at": (int, float), "observe": bool, "tenants": list,
    "forced": dict, "evidence": dict, "starts": int, "probe": dict, "next_probe_at": (int, float), "rate": (int, float),
    "number": int,
}  # fmt: skip
_FORCED: dict[str, Any] = {"as": str, "until": (int, float, type(None)), "by": str, "reason": str, "at": (int, float)}
_PROBE: dict[str, Any] = {"at": (int, float), "until": (int, float), "ticket": str}
_EVIDENCE: dict[str, Any] = {
    "failures": int, "attempts": int, "share": (int, float), "usual": (int, float), "since": (int, float),
    "p": (int, float), "kinds": dict, "first_error": str,
}  # fmt: skip
_OWN = frozenset((
    *_PLAIN, "released", "held", "at", "strain", "runtime_s", "valid_s", "silent_probes", "return", "detector", "release", "history",
    "hosts",
))  # fmt: skip
