"""Rules of grouping as their pages show them."""

from __future__ import annotations

from typing import TypedDict

from django.urls import reverse

from dashboard.web import links
from dashboard.web.figures import ago, number, percent
from dashboard.web.text import visible
from jobs_admin.groups.group_rules import Preview, Row

_TITLES = {"merge": "Merge groups", "split": "Split group", "ignore": "Ignore frame"}


MOST_MERGED = 5  # that a line names


class RuleLine(TypedDict):
    sentence: str
    group_url: str
    merged: list[str]  # what went in; the first few
    more: str
    note: str
    author: str
    made: str
    progress: str  # in words
    is_withdrawn: bool
    withdraw_url: str  # empty where the viewer may not


class BecomingLine(TypedDict):
    title: str
    place: str
    becomes_place: str
    becomes_holds: str
    url: str
    becomes: str
    becomes_url: str  # empty for a group that is not there yet
    failures: str
    sample: list[tuple[str, str]]  # (number, address) of some of them


def title(kind: str, frame: str) -> str:
    """Return the effect of the rule, for its page and its button."""
    return f"Ignore frame {frame}" if kind == "ignore" and frame else _TITLES.get(kind, "Grouping rule")


def lines(rows: list[Row], may_act: bool) -> list[RuleLine]:
    return [_line(row, may_act) for row in rows]


def _line(row: Row, may_act: bool) -> RuleLine:
    rule = row.rule
    if row.progress < 1:
        progress = f"{'withdrawing' if rule.is_withdrawn else 'applying'}: {percent(row.progress)}"
    else:
        progress = "withdrawn" if rule.is_withdrawn else "in force"
    return RuleLine(
        sentence=visible(row.summary),
        group_url=links.group_page(rule.group.fingerprint) if rule.group else "",
        merged=[visible(one) for one in row.merged[:MOST_MERGED]],
        more=number(len(row.merged) - MOST_MERGED) if len(row.merged) > MOST_MERGED else "",
        note=visible(rule.note),
        author=visible(rule.author),
        made=ago(rule.created_at),
        progress=progress,
        is_withdrawn=rule.is_withdrawn,
        withdraw_url=reverse("redrive:group-rule-withdraw", args=[rule.pk]) if may_act and row.may_withdraw else "",
    )


def becoming(found: Preview) -> list[BecomingLine]:
    return [
        BecomingLine(
            title=visible(row.title),
            place=visible(row.place),
            becomes_place=visible(row.becomes_place),
            becomes_holds="" if row.becomes_holds is None else f"currently {number(row.becomes_holds)}",
            url=links.group_page(row.fingerprint),
            becomes=visible(row.becomes_title),
            becomes_url="" if row.is_new else links.group_page(row.becomes),
            failures=number(row.failures),
            sample=[(str(pk), reverse("redrive:failure-detail", args=[pk])) for pk in row.sample],
        )
        for row in found.rows
    ]
