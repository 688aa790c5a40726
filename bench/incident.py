"""Plays the incident of /demo/ on a desk of its own, and draws what was measured.

    .venv/bin/python -m bench.incident [--busy N] [--pictures docs/pictures] [--keep figures.json] [--from figures.json]

Starts `up` on an empty folder, logs in, presses the button as a browser would, and waits for the end. Prints JSON: each
way second by second, as the partner counted them. With --pictures it draws incident-light.svg and incident-dark.svg;
with --from it draws what an earlier run printed and plays nothing. With --busy, N processes that only compute run beside it from
before the start to the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import redis

from bench.incident_picture import draw
from dashboard.setup.engine import die_with_parent, free_port
from dashboard.setup.supervisor import Quiet
from demo import story
from demo.story import SIDES, Side, Story

ROOT = Path(__file__).resolve().parent.parent
QUIET_S = 300  # the story has not changed for so long: the player is gone


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--pictures", type=Path, help="a folder for the two pictures")
    options.add_argument("--keep", type=Path, help="a file for the figures")
    options.add_argument("--from", dest="figures", type=Path, help="figures of an earlier run")
    options.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    wanted = options.parse_args()
    if wanted.figures:
        figures = json.loads(wanted.figures.read_text())
    else:
        with tempfile.TemporaryDirectory(prefix="redrive-incident-") as folder, busy(wanted.busy):
            figures = {"busy_processes": wanted.busy, **played(Path(folder))}
    if wanted.keep:
        wanted.keep.write_text(json.dumps(figures, indent=1))
    if wanted.pictures:
        for theme in ("light", "dark"):
            (wanted.pictures / f"incident-{theme}.svg").write_text(draw(figures, theme))
    shown = {k: v for k, v in figures.items() if k not in SIDES}
    shown |= {name: {k: v for k, v in figures[name].items() if k != "seconds"} for name in SIDES}
    print(json.dumps(shown, indent=1))


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run `count` processes that compute, and end with this one."""
    programs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=die_with_parent) for _ in range(count)
    ]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def played(folder: Path) -> dict[str, Any]:
    password = secrets.token_urlsafe(12)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("REDRIVE_", "DJANGO_", "CELERY_"))}
    with (folder / "up.out").open("w") as output:
        desk = subprocess.Popen(
            [sys.executable, "manage.py", "up", "--port", str(free_port()), "--data", str(folder / "data")],
            cwd=ROOT, env={**environment, "REDRIVE_ADMIN_PASSWORD": password}, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        url = _ready(desk, folder / "up.out")
        made = json.loads((folder / "data/up.json").read_text())
        broker = redis.Redis.from_url(made["REDRIVE_DEMO_BROKER_URL"])
        press(url, password)
        return figures_of(_wait_for_story(broker))
    finally:
        desk.send_signal(signal.SIGTERM)
        desk.wait(120)


def _ready(desk: subprocess.Popen[bytes], output: Path) -> str:
    while not (found := re.search(r"Redrive is ready: (\S+)", output.read_text())):
        if desk.poll() is not None:  # `up` gives up itself where nothing moves
            sys.exit(f"The desk did not come up:\n{output.read_text()}")
        time.sleep(0.2)
    return found[1].rstrip("/")


def press(url: str, password: str) -> None:
    """Log in, and press the button."""
    with httpx.Client(base_url=url, follow_redirects=True, timeout=120, trust_env=False) as person:

        def form(path: str, where: str, **fields: str) -> httpx.Response:
            token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', person.get(where).text)
            assert token is not None
            return person.post(path, data={"csrfmiddlewaretoken": token[1], **fields}, headers={"Referer": url + where})

        form("/login/", "/login/", username="admin", password=password).raise_for_status()
        form("/demo/incident/", "/demo/", wish="play").raise_for_status()


def _wait_for_story(broker: redis.Redis) -> Story:
    quiet = Quiet()
    while quiet.since(lambda: broker.get(story.STORY), time.monotonic()) < QUIET_S:
        seen = story.read(broker)
        if seen.story and seen.story.is_over:
            if seen.story.outcome != "played":
                sys.exit(f"It was not played to its end: {seen.story.why}")
            return seen.story
        time.sleep(0.5)
    sys.exit(f"The story of the incident has not changed for {QUIET_S} s.")


def figures_of(story: Story) -> dict[str, Any]:
    assert story.ended_at is not None
    return {
        "date": datetime.fromtimestamp(story.began_at, UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip(),
        "jobs": story.jobs,
        "took_s": round(story.ended_at - story.began_at),
        **{
            name: {
                "in_outage": story.outages["held" if name == "held" else "dead"].while_down,
                **_side(story.sides[name]),
            }
            for name in SIDES
        },
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "jobs": side.jobs,
        "most_in_a_second": side.peak,
        "falls_at_s": side.falls,
        "into_its_second": round(side.began % 1, 3),  # when it was back: `seconds` begin with the whole one
        "while_down": side.while_down,
        "failed_again": side.failed_again,
        "all_through_s": None if side.failed_again else side.ended,
        "seconds": [asdict(second) if second else None for second in side.seconds],
    }


if __name__ == "__main__":
    main()
