"""How a replay is spread over time: what a pace says, how many jobs may go now, and when it is held."""

from jobs_admin.core.pacing.bucket import Bucket
from jobs_admin.core.pacing.controller import CANARY, HELD, LOOK_S, RAMPING, RUNNING, Controller, Seen, Verdict
from jobs_admin.core.pacing.evidence import Evidence, Judged
from jobs_admin.core.pacing.pace import (
    AT_ONCE,
    CAREFUL,
    DEFAULT,
    FASTEST,
    SLOWEST,
    STEADY,
    Canary,
    Pace,
    PerKey,
    Ramp,
    Stop,
    default_for,
    settled,
)  # fmt: skip
from jobs_admin.core.pacing.parsing import PaceRefused, parse
from jobs_admin.core.pacing.simulation import Estimate, Outlook, Simulation, estimate, outlook, simulate
from jobs_admin.core.pacing.window import Window

__all__ = [
    "AT_ONCE", "CANARY", "CAREFUL", "DEFAULT", "FASTEST", "HELD",
    "LOOK_S", "RAMPING", "RUNNING", "SLOWEST", "STEADY",
    "Bucket", "Canary", "Controller", "Estimate", "Evidence", "Judged",
    "Outlook", "Pace", "PaceRefused", "PerKey", "Ramp", "Seen",
    "Simulation",
    "Stop", "Verdict", "Window", "default_for", "estimate",
    "outlook", "parse", "settled",
    "simulate",
]  # fmt: skip
