"""Checked configuration of a BullMQ source (docs/sources.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.bullmq.dead_letters import Configured, parse_configured
from jobs_admin.sources.bullmq.wire import MAJORS

_OPTIONS = {"prefix", "dead_letter_queues", "outcome_within_s", "every_s", "major", "tenant"}
_OFTEN_S, _SELDOM_S = 0.05, 3600  # between two readings
_LONGEST_S = 30 * 86400


@dataclass(frozen=True, slots=True)
class Settings:
    prefix: str
    dead: Mapping[str, Configured]
    outcome_within_s: float
    every_s: float
    major: int | None  # of queues that do not state it
    tenants: tuple[str, ...]  # paths

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any]) -> Settings:
        """Check the options of a source. Raises SourceRefused, with a sentence."""
        if unknown := set(options) - _OPTIONS:
            known = ", ".join(sorted({*_OPTIONS, "queues"}))
            raise SourceRefused(f"Source {name}: unknown option {min(unknown)!r}; known: {known}.")
        prefix = options.get("prefix", "bull")
        if not isinstance(prefix, str) or not prefix:
            raise SourceRefused(f'Source {name}: prefix is text, such as "bull", not {str(prefix)[:40]!r}.')
        major = options.get("major")
        if major is not None and (not isinstance(major, int) or major not in MAJORS):
            raise SourceRefused(f"Source {name}: major is 4, 5 or 6, not {str(major)[:40]!r}.")
        return cls(
            prefix,
            parse_configured(name, options.get("dead_letter_queues")),
            _seconds(name, "outcome_within_s", options.get("outcome_within_s", 3600), 1, _LONGEST_S),
            _seconds(name, "every_s", options.get("every_s", 0.5), _OFTEN_S, _SELDOM_S),
            major,
            _paths(name, options.get("tenant", ())),
        )


def _seconds(name: str, option: str, value: Any, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:  # nor NaN
        raise SourceRefused(
            f"Source {name}: {option} is a number of seconds, from {least} to {most}, not {str(value)[:40]!r}."
        )
    return float(value)


def _paths(name: str, value: Any) -> tuple[str, ...]:
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list | tuple) or not all(isinstance(one, str) and one for one in paths):
        raise SourceRefused(
            f'Source {name}: tenant is where a job says whose it is, such as "kwargs.customer.id", or a list of such places, not '
            f"{str(value)[:40]!r}."
        )
    return tuple(paths)
