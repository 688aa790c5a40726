"""`policies lint | list | show | publish | restore | withdraw`: retry policies from a terminal, from a repository of them, and
in CI: `policies lint [--json] [--app MODULE:APP] [--outage 15m] [--except RULE[@TASK]]`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from jobs_admin import config, policies
from jobs_admin.core import lint
from jobs_admin.core.figures import exact_duration
from jobs_admin.core.lint import Finding
from jobs_admin.core.lint.configuration import Configuration, read
from jobs_admin.core.matching import matches
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import terminal_line, whole_number
from jobs_admin.fleet.configurations import ReportedConfigurations
from jobs_admin.installation import ROOT
from jobs_admin.lint import linting
from jobs_admin.management import terminal
from jobs_admin.models import PolicyVersion
from jobs_admin.models.access import ENGINE

_FORMER = "put-back"  # the name of `restore` in earlier versions
NOW = -1  # `--expected-version now`: whatever is in force
_REASON = {"default": "", "metavar": "TEXT", "help": "Reason, stored with the version and in the audit."}

READS_WITHIN_S = 60
CANNOT_CHECK = 2  # the exit code; 1 is for findings of severity high
_WIDTH = 300
# What would make the app believe that it is the desk.
_OURS = ("DJANGO_SETTINGS_MODULE", "REDRIVE_SOURCES", "CELERY_BROKER_URL")


class Command(BaseCommand):
    help = "List, show, publish, restore, withdraw and lint retry policies."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        add_lint(acts)
        add_acts(acts)
        acts.metavar = "{" + ",".join(name for name in acts.choices if name != _FORMER) + "}"

    def handle(self, *args: object, run: Any, **options: Any) -> None:
        run(self, **options)


def add_acts(acts: Any) -> None:
    """Add the parsers of `list`, `show`, `publish`, `restore` and `withdraw`."""
    listing = acts.add_parser("list", help="List policies in force, and the workers that have them.")
    listing.set_defaults(run=run_list)
    show: ArgumentParser = acts.add_parser("show", help="Print a policy as JSON, in the form that `publish` reads.")
    show.add_argument("name")
    show.add_argument(
        "--version", dest="number", type=int, metavar="N", help="Earlier version; default: the version in force."
    )
    show.set_defaults(run=run_show)
    publish = acts.add_parser("publish", help="Publish a policy: all workers have it within two seconds.")
    publish.add_argument("name")
    publish.add_argument("file", metavar="FILE", help="JSON file; - for standard input.")
    publish.add_argument("--expected-version", type=_expected, metavar="N", help="Version to replace, or `now`.")
    publish.add_argument("--reason", **_REASON)
    publish.set_defaults(run=run_publish)
    put_back = acts.add_parser(
        "restore", aliases=[_FORMER], help="Publish an earlier version again, as the next version."
    )
    put_back.add_argument("name")
    put_back.add_argument("number", type=int, metavar="VERSION")
    put_back.add_argument("--reason", **_REASON)
    put_back.set_defaults(run=run_put_back)
    withdraw = acts.add_parser("withdraw", help="Withdraw a policy. Every version can be restored.")
    withdraw.add_argument("name")
    withdraw.add_argument("--reason", **_REASON)
    withdraw.set_defaults(run=run_withdraw)


def run_list(command: BaseCommand, **_: Any) -> None:
    viewer = terminal.viewer()
    found = policies.published(viewer)
    running = policies.in_force(viewer, found)
    rows = [("POLICY", "MODE", "SOURCE", "QUEUE", "TASK", "EXPIRES (UTC)", "WORKERS")]
    for one in found:
        expires = f"{one.expires_at:%Y-%m-%d %H:%M}" if one.expires_at else "-"
        match = (one.match_source, one.match_queue, one.match_task)
        rows.append(
            (str(one), one.mode, *(terminal_line(part, 40) for part in match), expires, running[one.name].sentence)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        command.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def run_show(command: BaseCommand, *, name: str, number: int | None, **_: Any) -> None:
    viewer = terminal.viewer()
    try:
        found = policies.get(viewer, name) if number is None else policies.version(viewer, name, number)
    except NotFound as none:
        raise CommandError(f"Policy {name}{'' if number is None else f'@{number}'} not found.") from none
    command.stdout.write(json.dumps(found.document, indent=2, ensure_ascii=False))
    by, at = terminal_line(found.published_by, 60), found.published_at
    state = "in force" if found.is_published else f"until {found.ended_at:%Y-%m-%d %H:%M:%S} UTC"
    why = f": {terminal_line(found.reason, 200)}" if found.reason else ""
    command.stderr.write(f"{found}, {state}; published by {by} on {at:%Y-%m-%d %H:%M:%S} UTC{why}")


def run_publish(
    command: BaseCommand, *, name: str, file: str, expected_version: int | None, reason: str, **_: Any
) -> None:
    document, before = _document(file), _in_force(name)
    if expected_version == NOW:
        expected_version = before.version if before else None
    drafted = _run_act(lambda: policies.check(terminal.viewer(), name, document))
    for warning in linting.attempts_given(terminal.viewer(), drafted):
        command.stderr.write(f"note: {terminal_line(warning, 500)}")
    made = _run_act(
        lambda: policies.publish(terminal.viewer(), name, document, expected_version=expected_version, reason=reason)
    )
    if before is not None and made.pk == before.pk:
        command.stdout.write(f"No changes from {made}. Nothing was changed.")
    else:
        command.stdout.write(f"{made} is in force{_when()}")


def run_put_back(command: BaseCommand, *, name: str, number: int, reason: str, **_: Any) -> None:
    before = _in_force(name)
    current = before.version if before else None
    made = _run_act(lambda: policies.put_back(terminal.viewer(), name, number, expected_version=current, reason=reason))
    command.stdout.write(f"{name}@{number} restored as {made}{_when()}")


def run_withdraw(command: BaseCommand, *, name: str, reason: str, **_: Any) -> None:
    gone = _run_act(lambda: policies.withdraw(terminal.viewer(), name, reason=reason))
    command.stdout.write(f"{gone} is withdrawn{_when()}")


def _when() -> str:
    """Return when workers know of it, for the end of a sentence."""
    try:
        policies.push()
    except (config.BadConfiguration, redis.RedisError) as error:
        return f". Workers do not have the change yet: {error} `watch` sends the change when the store answers."
    return ": workers have the change within two seconds."


def _run_act(act: Any) -> Any:
    try:
        return act()
    except NotFound as none:
        raise CommandError("Policy or version not found. Nothing was changed.") from none
    except Refused as refused:
        if refused.code == "stale":
            changes = refused.details["difference"]
            lines = [
                terminal_line(f"  {c.field}: was {c.was!r}, is {c.now!r}, yours {c.yours!r}", 200) for c in changes
            ]
            how = "Review the changes, then pass --expected-version with the version in force."
            raise CommandError("\n".join([refused.message, *lines, how])) from refused
        problems = refused.details.get("problems", ())
        lines = [one.message for one in problems] if len(problems) > 1 else []
        raise CommandError("\n".join(["Nothing was changed.", *lines] if lines else [refused.message])) from refused


def _in_force(name: str) -> PolicyVersion | None:
    try:
        return policies.get(terminal.viewer(), name)
    except NotFound:
        return None


def _document(file: str) -> object:
    try:
        return json.loads(sys.stdin.read() if file == "-" else Path(file).read_text())
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}. Nothing was changed.") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{file} is not JSON: {error}. Nothing was changed.") from error


def _expected(text: str) -> int:
    number = NOW if text == "now" else whole_number(text)
    if number is None:
        raise ArgumentTypeError(f"{text!r} is not a version: give a number, or now")
    return number


def add_lint(acts: Any) -> None:
    """Add the parser of `lint`."""
    parser: ArgumentParser = acts.add_parser(
        "lint", help="Check retry settings. Exit code 1 if a finding has severity high."
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")
    parser.add_argument(
        "--app", action="append", default=[], metavar="MODULE:APP",
        help="Check this Celery app instead of live workers and policies; needs no database, store or worker.",
    )  # fmt: skip
    parser.add_argument("--outage", metavar="15m", help="Outage to survive if none was recorded; default: 5m.")
    parser.add_argument(
        "--except", action="append", default=[], dest="excepted", metavar="RULE[@NAME]",
        help="Exclude a rule, or a rule for tasks and policies of this name (wildcard * in both). Repeat for several.",
    )  # fmt: skip
    parser.set_defaults(run=run_lint)


def run_lint(command: BaseCommand, *, app: list[str], outage: str | None, excepted: list[str], **options: Any) -> None:
    outage_s = _outage_seconds(outage)
    report = _of_apps(app, outage_s) if app else linting.report(ENGINE, outage_s=outage_s)
    remaining = tuple(finding for finding in report.findings if not _is_excepted(finding, excepted))
    left = len(report.findings) - len(remaining)
    report = replace(report, findings=remaining)
    if options["json"]:
        command.stdout.write(json.dumps(linting.as_json(report)))
    else:
        for line in lint_text(report, left):
            command.stdout.write(line)
        for line in linting.reservations(report):
            command.stderr.write(terminal_line(line, _WIDTH))
    if report.count(lint.HIGH):
        raise SystemExit(1)
    if not report.reported.is_reachable:
        raise CommandError("Live workers could not be checked.", returncode=CANNOT_CHECK)


def lint_text(report: linting.Report, left: int = 0) -> Iterable[str]:
    """Rule by rule, the worst first; at the end what was looked at."""
    for (severity, id), some in groupby(report.findings, key=lambda finding: (finding.severity, finding.id)):
        found = list(some)
        yield f"{severity.upper():7} {found[0].title} ({id})"
        for one in found:
            yield f"        {terminal_line(str(one.where), 120)}: {terminal_line(one.evidence, _WIDTH)}"
            if one.quoted:
                yield f"            {terminal_line(one.quoted, _WIDTH)}"
        yield f"        Fix: {terminal_line(found[0].fix, _WIDTH)}"
        yield f"        Source: {terminal_line(found[0].source, _WIDTH)}"
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
        yield "Options of queued jobs:"
    for some in report.lying.found:
        for one in some.options:
            where = " · ".join((some.source, one.queue, one.task))
            seen = f"{one.jobs:,} of {one.sample_size:,} jobs checked, latest {one.example}"
            yield f"        {terminal_line(where, 120)}: {terminal_line(seen, 120)}"
            yield f"            {terminal_line(one.quoted, _WIDTH)}"


def _is_excepted(finding: Finding, excepted: Iterable[str]) -> bool:
    for one in excepted:
        rule, _, name = one.partition("@")
        named = (finding.where.task, finding.where.policy)
        if matches(rule, finding.id) and (not name or any(matches(name, each) for each in named if each)):
            return True
    return False


def _outage_seconds(outage: str | None) -> float | None:
    if outage is None:
        return None
    number, unit = outage[:-1], outage[-1:]
    if not number.isdecimal() or unit not in ("s", "m", "h"):
        raise CommandError(f"--outage {outage!r} is not a duration such as 90s, 15m or 2h.", returncode=CANNOT_CHECK)
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
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "jobs_admin.worker.configuration", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=READS_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(
            f"{name} could not be imported within {exact_duration(READS_WITHIN_S)}.", returncode=CANNOT_CHECK
        ) from error
    found = read(_last_line(done.stdout), name) if done.returncode == 0 else None
    if found is None:
        why = _last_line(done.stderr) or "no error message"
        raise CommandError(f"{name} cannot be read: {terminal_line(why, _WIDTH)}", returncode=CANNOT_CHECK)
    return found


def _last_line(output: str) -> str:
    """Apps print what they like while they are imported."""
    return (output.strip().splitlines() or [""])[-1]
