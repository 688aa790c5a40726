"""How deep each queue was, as far back as it is kept: folded as it ages, read as a picture, with what happened meanwhile."""

from jobs_admin.depths.desk import DeadDepth, DeadLine, dead_depth
from jobs_admin.depths.gaps import Gap
from jobs_admin.depths.ladder import LADDER, LOOK_S
from jobs_admin.depths.marking import Mark, marks, of_queue
from jobs_admin.depths.reading import MOST, History, NoSuchQueue, Point, history, must_see, watched_since
from jobs_admin.depths.rolling import roll_up, step
from jobs_admin.depths.thresholds import Threshold

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
