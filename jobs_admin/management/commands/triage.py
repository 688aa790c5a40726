"""`triage discard | restore | readmit QUERY …`, `triage undo KEY`: acts on all failures that match, from a terminal."""

from __future__ import annotations

from argparse import ArgumentParser

from django.core.management.base import CommandError

from jobs_admin.core.refused import Refused
from jobs_admin.core.text import terminal_line
from jobs_admin.failures import triage
from jobs_admin.installation import COMMAND
from jobs_admin.management import terminal
from jobs_admin.management.terminal import SearchCommand

_DONE = {"discard": "Discarded", "restore": "Restored", "readmit": "Readmitted", "undo": "Reverted"}
_STEP_S = 2.0  # between two lines of progress


class Command(SearchCommand):
    help = "Discard, restore or readmit all failures that match, and undo such an action by its key."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("act", choices=[*triage.ACTS, "undo"])
        parser.add_argument(
            "query", nargs="+", help="Search, as in the search field. For undo: the key printed by the action."
        )
        parser.add_argument("--reason", default="", help="Recorded in the audit; required for more than one job.")
        parser.add_argument("--dry-run", action="store_true", help="Only print how many jobs could be changed.")

    def handle(self, *, act: str, query: list[str], reason: str, dry_run: bool, **_: object) -> None:
        viewer, text = terminal.viewer(), " ".join(query)
        try:
            if act == "undo":
                sweep = triage.begin_undo(viewer, text)
            else:
                triage.require_search(text)
                sweep = triage.begin(viewer, act, query=text, reason=reason or ("dry run" if dry_run else ""))
        except Refused as refused:
            raise CommandError(refused.message) from refused
        if dry_run:
            self.stdout.write(f"At most {_jobs(sweep.matched)} would be changed. Nothing was changed.")
            return
        try:
            while not sweep.is_done:
                sweep = triage.go_on(viewer, sweep, within_s=_STEP_S)
                if not sweep.is_done:
                    self.stderr.write(f"{_DONE[act]} {sweep.changed:,} of {sweep.matched:,} …")
        except BaseException as error:  # also Ctrl-C: what was changed so far can be undone
            self._print_key(sweep)
            if isinstance(error, Refused):
                raise CommandError(error.message) from error
            raise
        self.stdout.write(terminal_line(f"{_DONE[act]} {sweep.changed:,} of {_jobs(sweep.matched)}.", 200))
        self._print_key(sweep)

    def _print_key(self, sweep: triage.Sweep) -> None:
        # A step that was cut short changed jobs, too: they are counted where they are written down.
        if sweep.act != "undo" and triage.has_changed(sweep.key):
            self.stdout.write(f"Undo: {COMMAND} triage undo {sweep.key}")


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"
