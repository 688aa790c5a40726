"""`silences list | add | end`: silences of alerts, from a terminal."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from dashboard.alerts import api_shapes
from dashboard.alerts.silences import screens as silence_screens
from dashboard.web.api import shapes
from dashboard.web.api.shapes import render_json
from jobs_admin import alerts
from jobs_admin.alerts import silencing
from jobs_admin.core.text import representable, terminal_line
from jobs_admin.installation import COMMAND
from jobs_admin.management import terminal
from jobs_admin.management.terminal import ActCommand, moment, parse_length, parse_number, parse_time, table
from jobs_admin.models.alert import Severity


class Command(ActCommand):
    help = "Silences of alerts: list, add, end."

    def add_acts(self, acts: Any) -> None:
        every = acts.add_parser("list", help="Active and scheduled silences, the next to end first.")
        every.add_argument("--ended", action="store_true", help="List ended silences, latest first.")
        every.set_defaults(run=self._list)
        add = acts.add_parser("add", help="Silence alerts that match all given matchers; at least one is required.")
        for name, what in (("source", "source"), ("queue", "queue, or the view"), ("rule", "alert rule")):
            add.add_argument(f"--{name}", type=representable, metavar="GLOB", help=f"Name of the {what}.")
        add.add_argument("--severity", choices=Severity.values)
        add.add_argument(
            "--alert", type=parse_number, metavar="NUMBER", help="This alert, and those of its notification."
        )
        add.add_argument(
            "--exact",
            action="append",
            default=[],
            choices=silencing.GLOBS,
            help="Match this field literally: * is not a wildcard.",
        )
        end = add.add_mutually_exclusive_group(required=True)
        end.add_argument("--for", dest="for_", type=parse_length, metavar="LENGTH", help="30m, 8h; 30d at most.")
        end.add_argument("--until", type=parse_time, metavar="TIME", help="UTC: 2026-12-01T08:00.")
        add.add_argument("--starts", type=parse_time, metavar="TIME", help="Start; default: now.")
        add.add_argument("--comment", required=True, help="Reason, shown with each silenced alert.")
        add.set_defaults(run=self._add)
        over = acts.add_parser("end", help="End a silence now. Alerts that are still firing send notifications.")
        over.add_argument("silence", type=parse_number, help="Number of the silence.")
        over.set_defaults(run=self._end)
        for one in (every, add):
            one.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")

    def _list(self, *, ended: bool, json: bool, **_: Any) -> None:
        viewer, now = terminal.viewer(), timezone.now()
        found = alerts.silences(viewer, now, over=ended)
        if json:
            answer = shapes.listed(found, lambda one: api_shapes.silence(viewer, one), next=None, count=len(found))
            self.stdout.write(render_json(shapes.Listed[api_shapes.SilenceItem], answer))
            return
        if not found:
            self.stdout.write("No silence has ended." if ended else "No silence is active or scheduled.")
            return
        rows = [("SILENCE", "STATE", "STARTS (UTC)", "ENDS (UTC)", "AUTHOR", "ALERTS", "COMMENT")]
        for line in silence_screens.lines(viewer, found, now, may_act=False):
            one = line.silence
            times = (moment(one.starts_at), moment(one.ends_at))
            texts = (terminal_line(one.author, 30), _matchers(line), terminal_line(one.comment, 100))
            rows.append((str(one.pk), line.status, *times, *texts))
        for text in table(rows):
            self.stdout.write(text)

    def _add(self, *, json: bool, comment: str, **options: Any) -> None:
        viewer, now = terminal.viewer(), timezone.now()
        names = ("source", "queue", "rule", "severity", "alert", "exact")
        matchers = {name: options[name] for name in names if options[name] not in (None, [])}
        starts_at, length = options["starts"], options["for_"]
        ends_at = (starts_at or now) + length if length else options["until"]
        made = alerts.silence(viewer, matchers, ends_at=ends_at, comment=comment, starts_at=starts_at, now=now)
        if json:
            self.stdout.write(render_json(api_shapes.SilenceItem, api_shapes.silence(viewer, made)))
            return
        start = f" from {moment(made.starts_at)}" if made.starts_at > now else ""
        (line,) = silence_screens.lines(viewer, [made], now, may_act=False)
        self.stdout.write(f"Silence {made.pk}: {_matchers(line)}{start} until {moment(made.ends_at)} UTC.")
        self.stdout.write(f"Undo: {COMMAND} silences end {made.pk}")

    def _end(self, *, silence: int, **_: Any) -> None:
        alerts.end_silence(terminal.viewer(), silence)
        self.stdout.write(f"Silence {silence} has ended. Matching alerts send notifications again.")


def _matchers(line: silence_screens.Line) -> str:
    return terminal_line(", ".join(f"{name} {value}" for name, value in line.matchers), 150)
