"""Replay from a terminal: `manage.py replay 'queue:emails error:Timeout' --rate 20 --wait --reason 'fixed in 2026.11'`."""

from __future__ import annotations

import getpass
import time

from django.core.management.base import CommandError, CommandParser
from django.urls import reverse

from jobs_admin import config, replays
from jobs_admin.core import query as language
from jobs_admin.core.text import shown
from jobs_admin.management.searching import SearchCommand
from jobs_admin.models import Replay
from jobs_admin.models.access import ADMIN, ENGINE, EVERY_SOURCE, Viewer
from jobs_admin.models.replay import ReplayState

_LOOK_EVERY_S = 0.5
_SILENT_AFTER_S = 10
_OVER = (ReplayState.DONE, ReplayState.STOPPED, ReplayState.CANCELLED)


class Command(SearchCommand):
    help = "Replays all that a search matches. Ends non-zero with --wait if jobs failed again or did not end."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        # At least one word: everything that is dead has to be meant.
        parser.add_argument(
            "query",
            nargs="+",
            metavar="QUERY",
            help="As in the search field; several words need no quotes; '' is everything that is dead.",
        )
        parser.add_argument("--rate", help="Jobs per second (default 50).")
        parser.add_argument("--dry-run", action="store_true", help="Say what would happen, and do nothing.")
        parser.add_argument("--wait", action="store_true", help="Show progress until every job has ended.")
        parser.add_argument("--reason", default="", help="Why; kept in the audit. Needed for more than one job.")

    def handle(
        self, *args: object, query: list[str], rate: str | None, dry_run: bool, wait: bool, reason: str, **_: object
    ) -> None:
        viewer = Viewer(f"{_user()} (terminal)", {EVERY_SOURCE: ADMIN})
        pace = {"style": "steady", "rate": rate} if rate else None
        text = " ".join(query)
        try:
            seen = replays.preview(viewer, query=text, pace=pace)
            self._tell(text, seen)
            if dry_run:
                return
            draft = replays.draft(viewer, query=seen.query, pace=pace, reason=reason, snapshot=seen.snapshot)
            replay = replays.start(viewer, draft)
        except (replays.ReplayRefused, config.BadConfiguration) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Started replay #{replay.pk}: {config.page_url(reverse('replay-detail', args=[replay.pk]))}")
        if wait:
            self._wait(replay)

    def _tell(self, query: str, seen: replays.Preview) -> None:
        read = language.parse(query)
        for hint in read.hints:
            self.stderr.write(shown(hint, 200))
        self.stdout.write(f"Read as: {shown(language.reading(read), 500)}")
        self.stdout.write(f"{seen.matched:,} match, {seen.replayable:,} can be replayed.")
        for row in seen.blocked:
            self.stdout.write(f"  left out: {row['count']:,} {shown(row['reason'], 200)}")
        for queue, count in seen.by_queue:
            self.stdout.write(f"  {shown(queue, 255)}: {count:,}")
        for warning in seen.warnings:
            self.stdout.write(f"  note: {warning}")
        if seen.replayable:
            self.stdout.write(f"Takes {_duration(seen.duration_s)}, at most {seen.peak_per_second:,.3g} jobs a second.")

    def _wait(self, replay: Replay) -> None:
        begun, told = time.monotonic(), False
        try:
            while True:
                replay.refresh_from_db()
                self._progress(replay)
                if replay.state in _OVER and not (replay.sent or replay.running):
                    break
                if replay.sender_until is None and not told and time.monotonic() - begun > _SILENT_AFTER_S:
                    told = True
                    self.stderr.write("\nNothing is sent yet. Is `manage.py watch` (or `up`) running?")
                time.sleep(_LOOK_EVERY_S)
        except KeyboardInterrupt:
            raise CommandError(f"No longer watching. Replay #{replay.pk} goes on; cancel it on its page.") from None
        self.stdout.write("")
        if replay.failed_again or replay.uncertain or replay.cancelled:
            for group, count in replays.failed_again_groups(ENGINE, replay, limit=5):
                self.stderr.write(f"  {count:,} × {shown(group.title, 100)}")
            raise CommandError(
                f"Of {replay.total:,} jobs {replay.succeeded:,} succeeded, {replay.failed_again:,} failed again, "
                f"{replay.uncertain:,} are uncertain and {replay.cancelled:,} were not sent."
            )
        self.stdout.write(f"All {replay.total:,} jobs succeeded.")

    def _progress(self, replay: Replay) -> None:
        ended = replay.settled + replay.uncertain
        gone = replay.total - replay.planned
        filled = round(30 * ended / max(1, replay.total))
        line = (
            f"[{'#' * filled}{'.' * (30 - filled)}] {ended:,}/{replay.total:,} ended, {gone:,} sent, "
            f"{replay.failed_again:,} failed again ({replay.state})"
        )
        if replay.held_because:
            line += f" {shown(replay.held_because, 80)}"
        # A terminal sees one line that changes; a log file would see noise.
        if self.stdout.isatty():
            self.stdout.write(f"\r\033[K{line}", ending="")
            self.stdout.flush()
        elif ended == replay.total:
            self.stdout.write(line)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "somebody"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
