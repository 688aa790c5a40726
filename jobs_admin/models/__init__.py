"""The database tables, one module per noun."""

from jobs_admin.models.access import ApiToken, Identity, Role
from jobs_admin.models.alert import Alert, AlertEvent, Rule, Runbook, Silence
from jobs_admin.models.audit import AuditEvent, AuditPosition
from jobs_admin.models.automation import Automation, AutomationDecision
from jobs_admin.models.counter import GroupCounter, QueueCounter, Total
from jobs_admin.models.failure import Attempt, Comeback, Failure, Payload, Traceback
from jobs_admin.models.failure_count import FailureCount
from jobs_admin.models.group import Group, GroupAlias, GroupRule, GroupSource
from jobs_admin.models.hold import BreakerEvent, Pause
from jobs_admin.models.notice import Channel, Delivery, Notice
from jobs_admin.models.policy import PolicyVersion
from jobs_admin.models.replay import FrozenBatch, Replay, ReplayItem
from jobs_admin.models.reschedule import Reschedule, ReschedulePart
from jobs_admin.models.saved_view import ListColumns, SavedView
from jobs_admin.models.sign_in import RecoveryCode, SecondFactor, SignIn, SlackLink, SlackRequest
from jobs_admin.models.source import DepthSample, Release, Source, Worker
from jobs_admin.models.trust import RefusedReports, SourceKey, Unfiled, UnsignedReports

__all__ = [
    "Alert",
    "AlertEvent",
    "ApiToken",
    "Attempt",
    "AuditEvent",
    "AuditPosition",
    "Automation",
    "AutomationDecision",
    "BreakerEvent",
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
    "Identity",
    "ListColumns",
    "Notice",
    "Pause",
    "Payload",
    "PolicyVersion",
    "QueueCounter",
    "RecoveryCode",
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
    "SecondFactor",
    "SignIn",
    "Silence",
    "SlackLink",
    "SlackRequest",
    "Source",
    "SourceKey",
    "Total",
    "Traceback",
    "Unfiled",
    "UnsignedReports",
    "Worker",
]
