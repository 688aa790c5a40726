"""Retry policies: publish, restore and withdraw; policies in force, and the workers that run them."""

from jobs_admin.policies.changes import Change, Conflict, conflicts, difference
from jobs_admin.policies.previewing import JOBS, Backtest, backtest, preview
from jobs_admin.policies.publishing import check, may_publish, publish, put_back, read, withdraw
from jobs_admin.policies.pushing import push
from jobs_admin.policies.reading import VersionPage, active, get, published, readable, version, versions
from jobs_admin.policies.running import (
    BudgetLeft,
    InForce,
    Observed,
    TaskPolicy,
    budget,
    budgets,
    by_task,
    in_force,
    observed,
)
from jobs_admin.policies.succession import expire, step

__all__ = [
    "JOBS",
    "Backtest",
    "BudgetLeft",
    "Change",
    "Conflict",
    "InForce",
    "Observed",
    "TaskPolicy",
    "VersionPage",
    "active",
    "backtest",
    "budget",
    "budgets",
    "by_task",
    "check",
    "conflicts",
    "difference",
    "expire",
    "get",
    "in_force",
    "may_publish",
    "observed",
    "preview",
    "publish",
    "published",
    "push",
    "put_back",
    "read",
    "readable",
    "step",
    "version",
    "versions",
    "withdraw",
]
