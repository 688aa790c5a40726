"""The exclusions of a replay that an operator can accept, in words."""

from __future__ import annotations

# name -> (which jobs, what may become of them)
_WORDS = {
    "unguarded": ("queues with unguarded workers", "outcomes may stay unknown"),
    "chord": ("headers of chords that have ended", "the jobs run again, the chord bodies do not"),
    "expired": ("expired jobs", "the jobs run despite being expired"),
    "unknown_task": ("tasks that no active worker has registered", "no worker may run them"),
}


def which(name: str) -> str:
    """The jobs that go because it was accepted."""
    return _WORDS[name][0] if name in _WORDS else name


def offer(name: str) -> str:
    """The same as a sentence, with what to expect."""
    jobs, means = _WORDS[name]
    return f"{jobs[0].upper()}{jobs[1:]}: {means}"
