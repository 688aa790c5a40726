"""`alerts list | show | acknowledge | unacknowledge`: alerts from a terminal."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone

from dashboard.alerts import api_shapes
from dashboard.alerts import words as alert_words
from dashboard.web.api import shapes
from dashboard.web.api.shapes import render_json
from dashboard.web.figures import duration
from jobs_admin import alerts
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable, terminal_line, whole_number
from jobs_admin.installation import COMMAND
from jobs_admin.management import terminal
from jobs_admin.management.terminal import ActCommand, moment, parse_number, table
from jobs_admin.models import Alert, AlertEvent
from jobs_admin.models.alert import AlertState

_MOST = 500
_ALL = "all"


class Command(ActCommand):
    help = "Alerts: list, show, acknowledge; undo an acknowledgement."

    def add_acts(self, acts: Any) -> None:
        every = acts.add_parser("list", help="Open alerts, latest first, or those in another state.")
        states = (alerts.OPEN, *AlertState.values, _ALL)
        every.add_argument("--state", default=alerts.OPEN, choices=states, help="resolved: past alerts. Default: open.")
        every.add_argument("--source", default="", type=representable)
        every.add_argument("--queue", default="", type=representable, help="The queue, or the view, of the alert.")
        every.add_argument("--rule", default="", type=representable, help="Name or number of the alert rule.")
        every.add_argument("--limit", type=int, default=50, help=f"Alerts to list, at most {_MOST}.")
        every.add_argument("--after", metavar="CURSOR", help="`next` of the page before, as --json prints it.")
        every.set_defaults(run=self._list)
        show = acts.add_parser("show", help="One alert: timeline, groups that grew, similar earlier alerts, links.")
        show.set_defaults(run=self._show)
        take = acts.add_parser(
            "acknowledge", help="Stop reminders and escalation, for all alerts of its notification or --only-this."
        )
        take.add_argument("--comment", default="", type=representable, help="Stored in the timeline and the audit.")
        take.add_argument("--only-this", action="store_true", help="Only this alert; the others continue.")
        take.set_defaults(run=self._acknowledge)
        undo = acts.add_parser("unacknowledge", help="Undo your own acknowledgement: reminders resume.")
        undo.set_defaults(run=self._unacknowledge)
        for one in (show, take, undo):
            one.add_argument("alert", type=parse_number, help="Number of the alert.")
        for one in (every, show, take, undo):
            one.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")

    def _list(self, *, state: str, limit: int, json: bool, after: str | None, **options: Any) -> None:
        filters = {name: options[name] for name in ("source", "queue", "rule")}
        if after and whole_number(after) is None:
            raise Refused("invalid", "--after is not a cursor: pass `next` of the page before, unchanged.")
        page = alerts.listing(
            terminal.viewer(), state="" if state == _ALL else state, limit=max(1, min(limit, _MOST)), after=after,
            **filters,
        )  # fmt: skip
        if json:
            counted = {"next": page.next, "count": page.count, "count_is_capped": page.count_is_capped}
            answer = shapes.listed(page.rows, api_shapes.alert, **counted)
            self.stdout.write(render_json(shapes.Listed[api_shapes.AlertItem], answer))
            return
        if not page.rows:
            which = "" if state == _ALL else f"{state} "
            self.stdout.write(f"No {which}alerts{' match' if any(filters.values()) else ''}.")
            return
        now = timezone.now()
        rows = [("ALERT", "STATE", "SEVERITY", "SINCE (UTC)", "FOR", "SOURCE", "CONDITION")]
        rows += [_row(one, now) for one in page.rows]
        for line in table(rows):
            self.stdout.write(line)
        self.stderr.write(f"{len(page.rows):,} of {page.count:,}{'+' if page.count_is_capped else ''}")

    def _show(self, *, alert: int, json: bool, **_: Any) -> None:
        viewer, now = terminal.viewer(), timezone.now()
        row = alerts.get(viewer, alert)
        detail = api_shapes.alert_detail(viewer, row, now)
        if json:
            self.stdout.write(render_json(api_shapes.AlertDetail, detail))
            return
        self._write(f"#{row.pk} {row.state} {row.severity}  {alert_words.condition(row)}")
        acknowledged = f"by {row.acknowledged_by} at {moment(row.acknowledged_at)} UTC" if row.acknowledged_at else ""
        facts = [
            ("rule", row.rule.name),
            ("since", f"{moment(row.opened_at)} UTC, {duration(alert_words.status(row, now).for_s)}"),
            ("acknowledged", acknowledged),
            ("blocked", row.held_because),
            ("sent with", f"#{row.told_with_id}" if row.told_with_id else ""),
            ("runbook", row.rule.runbook_url),
            ("failures", detail["failures_q"]),
            ("replay", detail["replay_url"]),
            ("page", detail["url"]),
        ]
        for name, value in facts:
            if value:
                self._write(f"  {name:<14}{value}")
        for title, lines in (
            ("Timeline", [_event_line(one, row) for one in alerts.events(viewer, row)]),
            ("Groups", [f"{one['fingerprint']}  {one['count']:,}  {one['title']}" for one in detail["groups"]]),
            ("Similar earlier alerts", [_earlier_line(one) for one in alerts.earlier(viewer, row)]),
        ):
            if lines:
                self._write(title)
            for line in lines:
                self._write(f"  {line}")

    def _acknowledge(self, *, alert: int, comment: str, only_this: bool, json: bool, **_: Any) -> None:
        done = alerts.acknowledge(terminal.viewer(), alert, comment, only_this=only_this)
        self._print_acknowledgement(done, "acknowledged", json)

    def _unacknowledge(self, *, alert: int, json: bool, **_: Any) -> None:
        done = alerts.unacknowledge(terminal.viewer(), alert)
        self._print_acknowledgement(done, "no longer acknowledged", json)

    def _print_acknowledgement(self, done: alerts.Acknowledgement, state: str, json: bool) -> None:
        if json:
            self.stdout.write(render_json(api_shapes.AcknowledgedItem, api_shapes.acknowledged(done)))
            return
        numbers = ", ".join(f"#{number}" for number in done.changed)
        more = f"{done.others:,} more {'was' if done.others == 1 else 'were'}"
        left = f" {more} resolved in the meantime." if done.others else ""
        self._write(f"{numbers} {'is' if len(done.changed) == 1 else 'are'} {state}.{left}")
        if state == "acknowledged":
            self._write(f"Undo: {COMMAND} alerts unacknowledge {done.alert.pk}")

    def _write(self, line: str) -> None:
        self.stdout.write(terminal_line(line, 500))


def _row(alert: Alert, now: datetime) -> tuple[str, ...]:
    status = alert_words.status(alert, now)
    condition = terminal_line(f"{alert_words.condition(alert)}; {alert.rule.name}", 200)
    source = terminal_line(alert.source or "-", 30)
    times = (moment(status.since), duration(status.for_s))
    return str(alert.pk), status.word, alert.severity, *times, source, condition


def _event_line(event: AlertEvent, alert: Alert) -> str:
    state = "unacknowledged" if event.is_undo else event.to
    of = f" #{event.alert_id}" if event.alert_id != alert.pk else ""
    value = f" {alert_words.in_unit(event.value, alert.rule.metric)}" if event.value is not None else ""
    by = f" by {event.actor}" if event.actor else ""
    why = f": {event.reason}" if event.reason and not event.is_undo else ""
    return f"{event.at:%Y-%m-%d %H:%M:%S}{of} {state}{value}{by}{why}"


def _earlier_line(alert: Alert) -> str:
    peak = alert_words.in_unit(alert.peak, alert.rule.metric)
    end = f"to {moment(alert.resolved_at)}" if alert.resolved_at else "open"
    replays = f", replays {', '.join(f'#{one.pk}' for one in alert.replays)}" if alert.replays else ""
    by = f", acknowledged by {alert.acknowledged_by}" if alert.acknowledged_by else ""
    return f"#{alert.pk}  {moment(alert.opened_at)} {end}, peak {peak}{by}{replays}"
