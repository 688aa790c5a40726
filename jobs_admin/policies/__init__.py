"""Retry policies: publish, put back, withdraw; what is in force, and who runs it."""

from jobs_admin.policies.backtesting import Backtest, backtest
from jobs_admin.policies.budgets import BudgetLeft, budget, budgets
from jobs_admin.policies.changes import Change, Conflict, conflicts, difference
from jobs_admin.policies.expiring import expire, step
from jobs_admin.policies.observing import Observed, observed
from jobs_admin.policies.previewing import JOBS, preview
from jobs_admin.policies.publishing import check, may_publish, publish, put_back, read, withdraw
from jobs_admin.policies.pushing import push
from jobs_admin.policies.reading import VersionPage, active, get, published, readable, version, versions
from jobs_admin.policies.running import InForce, TaskPolicy, by_task, in_force

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
