"""The tables, one module a noun (design.md, Data)."""

from jobs_admin.models.access import ApiToken, Role
from jobs_admin.models.alert import Alert, AlertEvent, Rule, Runbook, Silence
from jobs_admin.models.audit import AuditEvent
from jobs_admin.models.counter import GroupCounter, QueueCounter
from jobs_admin.models.depth import DepthSample
from jobs_admin.models.failure import Attempt, Comeback, Failure, Payload, Traceback
from jobs_admin.models.failure_count import FailureCount
from jobs_admin.models.group import Group, GroupAlias, GroupSource
from jobs_admin.models.group_rule import GroupRule
from jobs_admin.models.notice import Channel, Delivery, Notice
from jobs_admin.models.pause import Pause
from jobs_admin.models.policy import PolicyVersion
from jobs_admin.models.release import Release
from jobs_admin.models.replay import FrozenBatch, Replay, ReplayItem
from jobs_admin.models.reschedule import Reschedule, ReschedulePart
from jobs_admin.models.saved_view import ListColumns, SavedView
from jobs_admin.models.source import Source, Worker
from jobs_admin.models.total import Total
from jobs_admin.models.trust import RefusedReports, SourceKey, UnsignedReports
from jobs_admin.models.unfiled import Unfiled

__all__ = [
    "Alert",
    "AlertEvent",
    "ApiToken",
    "Attempt",
    "AuditEvent",
    "Channel",
    "Comeback",
    "Delivery",
    "DepthSample",
    "Failure",
    "FailureCount",
    "FrozenBatch",
    "Group",
    "GroupAlias",
    "GroupCounter",
    "GroupRule",
    "GroupSource",
    "ListColumns",
    "Notice",
    "Pause",
    "Payload",
    "PolicyVersion",
    "QueueCounter",
    "RefusedReports",
    "Release",
    "Replay",
    "ReplayItem",
    "Reschedule",
    "ReschedulePart",
    "Role",
    "Rule",
    "Runbook",
    "SavedView",
    "Silence",
    "Source",
    "SourceKey",
    "Total",
    "Traceback",
    "Unfiled",
    "UnsignedReports",
    "Worker",
]
