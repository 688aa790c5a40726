"""Depth of each queue over time, as far back as it is stored: folded as it ages, read as a picture, with the events
meanwhile."""

from jobs_admin.queues.depths.marking import DeadDepth, DeadLine, Mark, Threshold, dead_depth, marks, replays_of_queue
from jobs_admin.queues.depths.reading import (
    BEFORE,
    IN_PROGRESS,
    MOST,
    Gap,
    History,
    Point,
    desk_sampled_since,
    history,
    require_visible,
    sampled_since,
)
from jobs_admin.queues.depths.rolling import roll_up, step
from jobs_admin.queues.depths.steps import LADDER, SAMPLE_S, chart_steps

__all__ = [
    "BEFORE",
    "IN_PROGRESS",
    "LADDER",
    "MOST",
    "SAMPLE_S",
    "DeadDepth",
    "DeadLine",
    "Gap",
    "History",
    "Mark",
    "Point",
    "Threshold",
    "chart_steps",
    "dead_depth",
    "desk_sampled_since",
    "history",
    "marks",
    "replays_of_queue",
    "require_visible",
    "roll_up",
    "sampled_since",
    "step",
]
