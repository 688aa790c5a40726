"""Sources that are to be accepted, refused reports, and sources in guest mode: `sources list`, `accept`, `coverage` …"""

from __future__ import annotations

from argparse import ArgumentParser

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from jobs_admin import config, trust
from jobs_admin.core.refused import Refused
from jobs_admin.desk import unconfigured_sources
from jobs_admin.installation import COMMAND
from jobs_admin.management import terminal
from jobs_admin.management.terminal import moment, table
from jobs_admin.models.access import VIEWER
from jobs_admin.queues import coverage
from jobs_admin.trust import admission


class Command(BaseCommand):
    help = (
        "List unknown sources and refused reports; accept or discard a source, file or discard reports. "
        "Guest mode: show coverage, switch events."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        acts.add_parser("list", help="List unknown sources and refused reports.")
        for act, what in {
            "accept": "Accept an unknown source, and file its stored reports.",
            "file": "File the stored unsigned and unfiled reports of a source.",
            "discard": "Delete the stored reports of an unknown source, or the refused ones of a known source.",
        }.items():
            acts.add_parser(act, help=what).add_argument("source", metavar="SOURCE")
        merge = acts.add_parser("merge", help="Move the failures of a source that is not configured into one that is.")
        merge.add_argument("source", metavar="SOURCE")
        merge.add_argument("into", metavar="INTO")
        events = {
            "enable-events": "Ask all workers of a Celery source in guest mode to send events of their jobs, until they restart.",
            "disable-events": "Ask them to stop.",
        }
        for act, what in events.items():
            acts.add_parser(act, help=what).add_argument("source", metavar="SOURCE")
        acts.add_parser("coverage", help="Show the coverage of sources in guest mode in the last hour.")
        acts.metavar = "{" + ",".join(acts.choices) + "}"

    def handle(self, *, act: str, source: str = "", into: str = "", **options: object) -> None:
        if act == "list":
            for line in listing():
                self.stdout.write(line)
            return
        if act == "coverage":
            for line in coverage_lines():
                self.stdout.write(line)
            return
        try:
            self.stdout.write(_confirmation(act, source, into))
        except Refused as error:
            raise CommandError(str(error)) from error


def _confirmation(act: str, source: str, into: str) -> str:
    if act == "merge":
        return unconfigured_sources.merge(terminal.viewer(), source, into).confirmation(source, into)
    if act == "accept":
        count = admission.accept(terminal.viewer(), source)
        done = f"The source {source} is accepted. {count:,} stored reports are filed by `watch` within seconds."
        return "\n".join(filter(None, [done, _refused_without_key(source)]))
    if act == "file":
        count = admission.file_unsigned(terminal.viewer(), source)
        return f"{count:,} reports of {source} are filed by `watch` within seconds."
    if act in ("enable-events", "disable-events"):
        coverage.switch_events(terminal.viewer(), source, on=act == "enable-events")
        if act == "disable-events":
            return f"Workers of {source} were asked to stop sending events of their jobs."
        return f"Workers of {source} were asked to send events of their jobs. A worker that restarts without -E stops sending them."
    is_waiting = source in {one.source for one in admission.state(terminal.viewer(), timezone.now()).waiting}
    count = (admission.discard if is_waiting else admission.discard_refused)(terminal.viewer(), source)
    return f"{count:,} reports of {source} are deleted."


def _refused_without_key(source: str) -> str:
    """Return that the source's next reports are refused for want of a key, and what to run; "" where they are not."""
    known = trust.read()
    why = known.why_not_unsigned(source, timezone.now())
    if not why or any(known.keys[key_id].source == source for key_id in known.keys_in_force):
        return ""
    return (
        f"{source} has no key: further reports of its workers are refused, because {why}. Create a key with "
        f"`{COMMAND} source-key create {source}`."
    )


def coverage_lines() -> list[str]:
    """A line for each source in guest mode, below a line of headings; then the gaps."""
    viewer = terminal.viewer()
    found = coverage.read([name for name in config.sources() if viewer.may(VIEWER, name)], timezone.now())
    rows: list[tuple[str, ...]] = [("SOURCE", "SEEN", "JOBS", "FAILED", "WITH GUARD", "SILENT WORKERS")]
    for one in found.values():
        share = "–" if one.percent is None else f"{one.percent}%"
        failed = f"{one.failed:,}+" if one.has_more else f"{one.failed:,}"
        rows.append((one.source, share, f"{one.executed:,}", failed, f"{one.replayable:,}", f"{len(one.silent):,}"))
    lines = table(rows)
    for one in found.values():
        if one.is_quiet and one.heard_at:
            lines.append(f"{one.source}: no event has arrived since {moment(one.heard_at)}.")
        for gap in one.gaps:
            until = f"to {moment(gap.end)}" if gap.end else "until now"
            lines.append(
                f"{one.source}: events were not read from {moment(gap.start)} {until}; at least {gap.missed:,} jobs ran."
            )
    return lines


def listing() -> list[str]:
    """A line for each unknown source and each kind of refused reports, below a line of headings."""
    state = admission.state(terminal.viewer(), timezone.now())
    rows = [("SOURCE", "WHY", "REFUSED", "STORED", "DROPPED", "LAST (UTC)")]
    for one in (*state.waiting, *state.refused):
        counts = (f"{n:,}" for n in (one.refused, one.stored, one.dropped))
        rows.append((one.source, one.word, *counts, moment(one.last_at)))
    return table(rows)
