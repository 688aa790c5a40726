"""The rules, a small family a file, in the order in which they are told."""

from jobs_admin.core.lint.rules import growth  # isort: skip
from jobs_admin.core.lint.rules import endurance, written, queued, broker, crashes, errors, herd, layers, results, fleet  # isort: skip

__all__ = [
    "broker", "crashes", "endurance", "errors", "fleet", "growth", "herd", "layers", "queued", "results", "written",
]  # fmt: skip
