"""`failure show | why | compare NUMBER`: one failure from a terminal. `failures` searches."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from dashboard.failures import api as calls
from dashboard.failures import api_shapes
from dashboard.web.api.shapes import render_json
from dashboard.web.figures import duration
from jobs_admin import failures
from jobs_admin.core.refused import NotFound
from jobs_admin.core.text import representable, terminal_line
from jobs_admin.installation import COMMAND
from jobs_admin.management import terminal
from jobs_admin.management.terminal import ActCommand, moment, parse_number
from jobs_admin.models import Failure

_WIDTH = 500


class Command(ActCommand):
    help = "One failure: show its runs and arguments, why it is in its state and group, and compare two attempts."

    def run_from_argv(self, argv: list[str]) -> None:
        if argv[2:] and argv[2].isdigit():
            self.stderr.write(f"Name what to do: `{COMMAND} failure show {argv[2]}`, `why` or `compare`.")
            sys.exit(2)
        super().run_from_argv(argv)

    def add_acts(self, acts: Any) -> None:
        show = acts.add_parser("show", help="Runs with their attempts, redacted arguments, traceback.")
        show.set_defaults(run=self._show)
        why = acts.add_parser(
            "why", help="Decision after each attempt, advice, and the parts of the error that determine the group."
        )
        why.set_defaults(run=self._why)
        compare: ArgumentParser = acts.add_parser(
            "compare", help="Compare the latest failed attempt with the last of the previous run, or two others."
        )
        for side in ("left", "right"):
            compare.add_argument(
                f"--{side}", default="", type=representable, metavar="RUN.ATTEMPT", help="Such as 2.1."
            )
        compare.set_defaults(run=self._compare)
        for one in (show, why, compare):
            one.add_argument("failure", type=parse_number, help="Number of the failure, as printed by `failures`.")
            one.add_argument("--json", action="store_true", help="Print one JSON object, as in the API.")

    def _show(self, *, failure: int, json: bool, **_: Any) -> None:
        found = calls.failure_answer(terminal.viewer(), _find(failure))
        if json:
            self.stdout.write(render_json(api_shapes.FailureDetail, found))
            return
        self._write(f"{found['id']} {found['state']}  {found['error_type'] or found['kind']}: {found['message']}")
        limit = f" of {found['max_attempts']:,}" if found["max_attempts"] else ""
        urls = {link["name"]: link["url"] for link in found["links"]}
        facts = [
            ("task", found["task"]),
            ("queue", f"{found['source']}/{found['queue']}"),
            ("job", found["job_id"]),
            ("attempts", f"{found['attempts']:,}{limit}"),
            ("next attempt", f"{moment(found['due_at'])} UTC" if found["due_at"] else ""),
            ("failed", f"{moment(found['first_failed_at'])} to {moment(found['failed_at'])} UTC"),
            ("reason", found["reason"]),
            ("tenant", found["tenant"]),
            ("release", found["release"]),
            ("worker", found["worker"]),
            ("trace", urls.get("Trace") or found["trace_id"] or ""),
            ("logs", urls.get("Logs", "")),
            ("sentry", urls.get("Sentry") or found["event_id"] or ""),
            ("group", found["fingerprint"] or ""),
            ("args", str(found["args"] or "")),
            ("kwargs", str(found["kwargs"] or "")),
            ("page", found["url"]),
        ]
        self._write_facts(facts)
        for run in found["runs"]:
            sent = f", sent by {run['by']} in replay #{run['replay']}" if run["replay"] else ""
            edited = " with edited arguments" if run["is_edited"] else ""
            outcome = f": {run['outcome']}" if run["outcome"] else ""
            self._write(f"Run {run['run']}{sent}{edited}{outcome}")
            for one in run["attempts"]:
                self._write(f"  {_attempt_line(one)}: {one['error_type']} {one['message']}")
        if found["traceback"]:
            self._write("Traceback")
            for line in found["traceback"].splitlines():
                self._write(f"  {line}")

    def _why(self, *, failure: int, json: bool, **_: Any) -> None:
        found = calls.reasons_answer(terminal.viewer(), _find(failure))
        if json:
            self.stdout.write(render_json(api_shapes.FailureReasons, found))
            return
        limit = f" of {found['max_attempts']:,}" if found["max_attempts"] else ""
        plural = "" if (found["max_attempts"] or found["attempts"]) == 1 else "s"
        due = f"; next attempt {moment(found['due_at'])} UTC" if found["due_at"] else ""
        self._write(f"{found['id']} {found['state']} after {found['attempts']:,}{limit} attempt{plural}{due}")
        if found["reason"]:
            self._write(f"  {found['reason']}")
        for one in found["advice"]:
            self._write(f"  {one['message']}")
            self._write(f"  → {one['fix']}")
        if waits := found["waits_in"]:
            self._write(f"  Waiting in {waits['state']} replay #{waits['replay']}: {waits['reason']}")
        if found["decisions"]:
            self._write("Decisions")
        for one in found["decisions"]:
            delay = f"; next after {duration(one['delay_s'])}" if one["delay_s"] is not None else ""
            why = f": {one['reason']}" if one["reason"] else ""
            self._write(f"  run {one['run']}, {_attempt_line(one)}{delay}{why}")
        for one in found["crashes"]:
            self._write(f"  crash {moment(one['seen_at'])} {one['how']} {one['worker']}: {one['said']}")
        self._write_grouping(found["grouping"])

    def _write_grouping(self, grouping: dict[str, Any]) -> None:
        self._write("Group")
        counted = [f"{one['place']}, line {one['line']}" for one in grouping["frames"] if one["is_counted"]]
        self._write_facts(
            [
                ("type", grouping["error_type"]),
                ("task", grouping["task"]),
                ("message", grouping["message"]),
                *[("cause", f"{kind}: {text}") for kind, text in grouping["causes"]],
                *[("frame", place) for place in counted],
                *[("rule", rule) for rule in grouping["rules"]],
            ]
        )

    def _compare(self, *, failure: int, left: str, right: str, json: bool, **_: Any) -> None:
        found = calls.comparison_answer(_find(failure), left, right)
        if json:
            self.stdout.write(render_json(api_shapes.Comparison, found))
            return
        for sign, one in (("-", found["left"]), ("+", found["right"])):
            self._write(f"{sign} run {one['run']}, {_attempt_line(one)} on {one['worker'] or '-'}: {one['error_type']}")
        if found["is_one_group"] is not None:
            self._write("Same fingerprint" if found["is_one_group"] else "Different fingerprints")
        for one in found["group_parts"]:
            self._write(f"  ~ {one['part']}: {one['left'] or '-'} → {one['right'] or '-'}")
        for section in found["sections"]:
            state = section["why_not"] or ("no differences" if section["is_same"] else "")
            self._write(f"{section['field']}{f': {state}' if state else ''}")
            for row in section["rows"]:
                for line in _row_lines(row):
                    self._write(line)

    def _write_facts(self, facts: list[tuple[str, str]]) -> None:
        for name, value in facts:
            if value:
                self._write(f"  {name:<14}{value}")

    def _write(self, line: str) -> None:
        self.stdout.write(terminal_line(line, _WIDTH))


def _find(number: int) -> Failure:
    try:
        return failures.get(terminal.viewer(), number)
    except Failure.DoesNotExist:
        raise NotFound(f"Failure {number} not found.") from None


def _attempt_line(one: dict[str, Any]) -> str:
    policy = f" by {one['policy']}" if one["policy"] else ""
    return f"attempt {one['attempt']} {moment(one['ended_at'])} {one['kind']}{policy}"


def _row_lines(row: dict[str, Any]) -> list[str]:
    """Return a row of a comparison as lines: the side before, then the side after; one line if they are the same."""
    indent = "  " * min(row["level"], 8)
    if row["change"] == "gap":
        return [f"    … {row['count']:,} equal line{'' if row['count'] == 1 else 's'}"]
    if row["change"] in ("same", "open"):
        return [f"    {indent}{row['left'] if row['left'] is not None else row['right']}"]
    sides = (("-", row["left"]), ("+", row["right"]))
    return [f"  {sign} {indent}{text}" for sign, text in sides if text is not None]
