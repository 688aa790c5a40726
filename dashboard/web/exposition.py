"""Prometheus' text format, version 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/, 2025)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Mapping[str, str]
    value: float
    suffix: str = ""  # of a summary: `_sum`, `_count`


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    type: str  # counter, gauge, summary
    help: str
    samples: list[Sample]

    def lines(self) -> Iterator[str]:
        """Its head also where nothing is known of it: so whoever looks finds its name."""
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.type}"
        for sample in self.samples:
            said = ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in sample.labels.items())
            # To the last job: with six digits a million and one would be a million.
            number = f"{sample.value:.15g}"
            yield f"{self.name}{sample.suffix}{{{said}}} {number}" if said else f"{self.name}{sample.suffix} {number}"
