"""Mistakes in how jobs are retried: in our policies, and in what live Celery workers really have configured.

case = lint.case(policies, configurations, facts)
lint.findings(case)     # every rule, the worst first
lint.check(case)        # the check of exponential backoff, with a verdict for every configuration
"""

from __future__ import annotations

from jobs_admin.core.lint import rules  # noqa: F401  (they add themselves)
from jobs_admin.core.lint.case import OUTAGE_S, Case, Facts, Outage, case, known_tasks
from jobs_admin.core.lint.configuration import Configuration, Where
from jobs_admin.core.lint.finding import HIGH, LOW, MEDIUM, RULES, SEVERITIES, Finding, findings
from jobs_admin.core.lint.rules.exponential_backoff import ID as GROWTH
from jobs_admin.core.lint.rules.exponential_backoff import VERDICTS, Check, Verdict, check

__all__ = [
    "GROWTH", "HIGH", "LOW", "MEDIUM", "OUTAGE_S", "RULES", "SEVERITIES", "VERDICTS",
    "Case", "Check", "Configuration", "Facts", "Finding", "Outage", "Verdict", "Where",
    "case", "check", "findings", "known_tasks",
]  # fmt: skip
