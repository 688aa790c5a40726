"""The randomness of retries."""

from __future__ import annotations

from random import SystemRandom

# The system's, which has no state of ours: processes that were forked from one another draw different numbers, whoever
# forked them, and a task that calls `random.seed(1)` for its own work does not put the whole fleet in step. It is asked
# once for each failed attempt, so that it costs a microsecond more is nothing.
uniform = SystemRandom().random
"""A number from 0 up to, not including, 1. Safe after a fork, and in threads."""
