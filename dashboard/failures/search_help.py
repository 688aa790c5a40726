"""The search language on one page: what one writes, what it finds, and the search itself to follow."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.web.links import list_url
from jobs_admin.core import query as language


@dataclass(frozen=True, slots=True)
class Example:
    text: str
    finds: str
    url: str
    reading: str  # how the language itself reads it: the page cannot say something else than the search does


@dataclass(frozen=True, slots=True)
class Chapter:
    title: str
    intro: str
    examples: list[Example]


_CHAPTERS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Words",
        "Any text is a valid search, such as an error pasted from a log. Words match completely; names are split into "
        "words at capitals and punctuation. Case and punctuation are otherwise ignored.",
        (
            ("timeout", "type or message contains the word: timeout=5, ReadTimeoutError; not found by time"),
            ("timeo*", "a word with this prefix"),
            ("connection refused", "both words, anywhere"),
            ('"connection refused"', "the exact phrase"),
            ('-"connection refused"', "without the phrase"),
            ("Read*Error", "a word that starts with read and matches read…error"),
            ("*imeout", "the text anywhere, also inside a word; under 3 characters in the latest 5,000 failures"),
            (
                "[Errno -2] Name or service not known",
                "the error itself: brackets separate words, and the minus is part of the number",
            ),
        ),
    ),
    (
        "Location",
        "Complete names, case-sensitive. Comma: any of. Star: wildcard. Leading minus: not.",
        (
            ("queue:webhooks", "one queue; also task: source: worker: host: tenant: release:"),
            ("queue:emails,webhooks", "either queue"),
            ("task:shop.*", "all tasks with this prefix"),
            ("-queue:emails", "all other queues"),
            ('tenant:"A, B"', "quotes around spaces and commas"),
        ),
    ),
    (
        "Error",
        "",
        (
            ("error:Timeout", "words of type or message"),
            ("error:=KeyError", "exactly this type"),
            ('message:"refused"', "words of the message only"),
            ("trace:billing.py", "a word of the traceback"),
            ("kind:hard_limit", "how the latest attempt ended: exception, retry, lost, hard_limit …"),
        ),
    ),
    (
        "Arguments",
        "The first 32 values of a job are searched. Hidden secrets cannot be found.",
        (
            ("args.customer.id:42", "a positional argument, by its path"),
            ("kwargs.email:ann@*", "a keyword argument"),
            ("kwargs.coupon:*", "any value: the argument is present"),
        ),
    ),
    (
        "State and numbers",
        "Without state: open failures (dead, retrying, replaying and quarantined).",
        (
            ("state:discarded", "retrying dead quarantined replaying recovered discarded gone"),
            ("state:any", "every state"),
            ("is:dead", "same as state:dead; also is:failed, is:waiting, is:resolved"),
            ("attempts:>=3", "3  >3  >=3  <3  <=3  2..5; also priority:"),
            ("priority:high", "critical, high, medium or low, mapped to the queue system's numbers"),
            ("replay:12", "the jobs of a replay"),
            ("policy:slow@3", "attempts decided by a policy, or by one version"),
        ),
    ),
    (
        "Time",
        "Time of the last failed attempt, in UTC. In a saved view `2h` stays relative; a replay or discard fixes it.",
        (
            ("age:<2h", "less than two hours ago; units s m h d w"),
            ("age:>90m", "more than 90 minutes ago"),
            ("since:2026-11-20T10:00Z", "from this time"),
            ("since:2d until:1d", "between one and two days ago"),
        ),
    ),
    (
        "Combinations",
        "A space means AND. `OR` joins only the terms next to it. Use parentheses around qualifiers only.",
        (
            ("queue:webhooks error:Timeout OR error:Refused", "this queue, and either error"),
            ("(queue:emails state:dead) OR (queue:webhooks attempts:>3)", "either of two"),
        ),
    ),
)


def chapters() -> list[Chapter]:
    return [
        Chapter(
            title,
            intro,
            [Example(text, finds, list_url(text), language.reading(language.parse(text))) for text, finds in of],
        )
        for title, intro, of in _CHAPTERS
    ]
