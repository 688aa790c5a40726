"""Replay from a terminal: `manage.py replay 'queue:emails error:Timeout' --wait --reason 'fixed in 2026.11'`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.urls import reverse
from django.utils import timezone

from jobs_admin import config, replays
from jobs_admin.core import query as language
from jobs_admin.core.figures import duration, small
from jobs_admin.core.pacing import Outlook
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import terminal_line
from jobs_admin.management import terminal
from jobs_admin.management.terminal import SearchCommand
from jobs_admin.models import Replay
from jobs_admin.models.access import ENGINE
from jobs_admin.models.replay import ReplayState
from jobs_admin.replays import Preview, outcomes

_CHECK_EVERY_S = 0.5
_SILENT_AFTER_S = 10
_WARN_EVERY_S = 5
_OVER = (ReplayState.DONE, ReplayState.STOPPED, ReplayState.CANCELLED)
# What only a person can go on from: who waits for it would wait for ever.
_NOT_SENDING = (ReplayState.HELD, ReplayState.AWAITING_APPROVAL)


class Command(SearchCommand):
    help = (
        "Replay all jobs that match a search. With --wait, the exit code is not 0 if jobs failed again, or if the "
        "replay is held or awaits approval."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        # At least one word: everything that is dead has to be meant.
        parser.add_argument(
            "query",
            nargs="+",
            metavar="QUERY",
            help="Search, as in the search field. Several words need no quotes; '' is all dead jobs.",
        )
        pace = parser.add_mutually_exclusive_group()
        pace.add_argument(
            "--careful",
            action="store_true",
            help="Start with a few jobs, then ramp up while they succeed "
            "(default above 100 jobs; from 10 on if some are likely to fail again).",
        )
        pace.add_argument("--rate", metavar="N", help="Steady rate in jobs per second (otherwise the default: 50).")
        pace.add_argument("--at-once", action="store_true", help="Send all jobs at once, without a rate limit.")
        parser.add_argument("--attempts", metavar="N", help="reset (default), kept, or the number of attempts per job.")
        parser.add_argument("--to-queue", metavar="QUEUE", help="Send to this queue instead of the original queue.")
        parser.add_argument(
            "--patch", metavar="FILE", help='JSON Merge Patch for {"args": …, "kwargs": …} of every job.'
        )
        parser.add_argument(
            "--accept",
            action="append",
            default=[],
            metavar="WHAT",
            help="Send jobs that are excluded by default: unguarded, chord, expired, unknown_task. Repeat for several.",
        )
        groups = parser.add_mutually_exclusive_group()
        groups.add_argument(
            "--without-group",
            action="append",
            metavar="FINGERPRINT",
            help="Exclude only this group. Repeat for several. Default: groups that are likely to fail again.",
        )
        groups.add_argument("--all-groups", action="store_true", help="Exclude no groups.")
        parser.add_argument("--dry-run", action="store_true", help="Only print the preview.")
        parser.add_argument("--wait", action="store_true", help="Show progress until every job has ended.")
        parser.add_argument(
            "--reason", default="", help="Reason, recorded in the audit; required for more than one job."
        )

    def handle(self, *args: object, query: list[str], dry_run: bool, wait: bool, reason: str, **arguments: Any) -> None:
        viewer = terminal.viewer()
        text = " ".join(query)
        try:
            how = {"pace": _pace(arguments), "options": _options(arguments)}
            seen = replays.preview(viewer, query=text, **how)
            self._print_preview(text, seen)
            if dry_run:
                return
            how["options"] = seen.options  # with the groups that the preview excludes
            replay = replays.launch(viewer, query=seen.query, reason=reason, snapshot=seen.snapshot, **how)
        except (Refused, config.BadConfiguration) as error:
            raise CommandError(_refusal(str(error))) from error
        page = config.page_url(reverse("redrive:replay-detail", args=[replay.pk]))
        if replay.state == ReplayState.AWAITING_APPROVAL:
            self.stdout.write(f"Replay #{replay.pk} awaits approval: {replay.approval_because} {page}")
        else:
            self.stdout.write(f"Started replay #{replay.pk}: {page}")
        if wait:
            self._wait(replay, page, {*seen.warnings})

    def _print_preview(self, query: str, seen: replays.Preview) -> None:
        read = language.parse(query)
        for hint in read.hints:
            self.stderr.write(terminal_line(hint, 200))
        self.stdout.write(f"Read as: {terminal_line(language.reading(read), 500)}")
        self.stdout.write(f"{seen.matched:,} matching, {seen.replayable:,} can be replayed.")
        for row in seen.blocked:
            accept = f" (--accept {row['accept']} sends them)" if row.get("accept") else ""
            self.stdout.write(f"  excluded: {row['count']:,} {terminal_line(row['reason'], 200)}{accept}")
        for source, count in seen.by_source if len(seen.by_source) > 1 else ():
            self.stdout.write(f"  source {source}: {count:,}")
        for queue, count in seen.by_queue:
            self.stdout.write(f"  {terminal_line(queue, 255)}: {count:,}")
        for group in seen.choices if len(seen.choices) > 1 else ():
            mark = "on " if group.is_on else "off"
            why = f" ({group.reason})" if group.reason else ""
            now = (
                f" [{small(group.failed_per_min)} failures/min now]"
                if group.is_failing and group.failed_per_min
                else ""
            )
            self.stdout.write(
                f"  group {mark} {group.fingerprint} {group.count:,} {terminal_line(group.title, 80)}{now}{why}"
            )
        for warning in seen.warnings:
            self.stdout.write(f"  note: {warning}")
        if seen.needs_approval:
            self.stdout.write(f"  note: {seen.needs_approval}")
        if seen.replayable:
            self.stdout.write(f"Pace: {json.dumps(seen.pace, ensure_ascii=False)}")
            self.stdout.write(f"Takes {duration(seen.duration_s)}, at most {small(seen.peak_per_second)} jobs/s.")
            for text in seen.slowed_by:
                self.stdout.write(f"  slowed: {terminal_line(text, 300)}")
            for line in plan(seen):
                self.stdout.write(line)

    def _wait(self, replay: Replay, page: str, warned: set[str]) -> None:
        """Show progress until it ends. `warned`: what was printed before it began."""
        begun, reported = time.monotonic(), False
        progress, checked_at = Progress(self.stdout), float("-inf")
        try:
            while True:
                replay.refresh_from_db()
                progress.show(replay)
                if time.monotonic() - checked_at > _WARN_EVERY_S:
                    checked_at = time.monotonic()
                    for text in outcomes.refused_report_warnings(ENGINE, [replay], timezone.now()).get(replay.pk, []):
                        if text not in warned:
                            warned.add(text)
                            self.stderr.write(f"\n{text}")
                if replay.state in _NOT_SENDING:
                    raise CommandError(f"\n{_stopped_reason(replay)} {page}")
                # What is still sent of one that is done ended where nobody tells how.
                if replay.state == ReplayState.DONE or (replay.state in _OVER and not (replay.sent or replay.running)):
                    break
                if replay.sender_until is None and not reported and time.monotonic() - begun > _SILENT_AFTER_S:
                    reported = True
                    self.stderr.write("\nNothing is sent yet. Is `watch` (or `up`) running?")
                time.sleep(_CHECK_EVERY_S)
        except KeyboardInterrupt:
            raise CommandError(
                f"\nNo longer watching. Replay #{replay.pk} continues; to pause or cancel the replay: {page}"
            ) from None
        progress.end()
        self._print_outcome(replay)

    def _print_outcome(self, replay: Replay) -> None:
        if replay.failed_again or replay.uncertain or replay.cancelled:
            for one in replays.failed_again_groups(ENGINE, replay, limit=5):
                words = f" ({text})" if (text := replays.compare_errors([one])) else ""
                self.stderr.write(f"  {one.count:,} × {terminal_line(one.group.title, 100)}{words}")
            raise CommandError(
                f"Of {replay.total:,} jobs {replay.succeeded:,} succeeded, {replay.failed_again:,} failed again, "
                f"{replay.uncertain:,} are uncertain and {replay.cancelled:,} were not sent."
            )
        if replay.sent:
            self.stdout.write(f"{replay.sent:,} of {replay.total:,} jobs sent. Their source does not report outcomes.")
            return
        self.stdout.write(f"All {replay.total:,} jobs succeeded.")


def _pace(arguments: dict[str, Any]) -> dict[str, Any] | None:
    """None is the default by size."""
    if arguments["careful"]:
        return {"style": "careful"}
    if arguments["at_once"]:
        return {"style": "at_once"}
    return {"style": "steady", "rate": arguments["rate"]} if arguments["rate"] else None


def _options(arguments: dict[str, Any]) -> replays.Options:
    given: dict[str, Any] = {name: arguments[name] for name in ("attempts", "to_queue") if arguments[name]}
    if arguments["all_groups"] or arguments["without_group"]:
        given["without_groups"] = arguments["without_group"] or []
    if arguments["patch"]:
        given["patch"] = _patch(arguments["patch"])
    return replays.Options.parse(given | {"accept": arguments["accept"]})


def _refusal(given: str) -> str:
    """Return the refusal, and that nothing was changed: a form shows that, a terminal does not."""
    return given if "Nothing was " in given else f"{given.rstrip()} Nothing was changed."


def _patch(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text())
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}. Nothing was changed.") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path} is not JSON: {error}. Nothing was changed.") from error


def _stopped_reason(replay: Replay) -> str:
    if replay.state == ReplayState.HELD:
        return (
            f"Replay #{replay.pk} is held: {terminal_line(replay.current_hold_reason, 300)} Resume or cancel the "
            "replay:"
        )
    return f"Replay #{replay.pk} awaits approval by another operator; nothing was sent:"


# A replay on a terminal: its plan as a small picture, and its progress as a bar or as lines.

_PICTURE_WIDTH = 30
_LINE_EVERY_S = 30.0
_COLUMNS, _ROWS = 60, 6


class Progress:
    """A terminal sees one line that changes; a log file gets a line when something has."""

    def __init__(self, out: OutputWrapper) -> None:
        self._out = out
        self._said: tuple[Any, ...] = ()
        self._said_at = 0.0

    def show(self, replay: Replay) -> None:
        line = _progress_line(replay)
        if self._out.isatty():
            self._out.write(f"\r\033[K{line}", ending="")
            self._out.flush()
            return
        ended = replay.settled + replay.uncertain + replay.cancelled
        state = (replay.state, ended * 10 // max(1, replay.total))
        if state != self._said or time.monotonic() - self._said_at >= _LINE_EVERY_S:
            self._said, self._said_at = state, time.monotonic()
            self._out.write(line)
            self._out.flush()

    def end(self) -> None:
        if self._out.isatty():
            self._out.write("")


def _progress_line(replay: Replay) -> str:
    ended = replay.settled + replay.uncertain + replay.cancelled
    filled = round(_PICTURE_WIDTH * ended / max(1, replay.total))
    line = (
        f"[{'#' * filled}{'.' * (_PICTURE_WIDTH - filled)}] {ended:,}/{replay.total:,} ended, {replay.sent_in_all:,} sent, "
        f"{replay.failed_again:,} failed again ({replay.state.replace('_', ' ')})"
    )
    return f"{line} {terminal_line(replay.held_because, 80)}" if replay.held_because else line


def plan(seen: Preview) -> Iterator[str]:
    """Starts a second over time, and what failures would change, line by line."""
    planned, *others = seen.simulation.outlooks
    yield from _picture(planned)
    for one in others:
        share = f"{one.failing * 100:.0f} % fail again"
        if one.held_after_s is not None:
            yield f"  {share}: {one.hold_sentence()}"
        elif one.ends_after_s is not None:
            yield f"  {share}: ends after {duration(one.ends_after_s)}."
        else:
            yield f"  {share}: no end at this pace."
    for text in seen.simulation.assumptions:
        yield f"  assumption: {text}"


def _picture(planned: Outlook) -> Iterator[str]:
    """Rows of a bar chart, the highest first; a column is a stretch of time."""
    rates = [rate for _, rate in planned.starts]
    if len(rates) < 2 or not max(rates):
        return
    columns = min(_COLUMNS, len(rates))
    each = [rates[n * len(rates) // columns : (n + 1) * len(rates) // columns] for n in range(columns)]
    heights = [sum(some) / len(some) for some in each]
    top = max(heights)
    for row in range(_ROWS, 0, -1):
        label = f"{small(top)}/s" if row == _ROWS else ""
        yield (
            f"{label:>9} |" + "".join("#" if height > top * (row - 0.5) / _ROWS else " " for height in heights).rstrip()
        )
    total_s = planned.starts[-1][0] + (planned.starts[1][0] - planned.starts[0][0])
    yield f"{'0 s':>9} +{'-' * columns} {duration(total_s)}"
