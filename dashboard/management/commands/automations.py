"""`automations list | show | dry-run | disable | reset | stop-all`: automations, from a terminal."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from dashboard.automations import api as automation_calls
from dashboard.web.api import shapes
from dashboard.web.api.shapes import render_json
from jobs_admin import automations
from jobs_admin.core.text import representable, terminal_line
from jobs_admin.management import terminal
from jobs_admin.management.terminal import ActCommand, moment, table
from jobs_admin.models import Automation

_DIARY = 20


class Command(ActCommand):
    help = "Automations: list, show, dry run, disable, reset, stop all."

    def add_acts(self, acts: Any) -> None:
        every = acts.add_parser("list", help="List automations, by name.")
        every.set_defaults(run=self._list)
        show = acts.add_parser("show", help="Show an automation, with its latest decisions.")
        show.set_defaults(run=self._show)
        dry = acts.add_parser(
            "dry-run", help="Show what an automation would have done in the last 7 days. Changes nothing."
        )
        dry.set_defaults(run=self._dry_run)
        disable = acts.add_parser("disable", help="Return an automation to dry run.")
        disable.set_defaults(run=self._disable)
        reset = acts.add_parser("reset", help="Make a tripped automation live again.")
        reset.set_defaults(run=self._reset)
        stop = acts.add_parser("stop-all", help="Return every automation to dry run.")
        stop.set_defaults(run=self._stop_all)
        for one in (show, dry, disable, reset):
            one.add_argument("name", type=representable, help="Name of the automation.")
        for one in (disable, reset, stop):
            one.add_argument("--reason", default="", help="Reason, for the audit.")
        for one in (every, show, dry):
            one.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")

    def _list(self, *, json: bool, **_: Any) -> None:
        viewer = terminal.viewer()
        found = automations.listing(viewer)
        if json:
            answer = shapes.listed(
                found, lambda one: automation_calls.automation(viewer, one), next=None, count=len(found)
            )
            self.stdout.write(render_json(shapes.Listed[automation_calls.AutomationItem], answer))
            return
        if not found:
            self.stdout.write("No automations.")
            return
        rows = [("NAME", "STATE", "ACT", "SOURCE", "OWNER", "SEARCH")]
        rows += [(one.name, _state(one), one.act, one.source, *_texts(one.owner_name, one.query)) for one in found]
        for text in table(rows):
            self.stdout.write(text)

    def _show(self, name: str, *, json: bool, **_: Any) -> None:
        viewer = terminal.viewer()
        one = automations.get(viewer, name)
        if json:
            self.stdout.write(render_json(automation_calls.AutomationItem, automation_calls.automation(viewer, one)))
            return
        self.stdout.write(
            f"{one.name}: {_state(one)}, version {one.version}, owner {terminal_line(one.owner_name, 60)}"
        )
        for text in filter(None, (one.why_tripped, one.why_not)):
            self.stdout.write(terminal_line(text, 300))
        rows = automations.diary(one, limit=_DIARY).rows
        for text in table(
            [(str(row.n), moment(row.at), row.state, terminal_line(row.text, 200)) for row in rows] or [("",)]
        ):
            self.stdout.write(text)

    def _dry_run(self, name: str, *, json: bool, **_: Any) -> None:
        viewer = terminal.viewer()
        found = automations.dry_run(viewer, automations.get(viewer, name), timezone.now())
        if json:
            self.stdout.write(render_json(automation_calls.DryRunResult, automation_calls.dry_run(found)))
            return
        for act in found.acts:
            self.stdout.write(f"{moment(act.at)}  {act.jobs:,} jobs")
        times = f"{found.count:,} time{'' if found.count == 1 else 's'}"
        self.stdout.write(
            f"Since {moment(found.since)} UTC the automation would have acted {times}, on {found.jobs:,} jobs."
        )
        self.stdout.write(f"{found.ready:,} jobs match now. {found.why_not or 'The automation would act now.'}")

    def _disable(self, name: str, *, reason: str, **_: Any) -> None:
        automations.disable(terminal.viewer(), name, reason=reason)
        self.stdout.write(f"{name} is in dry run. Started replays continue.")

    def _reset(self, name: str, *, reason: str, **_: Any) -> None:
        automations.reset(terminal.viewer(), name, reason=reason)
        self.stdout.write(f"{name} is live again.")

    def _stop_all(self, *, reason: str, **_: Any) -> None:
        stopped = automations.stop_all(terminal.viewer(), reason=reason)
        names = f": {', '.join(stopped)}" if stopped else ""
        plural = "" if len(stopped) == 1 else "s"
        self.stdout.write(f"{len(stopped):,} automation{plural} stopped{names}. Started replays continue.")


def _state(one: Automation) -> str:
    return automations.state(one).replace("_", " ")


def _texts(*texts: str) -> list[str]:
    return [terminal_line(text, 60) for text in texts]
