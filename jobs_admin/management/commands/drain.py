"""Before Redrive is taken out: `manage.py drain [--now|--to-dead]` empties what guards hold, and says when that is done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import redis
from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.installation import COMMAND
from jobs_admin.management.switch import DRAIN, OFF, turn
from jobs_admin.retries import draining
from jobs_admin.retries.delayed import Place
from jobs_admin.retries.draining import Guarded
from jobs_admin.worker.heartbeat import BEAT_SECONDS

_OBEYED_WITHIN_S = BEAT_SECONDS + 3
_SPOOLS_WITHIN_S = 60.0
_REPORT_EVERY_S = 5.0
_CLAIMED_S = 0.5  # between two looks at what others have claimed


class Command(BaseCommand):
    help = (
        "Prepare the removal of Redrive: limit all workers to recording, wait until no retry is delayed (--now: run "
        "all immediately; --to-dead: make all dead, so that they can be replayed), file spooled reports, and print "
        f"`safe to remove install()`. `{COMMAND} on` reverts this."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--now", action="store_true", help="Run all delayed retries immediately.")
        how.add_argument(
            "--to-dead", action="store_true", help="Make all delayed retries dead; their messages are stored."
        )

    def handle(self, *args: object, now: bool = False, to_dead: bool = False, **options: object) -> None:
        try:
            alive = self._hold()
            for source, where in draining.places():
                self._empty(source, where, now=now, to_dead=to_dead)
            self._fold_in_spools(alive)
        except (redis.RedisError, OSError, config.BadConfiguration) as error:
            raise CommandError(
                f"The drain was not completed: {error}. Nothing is lost, and workers still only record. Run the "
                "command again."
            ) from error
        self.stdout.write(self.style.SUCCESS("safe to remove install()"))

    def _hold(self) -> list[Guarded]:
        """Stop the live workers from holding back jobs. Return them."""
        before = draining.workers()
        if config.store().get(keys.switch()) != OFF.encode():
            turn(DRAIN)
        self.stdout.write("Workers only record: no policy is applied, no further retries are delayed.")
        alive: list[Guarded] = []

        def all_obeyed() -> bool:
            alive[:] = [one for name, one in draining.workers().items() if one.text != _text(before.get(name))]
            return False  # who lives has told so by the end of this wait

        _until(all_obeyed, _OBEYED_WITHIN_S)
        disobeying = sorted(one.name for one in alive if not one.is_idle)
        if disobeying:
            raise CommandError(
                f"Workers that still apply policies: {', '.join(disobeying[:10])}. Their guard may be an older "
                "version. Stop them, or restart them with REDRIVE_MODE=capture, and run the command again. Nothing "
                "is lost."
            )
        return alive

    def _empty(self, source: str, where: Place, *, now: bool, to_dead: bool) -> None:
        buried, reported_at = 0, float("-inf")
        while left := where.delays.count():
            if time.monotonic() - reported_at >= _REPORT_EVERY_S:
                reported_at = time.monotonic()
                self.stdout.write(f"{source}: {left:,} waiting for the next attempt.")
            if to_dead:
                buried += (went := draining.bury(source, where))
                wait_s = 0.0 if went else _CLAIMED_S
            else:
                wait_s = self._promoted(source, where, now=now)
            time.sleep(wait_s)
        if to_dead:
            self.stdout.write(f"{source}: {buried:,} retries are now dead and can be replayed.")
        else:
            self.stdout.write(f"{source}: no waiting retries.")

    def _promoted(self, source: str, where: Place, *, now: bool) -> float:
        """A batch of what is due is on its queues; the seconds until there may be more."""
        promoted = where.promote()
        if promoted.jobs:
            return 0.0
        if promoted.failed:
            raise CommandError(
                f"{source}: waiting retries cannot be returned to their queues ({promoted.failed}). Nothing is "
                "lost, and workers still only record. Run the command again, or with --to-dead."
            )
        if now:
            where.delays.hasten()  # again and again: what a worker had claimed may wait anew since
        return min(1.0, max(0.05, promoted.next_s or 0.0))

    def _fold_in_spools(self, alive: list[Guarded]) -> None:
        shipped = draining.fold_in_spools(os.environ.get("REDRIVE_SPOOL", ""))
        if shipped:
            self.stdout.write(f"{shipped:,} reports that dead workers had left on this machine were filed.")
        names = {one.name for one in alive}
        workers = draining.workers()
        gone = [one for one in workers.values() if one.name not in names and one.spooled]
        if gone:
            where = ", ".join(sorted(f"{one.spooled:,} on {one.host}" for one in gone)[:10])
            self.stdout.write(
                f"Gone workers had reports on their disks at their last heartbeat ({where}). Unless the reports "
                "were sent since, start a worker there once, or run this command there."
            )
        if not _until(lambda: not any(_spooled(draining.workers(), names)), _SPOOLS_WITHIN_S):
            holding = [one.name for one in draining.workers().values() if one.name in names and one.spooled]
            raise CommandError(f"Workers with reports in their spools: {', '.join(holding)}. Run the command again.")


def _spooled(workers: dict[str, Guarded], names: set[str]) -> list[int]:
    return [one.spooled for one in workers.values() if one.name in names]


def _text(one: Guarded | None) -> bytes:
    return one.text if one else b""


def _until(reached: Callable[[], bool], within_s: float) -> bool:
    ends = time.monotonic() + within_s
    while not (is_reached := reached()) and time.monotonic() < ends:
        time.sleep(0.1)
    return is_reached
