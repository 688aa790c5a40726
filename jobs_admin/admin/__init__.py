"""Django's admin: records to read, and a few acts, each through the same services as everywhere else.

What a person sees and may do here is decided by their roles per source, not by Django's model permissions.
"""

from jobs_admin.admin import accounts, alerts, failures, groups, holds, policies, replays, sources

__all__ = [
    "accounts",
    "alerts",
    "failures",
    "groups",
    "holds",
    "policies",
    "replays",
    "sources",
]
