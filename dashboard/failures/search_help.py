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
        "Every text is a valid search. Paste an error from a log: it finds itself. Words are found whole, and names are cut "
        "into words where their capitals and punctuation say so; neither counts otherwise.",
        (
            ("timeout", "type or message has that word: timeout=5, ReadTimeoutError; time alone would not find it"),
            ("timeo*", "a word that begins so"),
            ("connection refused", "both words, anywhere"),
            ('"connection refused"', "both, in this order, next to each other"),
            ('-"connection refused"', "without these"),
            ("Read*Error", "a word that begins with read, and text that fits read…error"),
            ("*imeout", "that text anywhere, also inside a word, among the newest 5,000"),
            (
                "[Errno -2] Name or service not known",
                "itself: brackets only part words, and the minus belongs to the number",
            ),
        ),
    ),
    (
        "Where it failed",
        "The whole name, with regard to case. A comma means any of, a star anything, a minus before it not.",
        (
            ("queue:webhooks", "one queue; so too task: source: worker: host: tenant: release:"),
            ("queue:emails,webhooks", "either queue"),
            ("task:shop.*", "every task that begins so"),
            ("-queue:emails", "every queue but this"),
            ('tenant:"A, B"', "quotes around blanks and commas"),
        ),
    ),
    (
        "What broke",
        "",
        (
            ("error:Timeout", "words of type or message"),
            ("error:=KeyError", "this type and nothing else"),
            ('message:"refused"', "words of the message alone"),
            ("trace:billing.py", "a word of the stack"),
            ("kind:hard_limit", "how the latest attempt ended: exception, retry, lost, hard_limit …"),
        ),
    ),
    (
        "What it was given",
        "The first 32 values of a job are searched. What was hidden as a secret cannot be found.",
        (
            ("args.customer.id:42", "a positional argument, by its path"),
            ("kwargs.email:ann@*", "a keyword argument"),
            ("kwargs.coupon:*", "any value: the argument is there"),
        ),
    ),
    (
        "State and number",
        "Without state: the scope is what waits for somebody: dead, retrying, replaying and quarantined.",
        (
            ("state:discarded", "retrying dead quarantined replaying recovered discarded gone"),
            ("state:any", "every state"),
            ("is:dead", "the same as state:dead; so too is:failed, is:waiting, is:resolved"),
            ("attempts:>=3", "3  >3  >=3  <3  <=3  2..5; so too priority:"),
            ("priority:high", "critical, high, medium or low, whatever numbers the queue system has for them"),
            ("replay:12", "the jobs of a replay"),
            ("policy:slow@3", "a policy, or one version of it, decided an attempt"),
        ),
    ),
    (
        "Time",
        "When its last attempt failed, in UTC. A saved view keeps `2h` as it is; a replay or a discard pins it.",
        (
            ("age:<2h", "less than two hours ago: s m h d w"),
            ("age:>90m", "longer ago"),
            ("since:2026-11-20T10:00Z", "from that moment on"),
            ("since:2d until:1d", "between two and one days ago"),
        ),
    ),
    (
        "Together",
        "A space means and. `OR` binds closer: it joins only the terms on its two sides. Parentheses go around qualifiers only.",
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
