"""How deep each queue was, as far back as it is kept: folded as it ages, read as a picture, with what happened meanwhile."""

from jobs_admin.queues.depths.desk import DeadDepth, DeadLine, dead_depth
from jobs_admin.queues.depths.gaps import Gap, Point
from jobs_admin.queues.depths.ladder import LADDER, LOOK_S
from jobs_admin.queues.depths.marking import Mark, marks, of_queue
from jobs_admin.queues.depths.reading import MOST, History, NoSuchQueue, history, must_see, watched_since
from jobs_admin.queues.depths.rolling import roll_up, step
from jobs_admin.queues.depths.thresholds import Threshold

__all__ = [
    "LADDER",
    "LOOK_S",
    "MOST",
    "DeadDepth",
    "DeadLine",
    "Gap",
    "History",
    "Mark",
    "NoSuchQueue",
    "Point",
    "Threshold",
    "dead_depth",
    "history",
    "marks",
    "must_see",
    "of_queue",
    "roll_up",
    "step",
    "watched_since",
]
