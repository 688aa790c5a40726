"""Upgrade and backup of a large desk: `python -m bench.upgrade [--failures 1000000] [--postgresql]`.

A desk of an earlier commit is filled, then upgraded to this one and taken back while pages are requested and reports
arrive; then backed up and restored. Reports failed requests, lost failures, the longest pause, and the time of each part.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--failures", type=int, default=1_000_000)
    parser.add_argument("--postgresql", action="store_true", help="on a private PostgreSQL server instead of SQLite")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped then, too
    if arguments.postgresql:
        os.environ["REDRIVE_TEST_DATABASE"] = "postgresql"
    from tests import environment  # noqa: F401  a data folder of its own, and the server

    os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    import django

    django.setup()
    from bench.machine import machine
    from tests.rigs import upgrade_drill

    with tempfile.TemporaryDirectory(prefix="redrive-upgrade-") as folder:
        found = upgrade_drill.run(Path(folder), arguments.failures)
    print(json.dumps({"machine": machine(), "load": os.getloadavg()[0], **found}, indent=1))


if __name__ == "__main__":
    main()
