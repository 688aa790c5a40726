"""Incidents: their span, events in order, and numbers."""

from jobs_admin.incidents.moments import Moment, Ref
from jobs_admin.incidents.over_time import OverTime, Point
from jobs_admin.incidents.reading import Act, Counts, Incident, incident
from jobs_admin.incidents.spans import Span, span

__all__ = [
    "Act",
    "Counts",
    "Incident",
    "Moment",
    "OverTime",
    "Point",
    "Ref",
    "Span",
    "incident",
    "span",
]
