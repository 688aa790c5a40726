"""`policies lint [--json] [--app MODULE:APP] [--outage 15m] [--except RULE[@TASK]]`: for people, and for CI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from jobs_admin.core import lint
from jobs_admin.core.lint import Finding
from jobs_admin.core.lint.configuration import Configuration, read
from jobs_admin.core.lint.finding import span
from jobs_admin.core.matching import matches
from jobs_admin.core.text import terminal_line
from jobs_admin.fleet.configurations import ReportedConfigurations
from jobs_admin.lint import linting
from jobs_admin.models.access import ENGINE

READS_WITHIN_S = 60
_ROOT = Path(__file__).resolve().parents[2]
CANNOT_LOOK = 2  # the exit code; 1 is for findings of severity high
_WIDTH = 300
# What would make the app believe that it is the desk.
_OURS = ("DJANGO_SETTINGS_MODULE", "REDRIVE_SOURCES", "CELERY_BROKER_URL")


def add(acts: Any) -> None:
    """Add its parser to the acts of `policies`."""
    parser: ArgumentParser = acts.add_parser(
        "lint", help="Mistakes in how jobs are retried. Ends with 1 when one of them is of severity high."
    )
    parser.add_argument("--json", action="store_true", help="One JSON object, as the API answers.")
    parser.add_argument(
        "--app", action="append", default=[], metavar="MODULE:APP",
        help="Judge this Celery app instead of live workers and policies; needs no database, no store, no worker.",
    )  # fmt: skip
    parser.add_argument("--outage", metavar="15m", help="The outage to survive, where none was seen; 5m if left out.")
    parser.add_argument(
        "--except", action="append", default=[], dest="excepted", metavar="RULE[@NAME]",
        help="Leave a rule out, or one for tasks and policies of this name; both may have *. May be given again.",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(command: BaseCommand, *, app: list[str], outage: str | None, excepted: list[str], **options: Any) -> None:
    outage_s = _seconds(outage)
    report = _of_apps(app, outage_s) if app else linting.report(ENGINE, outage_s=outage_s)
    remaining = tuple(finding for finding in report.findings if not _is_excepted(finding, excepted))
    left = len(report.findings) - len(remaining)
    report = replace(report, findings=remaining)
    if options["json"]:
        command.stdout.write(json.dumps(linting.as_json(report)))
    else:
        for line in text(report, left):
            command.stdout.write(line)
        for line in linting.reservations(report):
            command.stderr.write(terminal_line(line, _WIDTH))
    if report.count(lint.HIGH):
        raise SystemExit(1)
    if not report.reported.is_reachable:
        raise CommandError("Live workers could not be looked at.", returncode=CANNOT_LOOK)


def text(report: linting.Report, left: int = 0) -> Iterable[str]:
    """Rule by rule, the worst first; at the end what was looked at."""
    for (severity, id), some in groupby(report.findings, key=lambda finding: (finding.severity, finding.id)):
        found = list(some)
        yield f"{severity.upper():7} {found[0].title} ({id})"
        for one in found:
            yield f"        {terminal_line(str(one.where), 120)}: {terminal_line(one.evidence, _WIDTH)}"
            if one.quoted:
                yield f"            {terminal_line(one.quoted, _WIDTH)}"
        yield f"        To do: {terminal_line(found[0].fix, _WIDTH)}"
        yield f"        Known from: {terminal_line(found[0].source, _WIDTH)}"
    yield from _lying(report)
    counts = [f"{report.count(severity)} {severity}" for severity in lint.SEVERITIES]
    yield f"{', '.join(counts)}{f', {left} excepted' if left else ''}; of {linting.coverage(report)}."
    check = report.check
    if check.verdicts:
        reported = ", ".join(f"{check.count(verdict)} {verdict}" for verdict in lint.VERDICTS)
        kinds = ", ".join(f"{n} {kind}" for kind, n in check.kinds.items())
        yield f"Exponential backoff: {reported}.{f' By kind: {kinds}.' if kinds else ''}"


def _lying(report: linting.Report) -> Iterable[str]:
    """Yield each distinct kind of options of queued jobs, right or wrong."""
    if report.options:
        yield "Options of jobs that lie in queues:"
    for some in report.lying.found:
        for one in some.options:
            where = " · ".join((some.source, one.queue, one.task))
            seen = f"{one.jobs:,} of {one.looked:,} jobs looked at, the newest {one.example}"
            yield f"        {terminal_line(where, 120)}: {terminal_line(seen, 120)}"
            yield f"            {terminal_line(one.quoted, _WIDTH)}"


def _is_excepted(finding: Finding, excepted: Iterable[str]) -> bool:
    for one in excepted:
        rule, _, name = one.partition("@")
        named = (finding.where.task, finding.where.policy)
        if matches(rule, finding.id) and (not name or any(matches(name, each) for each in named if each)):
            return True
    return False


def _seconds(outage: str | None) -> float | None:
    if outage is None:
        return None
    number, unit = outage[:-1], outage[-1:]
    if not number.isdecimal() or unit not in ("s", "m", "h"):
        raise CommandError(f"--outage {outage!r} is no length of time such as 90s, 15m or 2h.", returncode=CANNOT_LOOK)
    return float(number) * {"s": 1, "m": 60, "h": 3600}[unit]


# -- an app without a worker --------------------------------------------------------------------------------------


def _of_apps(names: list[str], outage_s: float | None) -> linting.Report:
    found = tuple(_read(name) for name in names)
    case = lint.case([], found, lint.Facts(outage_s=lint.OUTAGE_S if outage_s is None else outage_s))
    return linting.Report(
        tuple(lint.findings(case)), lint.check(case), ReportedConfigurations(found), 0, (), timezone.now()
    )


def _read(name: str) -> Configuration:
    """In a process of its own: an app may be a Django project, and this one is another."""
    environment = {key: value for key, value in os.environ.items() if key not in _OURS}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "jobs_admin.worker.configuration", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=READS_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(
            f"{name} could not be imported within {span(READS_WITHIN_S)}.", returncode=CANNOT_LOOK
        ) from error
    found = read(_last_line(done.stdout), name) if done.returncode == 0 else None
    if found is None:
        why = _last_line(done.stderr) or "it said nothing"
        raise CommandError(f"{name} cannot be read: {terminal_line(why, _WIDTH)}", returncode=CANNOT_LOOK)
    return found


def _last_line(output: str) -> str:
    """Apps print what they like while they are imported."""
    return (output.strip().splitlines() or [""])[-1]
