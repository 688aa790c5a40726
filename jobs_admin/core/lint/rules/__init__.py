"""Lint rules, one module per family. Findings follow the order of these imports."""

from jobs_admin.core.lint.rules import exponential_backoff  # isort: skip
from jobs_admin.core.lint.rules import attempts, job_options, delivery, errors, amplification, results, fleet  # isort: skip

__all__ = [
    "amplification", "attempts", "delivery", "errors", "exponential_backoff", "fleet", "job_options", "results",
]  # fmt: skip
