"""The grouping of a failure on its page: the parts that counted, and those that did not and why."""

from __future__ import annotations

import re
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from dashboard.web.text import visible
from dashboard.web.tracebacks import highlighted
from jobs_admin.core.fingerprint import SPLITS, Rules, explain
from jobs_admin.models import Failure

MOST_FRAMES = 100
MOST_REPLACED = 30


@dataclass(frozen=True, slots=True)
class WhyFrame:
    place: str  # what a rule may ignore
    line: int
    code: SafeString
    counts: bool
    why_not: str  # in words
    may_ignore: bool


@dataclass(frozen=True, slots=True)
class Why:
    type: str
    is_wrapped: bool
    causes: tuple[tuple[str, str], ...]
    frames: list[WhyFrame]
    left_out: int  # frames that are not listed: the outermost
    message: SafeString  # what varies is marked
    replaced: list[tuple[str, str]]  # (what it is taken for, the text)
    task: str  # "" where it does not count
    acted: tuple[str, ...]  # rules that made a difference to this failure, in words


_WHY_NOT = {
    "library": "library",
    "rule": "ignored by a rule",
    "passed": "only calls the next frame",
    "": "repeated, or part of an earlier error",
}


def why(failure: Failure, rules: Rules) -> Why:
    trace = failure.traceback.text if failure.traceback else ""
    facts = {name: getattr(failure, name) for name in SPLITS if name != "message"}
    explained = explain(failure.error_type, failure.message, trace, rules, facts)
    frames = [
        WhyFrame(
            one.place,
            one.frame.line,
            highlighted(one.frame.code) if one.counts else SafeString(""),
            one.counts,
            "" if one.counts else _WHY_NOT.get(one.why_not, one.why_not),
            one.counts and one.frame.is_application,
        )
        for one in explained.frames[-MOST_FRAMES:]
    ]
    left_out = len(explained.frames) - len(frames)
    replaced = list(explained.replaced[:MOST_REPLACED])
    return Why(
        explained.type,
        explained.is_wrapped,
        explained.causes,
        frames,
        left_out,
        marked(explained.message),
        replaced,
        explained.task,
        explained.acted,
    )


_PLACE = re.compile(r"(<[a-z]{2,10}>)")


def marked(message: str) -> SafeString:
    """Return the message as it is grouped, with the variable parts marked."""
    pieces = _PLACE.split(message)
    return format_html_join(
        "",
        "{}",
        (
            (format_html('<span class="varies">{}</span>', piece) if n % 2 else visible(piece),)
            for n, piece in enumerate(pieces)
        ),
    )
