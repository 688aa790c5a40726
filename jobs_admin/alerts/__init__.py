"""Alerts: rules on depths, the episodes in which they are true, what keeps them quiet, and what is told of them."""

from jobs_admin.alerts.acknowledging import acknowledge
from jobs_admin.alerts.checking import DEFAULTS, FIELDS, bound
from jobs_admin.alerts.judging import EVERY_S, judge
from jobs_admin.alerts.links import Links, links, page_of
from jobs_admin.alerts.previewing import Episode, Preview, PreviewSeries, preview
from jobs_admin.alerts.reading import (
    OPEN,
    AlertPage,
    Times,
    earlier,
    events,
    firing,
    get,
    listing,
    times,
    together,
)
from jobs_admin.alerts.risen import RisenGroup, groups_behind
from jobs_admin.alerts.rules import check_rule, delete_rule, document, may_change, rule, rules, save_rule
from jobs_admin.alerts.runbooks import delete_runbook, runbooks, save_runbook
from jobs_admin.alerts.runbooks import may_change as may_change_runbooks
from jobs_admin.alerts.runbooks import of_alert as runbook_of
from jobs_admin.alerts.silencing import end_silence, may_end, silence, silences
from jobs_admin.alerts.standing import Standing, standing, telling

__all__ = [
    "DEFAULTS",
    "EVERY_S",
    "FIELDS",
    "OPEN",
    "AlertPage",
    "Episode",
    "Links",
    "Preview",
    "PreviewSeries",
    "RisenGroup",
    "Standing",
    "Times",
    "acknowledge",
    "bound",
    "check_rule",
    "delete_rule",
    "delete_runbook",
    "document",
    "earlier",
    "end_silence",
    "events",
    "firing",
    "get",
    "groups_behind",
    "judge",
    "links",
    "listing",
    "may_change",
    "may_change_runbooks",
    "may_end",
    "page_of",
    "preview",
    "rule",
    "rules",
    "runbook_of",
    "runbooks",
    "save_rule",
    "save_runbook",
    "silence",
    "silences",
    "standing",
    "telling",
    "times",
    "together",
]
