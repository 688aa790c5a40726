"""Alerts: rules on depths, the episodes in which they are true, silences, and notices."""

from jobs_admin.alerts.acknowledging import (
    Acknowledgement,
    Calling,
    acknowledge,
    count_calling,
    count_undoable,
    unacknowledge,
)
from jobs_admin.alerts.affected_groups import (
    Cause,
    Causes,
    RisenGroup,
    count_outcomes,
    find_causes,
    groups_behind,
    has_failures_behind,
)
from jobs_admin.alerts.checking import DEFAULTS, FIELDS, bound
from jobs_admin.alerts.judging import EVERY_S, judge
from jobs_admin.alerts.links import Links, alert_page, links, replay_query
from jobs_admin.alerts.previewing import Episode, Preview, PreviewSeries, preview
from jobs_admin.alerts.reading import (
    OPEN,
    AlertPage,
    Fold,
    Times,
    bundle,
    earlier,
    events,
    firing,
    fold,
    get,
    listing,
    times,
)
from jobs_admin.alerts.rule_status import RuleStatus, read_rule_status, rules_by_channel
from jobs_admin.alerts.rules import check_rule, delete_rule, document, may_change, rule, rules, save_rule
from jobs_admin.alerts.runbooks import delete_runbook, runbooks, save_runbook
from jobs_admin.alerts.runbooks import find_alert_runbook as runbook_of
from jobs_admin.alerts.runbooks import may_change as may_change_runbooks
from jobs_admin.alerts.silencing import end_silence, may_end, silence, silences

__all__ = [
    "DEFAULTS",
    "EVERY_S",
    "FIELDS",
    "OPEN",
    "Acknowledgement",
    "AlertPage",
    "Calling",
    "Cause",
    "Causes",
    "Episode",
    "Fold",
    "Links",
    "Preview",
    "PreviewSeries",
    "RisenGroup",
    "RuleStatus",
    "Times",
    "acknowledge",
    "alert_page",
    "bound",
    "bundle",
    "check_rule",
    "count_calling",
    "count_outcomes",
    "count_undoable",
    "delete_rule",
    "delete_runbook",
    "document",
    "earlier",
    "end_silence",
    "events",
    "find_causes",
    "firing",
    "fold",
    "get",
    "groups_behind",
    "has_failures_behind",
    "judge",
    "links",
    "listing",
    "may_change",
    "may_change_runbooks",
    "may_end",
    "preview",
    "read_rule_status",
    "replay_query",
    "rule",
    "rules",
    "rules_by_channel",
    "runbook_of",
    "runbooks",
    "save_rule",
    "save_runbook",
    "silence",
    "silences",
    "times",
    "unacknowledge",
]
