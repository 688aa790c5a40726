"""Plays an incident when /demo/ asks for one, and goes on with one that was cut short. `python -m demo.play`.

It also fills the depth samples of the day before, once its reports are filed.

It waits with little in its memory: Django and Celery are loaded when the first is asked for.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import redis

from demo import control, story
from jobs_admin.core import keys
from jobs_admin.installation import COMMAND

CHECK_EVERY_S = 0.5
GIVE_UP_AFTER_S = 120.0  # in which each step met an error of the store, the database or the partner


def main() -> None:
    broker_url = os.environ.get("REDRIVE_DEMO_BROKER_URL")
    partner_url = os.environ.get("REDRIVE_DEMO_PARTNER_URL")
    if not broker_url or not partner_url:
        sys.exit(
            "REDRIVE_DEMO_BROKER_URL and REDRIVE_DEMO_PARTNER_URL are not set: the demo cannot start. "
            f"`{COMMAND} up` sets them."
        )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    broker = redis.Redis.from_url(broker_url, socket_timeout=5, socket_connect_timeout=5)
    store = redis.Redis.from_url(os.environ["REDRIVE_REDIS_URL"], socket_timeout=5, socket_connect_timeout=5)
    while not stop.wait(CHECK_EVERY_S):
        try:
            story.alive(broker)
            seen = story.read(broker)
            if seen.ticket is not None:
                _play(broker, seen, broker_url, partner_url, stop)
                _restart(stop)
            elif (text := store.get(control.DEPTHS)) and not store.xlen(_REPORTS):
                _fill_depths(text)
                store.delete(control.DEPTHS)
                _restart(stop)
        except (redis.RedisError, control.DemoUnreachable) as error:
            _print_line(f"{error}; trying again in 2 s")
            stop.wait(2)


_REPORTS = keys.failures("shop")  # empty when all reports are filed


def _restart(stop: threading.Event) -> None:
    """Begin again as small as it was: what was loaded is not needed until the next time."""
    if not stop.is_set():
        os.execv(sys.executable, [sys.executable, "-m", "demo.play"])


def _fill_depths(text: bytes) -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    from demo import first_start

    first_start.fill_depths(text)


def _play(broker: redis.Redis, seen: story.Seen, broker_url: str, partner_url: str, stop: threading.Event) -> None:
    from demo.shop import app

    # Before Django is set up: Celery would tie itself to it, and what publishes here is a shop like any other.
    app.loader.import_default_modules()
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    from django.db import InterfaceError, OperationalError, connections

    from demo.incident import Incident, begin

    assert seen.ticket is not None
    state = seen.story or begin(seen.ticket, time.time())
    if state.is_over:  # ended, and killed before the ticket was taken away
        story.close(broker, state)
        return
    incident = Incident(state, broker, broker_url, partner_url)
    _print_line(f"incident {state.id} of {state.by}: act {state.act}")
    failing_since: float | None = None
    try:
        while not state.is_over and not stop.is_set():
            began = time.monotonic()
            story.alive(broker)
            try:
                incident.step()
                failing_since = None
            except (redis.RedisError, control.DemoUnreachable, OperationalError, InterfaceError) as error:
                failing_since = began if failing_since is None else failing_since
                connections.close_all()
                if began - failing_since > GIVE_UP_AFTER_S:
                    raise
                _print_line(f"{type(error).__name__}: {error}; trying again in 1 s")
                stop.wait(1)
            stop.wait(max(0.05, CHECK_EVERY_S - (time.monotonic() - began)))
        if state.is_over:
            _print_line(f"incident {state.id}: {state.outcome}. {state.why}".rstrip(". ") + ".")
    except Exception as error:  # a fault of the player must not keep the next incident from being asked for
        incident.give_up(f"{type(error).__name__}: {error}")
        raise
    finally:
        incident.close()
        connections.close_all()


def _print_line(text: str) -> None:
    print(f"demo.play: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
