"""`replays list | bring-back | discard`: replays that are not over, from a terminal. `replay` starts one."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from jobs_admin import replays
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import terminal_line
from jobs_admin.management import terminal
from jobs_admin.models import Replay
from jobs_admin.models.replay import ReplayState

_AT_ONCE = 500
_OVER = (ReplayState.DONE, ReplayState.STOPPED, ReplayState.CANCELLED)


class Command(BaseCommand):
    help = "List drafts and unfinished replays, bring back groups that were set aside, discard drafts."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        listed = acts.add_parser(
            "list", help="List drafts and unfinished replays, latest first, with the groups set aside."
        )
        listed.set_defaults(run=self._list)
        back = acts.add_parser("bring-back", help="Send the jobs of groups that were set aside during the replay.")
        back.add_argument("replay", type=int, help="Number of the replay.")
        back.add_argument("groups", nargs="+", metavar="FINGERPRINT", help="Groups, as printed by `replays list`.")
        back.set_defaults(run=self._bring_back)
        discard = acts.add_parser("discard", help="Discard a draft. Its jobs are not changed.")
        discard.add_argument("replay", type=int, help="Number of the replay.")
        discard.set_defaults(run=self._discard)
        for act in (back, discard):
            act.add_argument("--reason", default="", help="Reason, recorded in the audit.")
        acts.metavar = "{" + ",".join(acts.choices) + "}"

    def handle(self, *args: object, run: Any, **options: Any) -> None:
        try:
            run(**options)
        except Refused as refused:
            raise CommandError(refused.message) from refused
        except Replay.DoesNotExist as error:
            raise CommandError(f"Replay #{options['replay']} not found. Nothing was changed.") from error

    def _list(self, **_: Any) -> None:
        viewer, after, found = terminal.viewer(), None, False
        while True:
            page = replays.listing(viewer, after=after, limit=_AT_ONCE)
            for row in page.rows:
                if row.state not in _OVER:
                    found = True
                    self._show(row)
            if page.next is None:
                break
            after = page.next
        if not found:
            self.stdout.write("No unfinished replays and no drafts.")

    def _show(self, row: Replay) -> None:
        jobs = (
            f"{row.sent_in_all:,} of {row.total:,} jobs sent, {row.settled:,} settled"
            if row.started_at
            else f"{row.matched:,} jobs matched"
        )
        why = f": {terminal_line(row.current_hold_reason, 300)}" if row.held_because else ""
        self.stdout.write(f"#{row.pk} {row.state}  {jobs}  {terminal_line(row.reason, 100)}{why}")
        for one in replays.groups_aside(terminal.viewer(), row) if row.without_groups else ():
            count = "" if one.jobs is None else f"{one.jobs:,} jobs  "
            self.stdout.write(
                f"  {one.group.name}  {count}{terminal_line(one.group.title, 80)}: {terminal_line(one.reason, 200)}"
            )

    def _bring_back(self, *, replay: int, groups: list[str], reason: str, **_: Any) -> None:
        viewer = terminal.viewer()
        found = replays.bring_back(viewer, replays.find(viewer, replay), groups, reason=reason)
        count = len(set(groups))
        self.stdout.write(
            f"Replay #{found.pk} sends the jobs of {'this group' if count == 1 else f'these {count:,} groups'}."
        )

    def _discard(self, *, replay: int, reason: str, **_: Any) -> None:
        viewer = terminal.viewer()
        replays.discard(viewer, replays.find(viewer, replay), reason=reason)
        self.stdout.write(f"Draft #{replay} is discarded.")
