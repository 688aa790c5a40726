"""`policies list | show | publish | put-back | withdraw`: policies from a terminal, and from a repository of them."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError

from jobs_admin import config, policies
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.core.text import terminal_line, whole_number
from jobs_admin.lint import linting
from jobs_admin.management import terminal
from jobs_admin.models import PolicyVersion

NOW = -1  # `--expected-version now`: whatever is in force
_REASON = {"default": "", "metavar": "TEXT", "help": "Why; kept with the version and in the audit."}


def add(acts: Any) -> None:
    """Their places among the acts of `policies`."""
    listing = acts.add_parser("list", help="What is in force, and which workers run it.")
    listing.set_defaults(run=run_list)
    show: ArgumentParser = acts.add_parser("show", help="One policy as JSON, as `publish` takes it.")
    show.add_argument("name")
    show.add_argument(
        "--version", dest="number", type=int, metavar="N", help="A former version; else the one in force."
    )
    show.set_defaults(run=run_show)
    publish = acts.add_parser("publish", help="Put a policy in force: all workers have it within two seconds.")
    publish.add_argument("name")
    publish.add_argument("file", metavar="FILE", help="JSON; - is the standard input.")
    publish.add_argument(
        "--expected-version", type=_expected, metavar="N", help="The version that it takes the place of, or `now`."
    )
    publish.add_argument("--reason", **_REASON)
    publish.set_defaults(run=run_publish)
    put_back = acts.add_parser("put-back", help="What a former version said, in force again.")
    put_back.add_argument("name")
    put_back.add_argument("number", type=int, metavar="VERSION")
    put_back.add_argument("--reason", **_REASON)
    put_back.set_defaults(run=run_put_back)
    withdraw = acts.add_parser("withdraw", help="Take a policy out of force. Any version of it can be put back.")
    withdraw.add_argument("name")
    withdraw.add_argument("--reason", **_REASON)
    withdraw.set_defaults(run=run_withdraw)


def run_list(command: BaseCommand, **_: Any) -> None:
    viewer = terminal.viewer()
    found = policies.published(viewer)
    running = policies.in_force(viewer, found)
    rows = [("POLICY", "MODE", "SOURCE", "QUEUE", "TASK", "EXPIRES", "WORKERS")]
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
        raise CommandError(f"There is no {name}{'' if number is None else f'@{number}'} in force or kept.") from none
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
        command.stdout.write(f"{made} says that already. Nothing was changed.")
    else:
        command.stdout.write(f"{made} is in force{_when()}")


def run_put_back(command: BaseCommand, *, name: str, number: int, reason: str, **_: Any) -> None:
    before = _in_force(name)
    current = before.version if before else None
    made = _run_act(lambda: policies.put_back(terminal.viewer(), name, number, expected_version=current, reason=reason))
    command.stdout.write(f"{name}@{number} is in force again, as {made}{_when()}")


def run_withdraw(command: BaseCommand, *, name: str, reason: str, **_: Any) -> None:
    gone = _run_act(lambda: policies.withdraw(terminal.viewer(), name, reason=reason))
    command.stdout.write(f"{gone} is withdrawn{_when()}")


def _when() -> str:
    """Return when workers know of it, for the end of a sentence."""
    try:
        policies.push()
    except (config.BadConfiguration, redis.RedisError) as error:
        return f". Workers do not know of it yet: {error} `watch` tells them once the store is there."
    return ": workers know of it within two seconds."


def _run_act(act: Any) -> Any:
    try:
        return act()
    except NotFound as none:
        raise CommandError("There is no such policy, or no such version. Nothing was changed.") from none
    except Refused as refused:
        if refused.code == "stale":
            changes = refused.details["difference"]
            lines = [
                terminal_line(f"  {c.field}: was {c.was!r}, is {c.now!r}, yours {c.yours!r}", 200) for c in changes
            ]
            how = "Give --expected-version with the version that you saw."
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
        raise ArgumentTypeError(f"{text!r} is no version: give its number, or now")
    return number
