"""Time of drawn searches: every qualifier, alone and combined, and the slowest of them.

    DATABASE_URL=… python bench/searches.py [--searches 2000] [--seed 1] [--worst 20]

Uses the desk that the environment names, e.g. one that `fill.py` filled. Words, phrases, names and arguments are drawn from
its failures, times from their span. Each search gives a page of 50 rows and its count, twice; the faster counts. The floor, the
latest 50 rows by the ORM, is measured between them. Prints JSON: milliseconds (on SQLite of processor, which other work on
the machine does not change; on PostgreSQL of the clock), and the slowest searches as ratios to the floor.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")

from bench.machine import machine  # noqa: E402

_SAMPLED, _FLOOR_EVERY = 400, 20
_SPANS = ("10m", "1h", "6h", "1d", "3d", "7d", "20d")


class Drawn:
    """Searches of one desk, by a seed: 1 to 5 terms, one in six negated, one in eight an OR of two, one in ten in
    parentheses."""

    def __init__(self, seed: int) -> None:
        from jobs_admin.models import Failure

        self.random = Random(seed)
        highest = Failure.objects.order_by("-pk").values_list("pk", flat=True)[0]
        ids = {self.random.randint(1, highest) for _ in range(_SAMPLED)}
        self.failures = list(Failure.objects.filter(pk__in=ids).select_related("group"))
        self.now: datetime = Failure.objects.order_by("-received_at")[0].received_at

    def search(self) -> str:
        terms = [self._term() for _ in range(self.random.choice((1, 1, 2, 2, 2, 3, 3, 4, 5)))]
        if len(terms) > 1 and self.random.random() < 1 / 8:
            terms[:2] = [f"{terms[0]} OR {terms[1]}"]
        if self.random.random() < 1 / 10:
            terms.append(f"({self._of_column()} {self._of_column()}) OR ({self._of_column()} {self._of_column()})")
        return " ".join(terms)

    def _term(self) -> str:
        draw = self.random.choice((self._word, self._word, self._phrase, self._of_column, self._of_column, self._time))
        term = draw()
        return f"-{term}" if self.random.random() < 1 / 6 and term[0] not in '"*' and ":" in term else term

    def _word(self) -> str:
        words = f"{self._failure().error_type} {self._failure().message}".split()
        word = "".join(c for c in self.random.choice(words) if c.isalnum()) or "error"
        kind = self.random.random()
        if kind < 0.15:
            return f"{word[:4]}*"
        if kind < 0.22:
            return f"*{word[1:5]}"
        if kind < 0.35:
            return f"{self.random.choice(('error', 'message', 'trace'))}:{word}"
        return word

    def _phrase(self) -> str:
        words = self._failure().message.replace('"', "").split()
        start = self.random.randrange(max(1, len(words) - 2))
        return f'"{" ".join(words[start : start + 2]) or "no error"}"'

    def _of_column(self) -> str:
        from jobs_admin.core.query import STATES

        failure = self._failure()
        name = self.random.choice(
            ("queue", "task", "source", "tenant", "worker", "host", "release", "state", "state", "kind", "group", "attempts",
             "priority", "args", "policy", "replay", "job"),
        )  # fmt: skip
        if name == "state":
            return f"state:{self.random.choice((*STATES, 'any'))}"
        if name == "group":
            return f"group:{failure.group.fingerprint}" if failure.group else "state:any"
        if name in ("attempts", "replay"):
            return f"{name}:{self.random.choice(('1', '>=2', '2..4'))}"
        if name == "priority":
            return f"priority:{self.random.choice(('high', 'low', '>=5'))}"
        if name == "args":
            return self._argument(failure)
        if name == "policy":
            return "policy:*"
        if name == "job":
            return failure.job_id
        value = str(getattr(failure, name) or "none")
        return f'{name}:"{value}"' if self.random.random() < 0.8 else f"{name}:{value[:3]}*"

    def _argument(self, failure: Any) -> str:
        try:
            kwargs = json.loads(failure.kwargs or "{}")
        except ValueError:
            return "kwargs.id:1"
        plain = [(key, value) for key, value in kwargs.items() if isinstance(value, str | int)]
        key, value = self.random.choice(plain or [("id", 1)])
        return f'kwargs.{key}:"{value}"'

    def _time(self) -> str:
        one, other = self.random.choice(_SPANS), self.random.choice(_SPANS)
        return self.random.choice(
            (f"since:{one}", f"until:{one}", f"age:<{one}", f"age:>{one}", f"since:{one} until:{other}")
        )

    def _failure(self) -> Any:
        return self.random.choice(self.failures)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--searches", type=int, default=2_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--worst", type=int, default=20)
    chosen = options.parse_args()

    import django

    django.setup()
    from django.db import connection

    from jobs_admin import failures
    from jobs_admin.models import Failure
    from jobs_admin.models.access import ENGINE

    drawn = Drawn(chosen.seed)
    took: dict[str, float] = {}
    counts: dict[str, failures.Count] = {}
    seconds = time.process_time if connection.vendor == "sqlite" else time.perf_counter
    floors: list[float] = []
    for n in range(chosen.searches):
        text = drawn.search()
        runs = []
        for _ in range(2):
            started = seconds()
            page = failures.search(ENGINE, text, now=drawn.now)
            runs.append(1000 * (seconds() - started))
        took[text], counts[text] = min(runs), page.count
        if n % _FLOOR_EVERY == 0:
            started = seconds()
            list(Failure.objects.order_by("-pk")[:50])
            floors.append(1000 * (seconds() - started))
    floor, every = median(floors), sorted(took.values())
    worst = sorted(took, key=lambda text: -took[text])[: chosen.worst]
    cuts = quantiles(every, n=100)
    found = {
        "machine": machine(),
        "failures": Failure.objects.count(),
        "searches": len(took),
        "without_a_match": sum(not count.number for count in counts.values()),
        "ms": {"floor": floor, "p50": median(every), "p95": cuts[94], "p99": cuts[98], "most": every[-1]},
        "worst": [
            {
                "search": text,
                "ms": round(took[text], 1),
                "floors": round(took[text] / floor, 1),
                "count": counts[text].text,
            }
            for text in worst
        ],
    }
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
