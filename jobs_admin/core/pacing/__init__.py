"""Pace of a replay over time: its fields, the number of jobs that may be sent now, and the reasons to hold it."""

from jobs_admin.core.pacing.bucket import Bucket
from jobs_admin.core.pacing.controller import CANARY, CHECK_S, HELD, RAMPING, RUNNING, Controller, Seen, Verdict
from jobs_admin.core.pacing.evidence import Evidence, Judged, stop_rule
from jobs_admin.core.pacing.pace import (
    AT_ONCE,
    CAREFUL,
    DEFAULT,
    FASTEST,
    LEAST_KNOWN,
    SLOWEST,
    STEADY,
    Canary,
    Pace,
    PerKey,
    Ramp,
    Stop,
    Window,
    default_for,
    settled,
)  # fmt: skip
from jobs_admin.core.pacing.parsing import parse
from jobs_admin.core.pacing.simulation import Estimate, Limit, Outlook, Simulation, estimate, outlook, served, simulate

__all__ = [
    "AT_ONCE", "CANARY", "CAREFUL", "CHECK_S", "DEFAULT", "FASTEST", "HELD",
    "LEAST_KNOWN", "RAMPING", "RUNNING", "SLOWEST", "STEADY",
    "Bucket", "Canary", "Controller", "Estimate", "Evidence", "Judged", "Limit",
    "Outlook", "Pace", "PerKey", "Ramp", "Seen",
    "Simulation",
    "Stop", "Verdict", "Window", "default_for", "estimate",
    "outlook", "parse", "served", "settled",
    "simulate", "stop_rule",
]  # fmt: skip
