"""Pages, batches and bounds of the desk made small, so that a history of a dozen jobs crosses each of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class SmallBounds:
    """`SmallBounds({"failures.triage._AT_ONCE": 3})` sets `jobs_admin.failures.triage._AT_ONCE`; `restore` gives back what was."""

    def __init__(self, bounds: dict[str, Any]) -> None:
        self._before: list[tuple[Any, str, Any]] = []
        for name, value in bounds.items():
            path, _, attribute = name.rpartition(".")
            module = import_module(f"jobs_admin.{path}")
            self._before.append((module, attribute, getattr(module, attribute)))
            setattr(module, attribute, value)

    def restore(self) -> None:
        for module, attribute, value in reversed(self._before):
            setattr(module, attribute, value)
        self._before.clear()
