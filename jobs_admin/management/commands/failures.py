"""`failures [QUERY …] [--json] [--limit N]`: search from a terminal."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections import Counter
from dataclasses import asdict
from datetime import datetime

from django.urls import reverse
from django.utils import timezone

from jobs_admin import config, failures, replays
from jobs_admin.core.text import terminal_line
from jobs_admin.failures import nearest
from jobs_admin.management.terminal import SearchCommand
from jobs_admin.models import Failure, Replay
from jobs_admin.models.access import ENGINE

_FIELDS = (
    "id", "source", "queue", "task", "job_id", "run", "state", "error_type", "message", "attempts", "max_attempts",
    "due_at", "first_failed_at", "failed_at", "worker", "tenant", "priority", "release",
)  # fmt: skip


class Command(SearchCommand):
    help = 'Search failures: `failures queue:webhooks error:Timeout "age:<2d"`. See docs/search.md.'
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "query",
            nargs="*",
            help="Search, as in the search field. Several words need no quotes; unknown options are search terms: "
            "-queue:emails.",
        )
        parser.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")
        parser.add_argument("--limit", type=int, default=50, help="Maximum number of rows; default: 50.")

    def handle(self, *, query: list[str], limit: int, **options: object) -> None:
        text = " ".join(query)
        rows, page = find_page(text, max(1, limit))
        near = [] if rows else nearest.near(ENGINE, page.query, text)
        if options["json"]:
            answer = {"items": [_item(row) for row in rows], "next": page.next, "count": page.count.number}
            answer |= {
                "count_is_capped": page.count.is_capped,
                "count_is_estimate": page.count.is_estimate,
                "reading": page.reading,
                "hints": list(page.hint_sentences),
            }
            answer |= {"searched": page.searched, "near": [asdict(one) for one in near]}
            self.stdout.write(json.dumps(answer, default=_as_json))
            return
        for hint in page.hint_sentences:
            self.stderr.write(terminal_line(hint, 200))
        self.stderr.write(terminal_line(page.reading, 500))
        if not rows:
            self.stdout.write(terminal_line(page.why_empty, 500))
            for one in near:
                self.stdout.write(f"  {terminal_line(nearest.in_words(one), 200)}")
            return
        for row in _table(rows):
            self.stdout.write(row)
        for line in _waiting(rows):
            self.stdout.write(line)
        if page.searched is not None:
            few = f"Searched the latest {page.searched:,} matching failures only: this text cannot use an index"
            more = "To search further back, write at least 3 characters in a row, or add a queue, a task or a time"
            self.stderr.write(f"{few}. {more}.")
        self.stderr.write(f"{len(rows):,} of {page.count.text}")


def find_page(query: str, limit: int) -> tuple[list[Failure], failures.Page]:
    """The first `limit` that match, page by page, and the last page."""
    now = timezone.now()
    page = failures.search(ENGINE, query, limit=min(limit, failures.LARGEST_PAGE), now=now)
    rows = list(page.rows)
    while page.next and len(rows) < limit:
        page = failures.search(
            ENGINE, query, after=page.next, limit=min(limit - len(rows), failures.LARGEST_PAGE), now=now
        )
        rows += page.rows
    return rows, page


def _table(rows: list[Failure]) -> list[str]:
    lines = [("ID", "STATE", "FAILED AT (UTC)", "QUEUE", "TASK", "ERROR")]
    lines += [
        (
            str(row.pk),
            row.state,
            f"{row.failed_at:%Y-%m-%d %H:%M:%S}",
            terminal_line(f"{row.source}/{row.queue}", 30),
            terminal_line(row.task, 40),
            terminal_line(f"{row.error_type or row.kind}: {row.message}", 80),
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    return [
        "  ".join([cell.ljust(width) for cell, width in zip(line, widths, strict=False)] + [line[5]]) for line in lines
    ]


def _waiting(rows: list[Failure]) -> list[str]:
    """A line for each replay that has some of these jobs planned and sends nothing now: why, and its page."""
    planned = replays.stopped_replays(rows)
    numbers = Counter(number for number, _ in planned.values())
    lines = []
    for replay in Replay.objects.filter(pk__in=numbers).order_by("pk"):
        jobs = "1 job waiting" if numbers[replay.pk] == 1 else f"{numbers[replay.pk]:,} jobs waiting"
        page = config.page_url(reverse("redrive:replay-detail", args=[replay.pk]))
        why = f": {terminal_line(replay.current_hold_reason, 300)}" if replay.held_because else "."
        lines.append(f"{jobs} in {replay.state} replay #{replay.pk}{why} {page}")
    return lines


def _item(row: Failure) -> dict[str, object]:
    return {name: getattr(row, name) for name in _FIELDS} | {"fingerprint": row.group.name if row.group else None}


def _as_json(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
