"""Replays: the one way back to a queue. Every road (button, selection, API, command) enters through `draft`."""

from jobs_admin.fleet.signatures import signatures
from jobs_admin.replays.acts import bring_back, cancel, change_pace, discard, pause, resume
from jobs_admin.replays.approval import needs_admin, why_not_by
from jobs_admin.replays.cautions import unchecked
from jobs_admin.replays.controlling import learned_limit
from jobs_admin.replays.drafting import approve, draft, launch, start
from jobs_admin.replays.laying import lay
from jobs_admin.replays.letters import check_edit, fields_of
from jobs_admin.replays.options import Options
from jobs_admin.replays.patching import PatchedJob, PatchedPage, patched
from jobs_admin.replays.previewing import GroupChoice, Preview, preview
from jobs_admin.replays.reading import (
    GroupAside,
    ItemPage,
    ReplayPage,
    count,
    count_items,
    cured_groups,
    failed_again_groups,
    failing_groups,
    find,
    groups_aside,
    items,
    left_out_groups,
    listing,
    standing,
    visible,
)
from jobs_admin.replays.resolving import resolve_all, resolve_item, uncertain
from jobs_admin.replays.rights import sources_of
from jobs_admin.replays.scoping import Scope
from jobs_admin.replays.sending import send
from jobs_admin.replays.settling import settle

__all__ = [
    "GroupAside",
    "GroupChoice",
    "ItemPage",
    "Options",
    "PatchedJob",
    "PatchedPage",
    "Preview",
    "ReplayPage",
    "Scope",
    "approve",
    "bring_back",
    "cancel",
    "change_pace",
    "check_edit",
    "count",
    "count_items",
    "cured_groups",
    "discard",
    "draft",
    "failed_again_groups",
    "failing_groups",
    "fields_of",
    "find",
    "groups_aside",
    "items",
    "launch",
    "lay",
    "learned_limit",
    "left_out_groups",
    "listing",
    "needs_admin",
    "patched",
    "pause",
    "preview",
    "resolve_all",
    "resolve_item",
    "resume",
    "send",
    "settle",
    "signatures",
    "sources_of",
    "standing",
    "start",
    "uncertain",
    "unchecked",
    "visible",
    "why_not_by",
]
