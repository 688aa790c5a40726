"""100,000 strings through search: no error, `parse(format(q)) == q`, and what the database makes of them.

    python bench/strings.py [--strings 100000] [--failures 300] [--seed 1] [--url postgresql://…]

Makes a database of its own (SQLite in a temporary folder, or a new one on the given PostgreSQL server), writes the
failures of `tests/search`, searches for every string (page and count), and compares each 100th with what Python decides
without a database. Prints JSON; ends with 1 where anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--failures", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", default="", help="a PostgreSQL server; a database is made there and dropped")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SECRET_KEY": "bench", "DJANGO_SETTINGS_MODULE": "dashboard.settings", "REDRIVE_DATA": folder}
        os.environ["DATABASE_URL"] = wanted.url or f"sqlite:///{folder}/desk.sqlite3"
        import django

        django.setup()
        from django.db import connection
        from django.test.utils import setup_test_environment

        setup_test_environment()
        name = connection.creation.create_test_db(verbosity=0, autoclobber=True)
        try:
            found = run(wanted)
        finally:
            connection.creation.destroy_test_db(name, verbosity=0)
    print(json.dumps(found, indent=1, ensure_ascii=False))
    return 1 if found["errors"] or found["changed_by_writing"] or found["disagreements"] else 0


def run(wanted: argparse.Namespace) -> dict[str, object]:
    from django.db import connection

    from jobs_admin import failures
    from jobs_admin.core.query import format, parse
    from jobs_admin.models.access import ENGINE
    from tests.search import world
    from tests.search.strings import strings

    rows = world.make(wanted.seed, wanted.failures)
    errors, changed, disagreements, compared = [], [], [], 0
    took, kinds = [], Counter[str]()
    started = time.perf_counter()
    for n, text in enumerate(strings(wanted.strings, wanted.seed)):
        try:
            query = parse(text, world.NOW)
            if parse(format(query), world.NOW) != query:
                changed.append(text)
            before = time.perf_counter()
            page = failures.search(ENGINE, text, now=world.NOW, limit=500)
            took.append(time.perf_counter() - before)
        except Exception as error:  # every string has its turn; what went wrong is counted and shown
            errors.append(f"{text!r}: {type(error).__name__}: {error}"[:300])
            continue
        kinds["found" if page.rows else "empty"] += 1
        kinds["bounded"] += query.is_bounded
        if n % 100 == 0 and not query.is_cut and "replay" not in query.fields:
            compared += 1
            if [row.pk for row in page.rows] != world.expected(query, rows):
                disagreements.append(text)
    took.sort()
    return {
        "database": f"{connection.vendor} {connection.pg_version if connection.vendor == 'postgresql' else ''}".strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load_average": round(os.getloadavg()[0], 1),
        "strings": wanted.strings,
        "failures": wanted.failures,
        "seconds": round(time.perf_counter() - started, 1),
        "search_ms": {"p50": _ms(took, 0.5), "p95": _ms(took, 0.95), "max": _ms(took, 1.0)},
        "results": dict(kinds),
        "errors": errors[:20],
        "changed_by_writing": changed[:20],
        "compared_with_python": compared,
        "disagreements": disagreements[:20],
    }


def _ms(took: list[float], share: float) -> float:
    return round(1000 * took[min(len(took) - 1, int(share * len(took)))], 2) if took else 0.0


if __name__ == "__main__":
    sys.exit(main())
