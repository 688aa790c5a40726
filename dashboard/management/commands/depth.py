"""`depth list | history SOURCE QUEUE`: depths of queues, as last sampled and over time, from a terminal."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from dashboard.queues import api as queue_calls
from dashboard.web.api import shapes
from dashboard.web.api.shapes import render_json
from dashboard.web.figures import duration, number
from jobs_admin import queues
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable, terminal_line
from jobs_admin.management import terminal
from jobs_admin.management.terminal import ActCommand, parse_length, parse_time, table
from jobs_admin.queues import depths

_ROWS = 48  # of a table, if --points is not given


class Command(ActCommand):
    help = "Depths of queues: waiting, running, delayed and dead jobs, as last sampled (list) or over time (history)."

    def add_acts(self, acts: Any) -> None:
        every = acts.add_parser("list", help="Queues as last sampled: most dead jobs first, then most failures.")
        every.add_argument("--limit", type=int, default=queues.PAGE, help=f"At most {queues.LARGEST_PAGE}.")
        every.add_argument("--after", metavar="CURSOR", help="`next` of the page before, as --json prints it.")
        every.set_defaults(run=self._list)
        past = acts.add_parser("history", help="One queue over time, with gaps and events. Default: the last day.")
        past.add_argument("source", type=representable)
        past.add_argument("queue", type=representable)
        start = past.add_mutually_exclusive_group()
        start.add_argument("--since", type=parse_time, metavar="TIME", help="UTC: 2026-11-20T10:00.")
        start.add_argument("--last", type=parse_length, metavar="LENGTH", help="Before the end: 30m, 8h, 7d.")
        past.add_argument("--until", type=parse_time, metavar="TIME", help="End; default: now.")
        past.add_argument(
            "--points",
            type=int,
            metavar="N",
            help=f"Maximum number of points; default: {_ROWS}, or {depths.MOST:,} with --json.",
        )
        past.set_defaults(run=self._history)
        for one in (every, past):
            one.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")

    def _list(self, *, limit: int, after: str | None, json: bool, **_: Any) -> None:
        if after and not queues.is_cursor(after):
            raise Refused("invalid", "--after is not a cursor: pass `next` of the page before, unchanged.")
        page = queues.queue_page(terminal.viewer(), after=after, limit=max(1, min(limit, queues.LARGEST_PAGE)))
        if json:
            answer = shapes.listed(page.rows, queue_calls.queue, next=page.next, count=page.count)
            self.stdout.write(render_json(shapes.Listed[queue_calls.Queue], answer))
            return
        if not page.rows:
            self.stdout.write("No queue is known.")
            return
        rows = [
            (
                "SOURCE",
                "QUEUE",
                "DEAD",
                "OLDEST",
                "WAITING",
                "RUNNING",
                "DELAYED",
                "FAILED/MIN",
                "OK/MIN",
                "SAMPLED (UTC)",
            )
        ]
        rows += [_row(one) for one in page.rows]
        for line in table(rows):
            self.stdout.write(line)
        self.stderr.write(f"{len(page.rows):,} of {page.count:,}")

    def _history(self, *, source: str, queue: str, points: int | None, json: bool, **options: Any) -> None:
        until: datetime | None = options["until"]
        length: timedelta | None = options["last"]
        since = (until or timezone.now()) - length if length else options["since"]
        if points is not None and not 2 <= points <= depths.MOST:
            raise Refused("invalid", f"--points must be from 2 to {depths.MOST:,}.")
        most = points or (depths.MOST if json else _ROWS)
        found = queue_calls.read_depth(terminal.viewer(), source, queue, since, until, most)
        if json:
            self.stdout.write(render_json(queue_calls.DepthHistory, found))
            return
        rows = [("TIME (UTC)", "DEAD", "OLDEST", "WAITING", "RUNNING", "DELAYED", "FAILED/MIN", "OK/MIN")]
        for at, waiting, active, delayed, dead, oldest_s, failed, succeeded in found["series"]:
            counts = (number(waiting), number(active), number(delayed), number(failed), number(succeeded))
            rows.append((at.replace("T", " ").removesuffix("Z"), number(dead), duration(oldest_s), *counts))
        for line in table(rows):
            self.stdout.write(line)
        for gap in found["gaps"]:
            if gap["reason"] == depths.IN_PROGRESS:
                self._write(f"{_minute(gap['since'])} to now: in progress, not complete yet")
            else:
                self._write(f"No data {_minute(gap['since'])} to {_minute(gap['until'])}: {gap['words']}")
        for mark in found["marks"]:
            kind = "" if mark["words"].startswith(mark["kind"]) else f"{mark['kind']} {mark['ref']}: "
            self._write(f"{_minute(mark['at'])} {kind}{mark['words']}")
        self.stderr.write(f"{len(found['series']):,} points, each of {duration(found['step_s'])}")

    def _write(self, line: str) -> None:
        self.stdout.write(terminal_line(line, 500))


def _row(row: queues.QueueRow) -> tuple[str, ...]:
    counts = (number(row.waiting), number(row.active), number(row.delayed))
    rates = (number(row.failed_per_minute), number(row.succeeded_per_minute))
    sampled = "never" if row.sampled_at is None else f"{row.sampled_at:%Y-%m-%d %H:%M:%S}"
    unreachable = f", unreachable: {row.why}" if row.reachable is False else ""
    names = (terminal_line(row.source, 30), terminal_line(row.queue, 40))
    oldest = duration(row.oldest_dead_age_s)
    return *names, number(row.dead), oldest, *counts, *rates, terminal_line(sampled + unreachable, 200)


def _minute(at: str) -> str:
    return at[:16].replace("T", " ")
