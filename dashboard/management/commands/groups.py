"""`groups list | show | resolve | reopen | mute | assign | unassign | note | runbook | issue | undo`: groups from a terminal."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import datetime, timedelta
from typing import Any, get_args

from django.utils import timezone
from pydantic import ValidationError

from dashboard.groups import api as group_calls
from dashboard.web.api import shapes
from dashboard.web.api.shapes import render_json
from dashboard.web.figures import number, percent
from dashboard.web.links import group_page
from jobs_admin import config, failures
from jobs_admin.core.refused import Refused
from jobs_admin.core.text import representable, terminal_line
from jobs_admin.groups import LARGEST_PAGE, PAGE, group_changes
from jobs_admin.groups.issue_form import create_issue_url
from jobs_admin.installation import COMMAND
from jobs_admin.management import terminal
from jobs_admin.management.terminal import ActCommand, moment, parse_length, parse_time, table

_DONE = {
    "resolve": "resolved", "reopen": "reopened", "mute": "muted", "assign": "assigned", "unassign": "unassigned",
    "note": "changed", "runbook": "changed", "issue": "changed",
}  # fmt: skip


class Command(ActCommand):
    help = "Groups of failures: list, show, resolve, reopen, mute, assign; note, runbook, issue; undo."
    search_acts = frozenset({"list"})

    def add_acts(self, acts: Any) -> None:
        every = acts.add_parser("list", help="Groups that match, in every state unless --state is given.")
        every.add_argument("query", nargs="*", help="Search, as in the search field of groups: state:new queue:emails.")
        every.add_argument(
            "--state",
            action="append",
            default=[],
            choices=get_args(group_calls.State),
            help="Repeat for several.",
        )
        assignee = every.add_mutually_exclusive_group()
        assignee.add_argument("--assignee", type=representable, metavar="USER", help="Only groups of this user.")
        assignee.add_argument(
            "--unassigned", dest="assignee", action="store_const", const="", help="Only groups without an assignee."
        )
        every.add_argument(
            "--sort", default="last_seen", choices=get_args(group_calls.Order), help="Highest or latest first."
        )
        every.add_argument("--limit", type=int, default=PAGE, help=f"Groups to list, at most {LARGEST_PAGE}.")
        every.add_argument("--after", metavar="CURSOR", help="`next` of the page before, as --json prints it.")
        show = acts.add_parser("show", help="One group: states of its jobs, queues, tasks, tenants, releases, hosts.")
        show.add_argument("fingerprint", type=representable)
        for one, run in ((every, self._list), (show, self._show)):
            one.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")
            one.set_defaults(run=run)
        self._add_changes(acts)
        undo = acts.add_parser(
            "undo", help="Undo a change by its receipt. Groups changed since then are left unchanged."
        )
        undo.add_argument("receipt", type=representable, help="Receipt, as printed by the change.")
        undo.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")
        undo.set_defaults(run=self._undo)

    def _add_changes(self, acts: Any) -> None:
        self._add_change(acts, "resolve", "Mark as resolved; new failures make a group regressed.")
        self._add_change(acts, "reopen", "Make resolved or muted groups ongoing.")
        mute = self._add_change(acts, "mute", "Mute until a time, for a time, or until more attempts failed.")
        end = mute.add_mutually_exclusive_group()
        end.add_argument("--until", type=parse_time, metavar="TIME", help="UTC: 2026-12-01T08:00.")
        end.add_argument("--for", dest="for_", type=parse_length, metavar="LENGTH", help="30m, 8h, 7d.")
        mute.add_argument("--count", type=int, metavar="N", help="Unmute after N more failed attempts.")
        assign = self._add_change(acts, "assign", "Set the assignee.")
        assign.add_argument("--to", required=True, type=representable, metavar="USER", help="The user's name.")
        self._add_change(acts, "unassign", "Remove the assignee.")
        note = self._add_change(acts, "note", "Set the note, or remove it by an empty text.")
        note.add_argument("--text", required=True, type=representable)
        runbook = self._add_change(acts, "runbook", "Set the runbook's URL, or remove it by an empty one.")
        issue = self._add_change(
            acts, "issue", "Set the URL of its issue in the issue tracker, or remove it by an empty one."
        )
        for one in (runbook, issue):
            one.add_argument("--url", required=True, type=representable)

    def _add_change(self, acts: Any, name: str, help: str) -> ArgumentParser:
        parser: ArgumentParser = acts.add_parser(name, help=help)
        parser.add_argument("groups", nargs="+", metavar="FINGERPRINT", help="Groups, as printed by `groups list`.")
        parser.add_argument("--reason", default="", help="Reason, recorded in the audit.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")
        parser.set_defaults(run=self._change)
        return parser

    # -- reading ---------------------------------------------------------------------------------------------------

    def _list(self, *, query: list[str], sort: str, limit: int, after: str | None, **options: Any) -> None:
        if after and not failures.is_group_cursor(sort, after):
            raise Refused(
                "invalid", "--after is not a cursor of this order: pass `next` of the page before, unchanged."
            )
        page = failures.groups(
            terminal.viewer(), " ".join(query), order=sort, after=after, limit=max(1, min(limit, LARGEST_PAGE)),
            states=options["state"], assignee=options["assignee"],
        )  # fmt: skip
        if options["json"]:
            answer = shapes.listed(
                page.rows, group_calls.group, next=page.next, count=page.count, count_is_capped=page.count_is_capped,
                reading=page.reading, hints=list(page.hints),
            )  # fmt: skip
            self.stdout.write(render_json(shapes.Listed[group_calls.GroupItem], answer))
            return
        for hint in (*page.hints, page.reading):
            self.stderr.write(terminal_line(hint, 500))
        if not page.rows:
            self.stdout.write(terminal_line(page.why_empty or "No matching groups.", 500))
            return
        rows = [("FINGERPRINT", "STATE", "DEAD", "COUNT", "PER MIN", "LAST SEEN (UTC)", "ASSIGNEE", "GROUP")]
        for row in page.rows:
            one = row.group
            name = one.assignee.get_username() if one.assignee else "-"
            numbers = (number(row.dead), number(row.count), number(row.per_minute))
            rows.append(
                (one.fingerprint, one.state, *numbers, moment(one.last_seen), terminal_line(name, 30), _title(one))
            )
        for line in table(rows):
            self.stdout.write(line)
        self.stderr.write(f"{len(page.rows):,} of {page.count:,}{'+' if page.count_is_capped else ''}")

    def _show(self, *, fingerprint: str, json: bool, **_: Any) -> None:
        found = failures.group(terminal.viewer(), fingerprint)
        url = config.page_url(group_page(found.group.fingerprint))
        if json:
            answer = group_calls.group_detail(found, url)
            self.stdout.write(render_json(group_calls.GroupDetailItem, answer))
            return
        one = found.group
        by = f" by {one.state_by}" if one.state_by else ""
        since = f" since {moment(one.state_since)} UTC{by}" if one.state_since else ""
        after = f", regressed after {one.regressed_after}" if one.regressed_after else ""
        jobs = ", ".join(f"{n:,} {state}" for state, n in found.jobs_by_state.items())
        facts = [
            ("state", f"{one.state}{since}{after}"),
            ("muted until", f"{one.muted_until:%Y-%m-%d %H:%M} UTC" if one.muted_until else ""),
            ("jobs", f"{jobs}; {percent(found.share_of_dead)} of all dead"),
            ("failed", f"{found.count:,} {'jobs' if found.is_partial else 'attempts'}"),
            ("seen", f"{moment(one.first_seen)} to {moment(one.last_seen)} UTC"),
            ("assignee", one.assignee.get_username() if one.assignee else ""),
            ("note", one.note),
            ("runbook", one.runbook_url),
            ("issue", one.issue_url),
            ("new issue", create_issue_url(found, url)),
            ("calls", ", ".join(f"{one.name} ({one.reason})" for one in found.dependencies)),
            ("example", f"failure {found.representative.pk}" if found.representative else ""),
        ]
        named = ("sources", "queues", "tasks", "tenants", "releases", "hosts")
        facts += [(name, ", ".join(f"{value or '-'} {n:,}" for value, n in getattr(found, name))) for name in named]
        self.stdout.write(f"{one.fingerprint}  {_title(one)}")
        for name, value in [*facts, ("page", url)]:
            if value:
                self.stdout.write(f"  {name:<12}{terminal_line(value, 8_000 if name == 'new issue' else 500)}")

    # -- changing --------------------------------------------------------------------------------------------------

    def _change(self, *, act: str, groups: list[str], reason: str, json: bool, **options: Any) -> None:
        body = _body({"groups": groups, "reason": reason, **_changes(act, options, timezone.now())})
        changes = body.model_dump(exclude_unset=True, exclude={"reason", "groups"})
        done = group_changes.change_many(terminal.viewer(), body.groups, changes, reason=body.reason)
        if json:
            answer = {
                "changed": done.fingerprints, "unchanged": done.unchanged, "refused": done.refused,
                "missing": done.missing, "receipt": done.receipt,
            }  # fmt: skip
            self.stdout.write(render_json(group_calls.ChangedGroups, answer))
            return
        if done.missing and not done.fingerprints and not done.unchanged:
            raise Refused("invalid", f"Group not found: {', '.join(sorted(set(groups)))}. Nothing was changed.")
        same = f"; {_count(done.unchanged)} had no change" if done.unchanged else ""
        missing = f"; {_count(done.missing)} not found" if done.missing else ""
        self.stdout.write(f"{_count(len(done.fingerprints))} {_DONE[act]}{same}{missing}.")
        if done.receipt:
            self.stdout.write(f"Undo: {COMMAND} groups undo {done.receipt}")

    def _undo(self, *, receipt: str, json: bool, **_: Any) -> None:
        done = group_changes.undo(terminal.viewer(), receipt)
        if json:
            answer = {"undone": done.fingerprints, "changed_since": done.changed_since}
            self.stdout.write(render_json(group_calls.UndoneGroups, answer))
            return
        since = f"; {_count(len(done.changed_since))} changed since, not restored" if done.changed_since else ""
        self.stdout.write(f"{_count(len(done.fingerprints))} restored{since}.")


def _changes(act: str, options: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Return the fields that an act changes, as the API takes them."""
    if act == "mute":
        length: timedelta | None = options["for_"]
        end = now + length if length else options["until"]
        return {"state": "muted", "muted_until": end, "muted_until_count": options["count"]}
    return {
        "resolve": {"state": "resolved"},
        "reopen": {"state": "ongoing"},
        "assign": {"assignee": options.get("to")},
        "unassign": {"assignee": ""},
        "note": {"note": options.get("text")},
        "runbook": {"runbook_url": options.get("url")},
        "issue": {"issue_url": options.get("url")},
    }[act]


def _body(given: dict[str, Any]) -> group_calls.GroupsChange:
    """Return the body of the API's call, whose bounds hold here too. Raises Refused."""
    try:
        return group_calls.GroupsChange.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        raise Refused("invalid", f"{field}: {first['msg']}. Nothing was changed.", field) from error


def _count(n: int) -> str:
    return f"{n:,} group{'' if n == 1 else 's'}"


def _title(group: Any) -> str:
    return terminal_line(group.title, 100)
