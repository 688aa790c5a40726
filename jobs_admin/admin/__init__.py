"""Django's admin: records, and a few acts through the same services as everywhere else.

What a person sees and may do is decided by their roles per source, not by Django's model permissions.
"""

from jobs_admin.admin import accounts, alerts, automations, failures, groups, policies, replays, sources

__all__ = [
    "accounts",
    "alerts",
    "automations",
    "failures",
    "groups",
    "policies",
    "replays",
    "sources",
]
