"""Retry policies: publish, put back, withdraw; what is in force, and who runs it."""

from jobs_admin.policies.changes import Change, Conflict, difference
from jobs_admin.policies.expiring import expire, step
from jobs_admin.policies.publishing import check, publish, put_back, withdraw
from jobs_admin.policies.pushing import push
from jobs_admin.policies.reading import VersionPage, active, get, published, version, versions
from jobs_admin.policies.refusals import EqualMatch, NoSuchPolicy, PolicyRefused, StaleEdit
from jobs_admin.policies.rights import may_publish, may_see

__all__ = [
    "Change",
    "Conflict",
    "EqualMatch",
    "NoSuchPolicy",
    "PolicyRefused",
    "StaleEdit",
    "VersionPage",
    "active",
    "check",
    "difference",
    "expire",
    "get",
    "may_publish",
    "may_see",
    "publish",
    "published",
    "push",
    "put_back",
    "step",
    "version",
    "versions",
    "withdraw",
]
