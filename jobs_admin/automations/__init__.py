"""Automations: when the jobs of a search meet conditions, act on them: replay, discard, assign, notify, pause a queue.

A document is stored; its acts are replays, changed failures and groups, notices and pauses, each with the rights of the
automation's owner, and recorded as decisions. Off until an operator enables it; before that, a dry run shows what it
would have done.
"""

from jobs_admin.automations.changing import (
    approve,
    approver_refusal,
    change,
    check,
    create,
    delete,
    disable,
    enable,
    reset,
    stop_all,
)
from jobs_admin.automations.deciding import step
from jobs_admin.automations.documents import parse_name, parse_search, render
from jobs_admin.automations.playing import DryRun, dry_run
from jobs_admin.automations.reading import (
    STATES,
    DiaryPage,
    diary,
    find_starter,
    get,
    listing,
    may_change,
    state,
)

__all__ = [
    "STATES",
    "DiaryPage",
    "DryRun",
    "approve",
    "approver_refusal",
    "change",
    "check",
    "create",
    "delete",
    "diary",
    "disable",
    "dry_run",
    "enable",
    "find_starter",
    "get",
    "listing",
    "may_change",
    "parse_name",
    "parse_search",
    "render",
    "reset",
    "state",
    "step",
    "stop_all",
]
