"""Columns of the failure list, one record each (docs/how-to/add-a-list-column.md).

Cells are `format_html` patterns, not templates: fifty rows cost 5.9 ms of processor time as a template and 1.4 ms this
way, and the complete page may cost 7.5 ms. Widths are in `static/redrive/css/failures.css`, by class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from django.urls import reverse
from django.utils import timezone
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

from dashboard.failures.page import short
from dashboard.web.figures import ago
from dashboard.web.pictures import state
from dashboard.web.text import visible, visible_text
from jobs_admin import replays
from jobs_admin.failures import MESSAGE_SHOWN
from jobs_admin.fleet import stranded
from jobs_admin.models import Failure
from jobs_admin.models.failure import FailureState


@dataclass(frozen=True, slots=True)
class Row:
    """A failure, with what its cells need in addition."""

    failure: Failure
    url: SafeString
    now: datetime
    shows_source: bool  # there are several sources
    replay: tuple[int, str] | None  # number and state of the replay in which the job is planned
    is_stranded: bool  # its worker is gone


@dataclass(frozen=True, slots=True)
class Column:
    """Column of the list. `css_class`: classes of the header and of its cells.

    `col-` and the name; `number` before it aligns right; `minor` after it hides the column in windows up to 900 px wide
    and beside an open failure.
    """

    css_class: str
    label: str
    cell: Callable[[Row], SafeString]
    hint: str = ""  # hint of the header
    is_default: bool = True  # shown to readers who have not selected columns
    fields: tuple[str, ...] = ()  # fields in an export

    @property
    def name(self) -> str:
        """Name among the choices: `tenant` for `col-tenant`; `error` for the first column, which is always shown."""
        return next((one.removeprefix("col-") for one in self.css_class.split() if one.startswith("col-")), "error")


# --- cells ------------------------------------------------------------------------------------------------------

# Few tasks, queues, tenants and messages repeat in a list, and none is longer than 300 characters: their cells are cached.
_few = lru_cache(maxsize=2048)
_NOTHING = SafeString("")


def _error(row: Row) -> SafeString:
    failure = row.failure
    shown = _error_and_message(failure.error_type, failure.kind, failure.message[:MESSAGE_SHOWN])
    return SafeString(f'<a class="row-link mono" href="{row.url}" {shown}')


@_few
def _error_and_message(error: str, kind: str, message: str) -> SafeString:
    """Return the end of the link, and the message."""
    return format_html(
        'data-panel title="{}">{}</a><span class="message">{}</span>',
        visible_text(error),
        visible(short(error) or kind),
        visible(message),
    )


def _where(row: Row) -> SafeString:
    return _task_and_queue(row.failure.task, row.failure.source if row.shows_source else "", row.failure.queue)


@_few
def _task_and_queue(task: str, source: str, queue: str) -> SafeString:
    return format_html(
        '<span class="mono clip" title="{}">{}</span><span class="sub-line clip">{}{}{}</span>',
        visible_text(task),
        visible(task),
        visible(source),
        " / " if source else "",
        visible(queue),
    )


def _tenant(row: Row) -> SafeString:
    return _name(row.failure.tenant or "–")


@_few
def _name(text: str) -> SafeString:
    return format_html('<span class="clip">{}</span>', visible(text))


def _state(row: Row) -> SafeString:
    failure = row.failure
    shown = state(failure.state)
    if row.is_stranded:
        return shown + mark_safe('<span class="sub-line" data-stranded>worker gone</span>')
    if row.replay is not None:
        number, state_words = row.replay
        url = reverse("redrive:replay-detail", args=[number])
        return shown + format_html(
            '<span class="sub-line">in {} <a href="{}">replay #{}</a></span>', visible(state_words), url, number
        )
    if failure.due_at and failure.state == FailureState.RETRYING:
        return shown + format_html('<span class="sub-line">{}</span>', ago(failure.due_at, row.now))
    return shown


def _attempts(row: Row) -> SafeString:
    return _attempts_of(row.failure.attempts, most_attempts(row.failure), row.failure.run)


@_few
def _attempts_of(attempts: int, most: str, run: int) -> SafeString:
    of = format_html('<span class="muted"> of {}</span>', most) if most else _NOTHING
    again = format_html('<span class="sub-line">run {}</span>', run) if run > 1 else _NOTHING
    return format_html("{}{}{}", attempts, of, again)


def most_attempts(failure: Failure) -> str:
    """Return the maximum number of attempts, if it matters: a job that died at once was not stopped by a limit."""
    allowed = failure.max_attempts or 0
    counts = failure.state == FailureState.RETRYING or failure.attempts >= allowed > 1
    return str(allowed) if allowed and counts else ""


def _failed(row: Row) -> SafeString:
    return ago(row.failure.failed_at, row.now)


def _first_failed(row: Row) -> SafeString:
    return ago(row.failure.first_failed_at, row.now)


def _release(row: Row) -> SafeString:
    return _full_name(row.failure.release or "–")


def _worker(row: Row) -> SafeString:
    return _full_name(row.failure.worker or "–")


def _job(row: Row) -> SafeString:
    name = row.failure.job_id
    return format_html('<span class="mono clip" title="{}">{}</span>', visible_text(name), visible(name))


@_few
def _full_name(name: str) -> SafeString:
    return format_html('<span class="clip" title="{}">{}</span>', visible_text(name), visible(name))


COLUMNS = (
    Column("what", "Error", _error, fields=("id", "error_type", "message")),
    Column("col-where", "Task, queue", _where, fields=("source", "queue", "task")),
    Column("col-tenant minor", "Tenant", _tenant, fields=("tenant",)),
    Column("col-state", "State", _state, fields=("state", "due_at")),
    Column(
        "number col-attempts minor",
        "Attempts",
        _attempts,
        "Attempts in this run, and the maximum if the job is retrying or used all of them",
        fields=("run", "attempts", "max_attempts"),
    ),
    Column(
        "number col-time",
        "Failed",
        _failed,
        "Time of the last failed attempt. Listed in order of arrival, latest first",
        fields=("failed_at",),
    ),
    Column(
        "number col-first minor",
        "First failed",
        _first_failed,
        "Time of the first failed attempt",
        False,
        ("first_failed_at",),
    ),
    Column("col-release minor", "Release", _release, "Deployed version of the last attempt", False, ("release",)),
    Column("col-worker minor", "Worker", _worker, "Worker of the last attempt", False, ("worker",)),
    Column("col-job minor", "Job ID", _job, "ID of the latest run", False, ("job_id",)),
)


def chosen(names: Collection[str]) -> list[Column]:
    """Return the columns of these names, and the error, in table order; the default columns if no name is known."""
    found = [one for one in COLUMNS if one.name in names or one is COLUMNS[0]]
    return found if len(found) > 1 else [one for one in COLUMNS if one.is_default]


# --- rows -------------------------------------------------------------------------------------------------------

_PICK = (
    '<td class="pick"><label class="pick-label"><input type="checkbox" name="selection" value="%d" data-select>'
    '<span class="unseen-label">Select failure %d</span></label></td>'
)


def rows(
    shown: Sequence[Failure], columns: Sequence[Column], *, may_act: bool, sources: Collection[str] = ()
) -> list[SafeString]:
    """Return a table row per failure. `sources`: those that the viewer may see; if several, rows name theirs."""
    base, now = reverse("redrive:failure-list"), timezone.now()
    many = len({*sources, *(failure.source for failure in shown)}) > 1
    planned, gone = replays.stopped_replays(shown), stranded.stranded_ids(shown)
    return [
        _row(
            Row(failure, SafeString(f"{base}{failure.pk:d}/"), now, many, planned.get(failure.pk), failure.pk in gone),
            columns,
            _PICK % (failure.pk, failure.pk) if may_act else "",
        )
        for failure in shown
    ]


def _row(row: Row, columns: Sequence[Column], pick: str) -> SafeString:
    cells = [f'<td class="{column.css_class}">{conditional_escape(column.cell(row))}</td>' for column in columns]
    return SafeString(f'<tr data-row="{row.url}">{pick}{"".join(cells)}</tr>')
