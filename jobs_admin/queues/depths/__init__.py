"""Depth of each queue over time: folded with age, and read as a chart with the events of that time."""

from jobs_admin.queues.depths.marking import (
    DeadDepth,
    DeadLine,
    Mark,
    Threshold,
    dead_depth,
    desk_marks,
    marks,
    replays_of_queue,
)
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
from jobs_admin.queues.depths.steps import DAY, LADDER, SAMPLE_S, chart_steps

__all__ = [
    "BEFORE",
    "DAY",
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
    "desk_marks",
    "desk_sampled_since",
    "history",
    "marks",
    "replays_of_queue",
    "require_visible",
    "roll_up",
    "sampled_since",
    "step",
]
