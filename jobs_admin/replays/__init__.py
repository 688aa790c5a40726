"""Replays: the only way for jobs to return to a queue.

Every entry point (button, selection, API, command) calls `draft`.
"""

from jobs_admin.fleet.signatures import signatures
from jobs_admin.replays.acts import (
    bring_back,
    cancel,
    change_pace,
    discard,
    find_uncertain,
    pause,
    resolve_all,
    resolve_item,
    resume,
)
from jobs_admin.replays.controlling import learned_limit
from jobs_admin.replays.drafting import approve, draft, launch, start
from jobs_admin.replays.freezing import create_items
from jobs_admin.replays.messages import check_edit, editable_fields
from jobs_admin.replays.obstacles import Obstacle, find_obstacles
from jobs_admin.replays.options import Options
from jobs_admin.replays.patching import PatchedJob, PatchedPage, list_patched_jobs
from jobs_admin.replays.preview_warnings import unchecked_task_warnings
from jobs_admin.replays.previewing import GroupChoice, Outlook, Preview, explain_nothing, preview, read_outlook
from jobs_admin.replays.reading import (
    FailedGroup,
    FailingGroup,
    GroupAside,
    ItemPage,
    ReplayPage,
    compare_errors,
    count,
    count_dead,
    count_excluded_dead,
    count_items,
    cured_groups,
    excluded_groups,
    failed_again_groups,
    failing_groups,
    find,
    groups_aside,
    items,
    listing,
    read_errors_before,
    stopped_replays,
)
from jobs_admin.replays.ready_jobs import ReadyJobs, count_by_group, read_ready
from jobs_admin.replays.rights import approver_refusal, needs_admin, sources_of
from jobs_admin.replays.sending import send
from jobs_admin.replays.settling import settle
from jobs_admin.replays.slack import press as handle_slack_press
from jobs_admin.replays.target import Target

__all__ = [
    "FailedGroup",
    "FailingGroup",
    "GroupAside",
    "GroupChoice",
    "ItemPage",
    "Obstacle",
    "Options",
    "Outlook",
    "PatchedJob",
    "PatchedPage",
    "Preview",
    "ReadyJobs",
    "ReplayPage",
    "Target",
    "approve",
    "approver_refusal",
    "bring_back",
    "cancel",
    "change_pace",
    "check_edit",
    "compare_errors",
    "count",
    "count_by_group",
    "count_dead",
    "count_excluded_dead",
    "count_items",
    "create_items",
    "cured_groups",
    "discard",
    "draft",
    "editable_fields",
    "excluded_groups",
    "explain_nothing",
    "failed_again_groups",
    "failing_groups",
    "find",
    "find_obstacles",
    "find_uncertain",
    "groups_aside",
    "handle_slack_press",
    "items",
    "launch",
    "learned_limit",
    "list_patched_jobs",
    "listing",
    "needs_admin",
    "pause",
    "preview",
    "read_errors_before",
    "read_outlook",
    "read_ready",
    "resolve_all",
    "resolve_item",
    "resume",
    "send",
    "settle",
    "signatures",
    "sources_of",
    "start",
    "stopped_replays",
    "unchecked_task_warnings",
]
