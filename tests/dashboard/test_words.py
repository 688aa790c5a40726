"""Words of rendered pages, commands, the API, metrics and lint: terms of the field, and sentences that name what they are about."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

from dashboard.setup.command_line import OURS
from jobs_admin.core import lint
from tests.kit.matrix import Asker, body_of, come, list_addresses, none_of

PHRASES = re.compile(
    r"\b(told|tells?|judge[ds]?|living|lies|c[ao]mes? home|beside|meanwhile|surely|anew|perhaps|nobody|somebody|mend(?:s|ed)?"
    r"|waits? since|ran well|runs? well|of it|(?:\d|jobs|attempts|failures|retries|requests|starts) a (?:second|minute)"
    r"|looked at|the newest|put back|quarter of an hour|our (?:own|guard)|look (?:at|whether|again)|see that|without a word"
    r"|thrown? away|taken back|may be taken out|may be given again|if left out|(?:is|are) no (?:number|name|list|text|length|size)"
    r"|left out: \d|means nothing|keeps? \d+ reports)\b",
    re.IGNORECASE,
)
HEADINGS = re.compile(r"<h[1-6][^>]*>(.*?)</h[1-6]>", re.DOTALL)
OPENINGS = re.compile(r"(What|Who|Whom|How|Why|When it|Where it|Some of|It|This)\b(?! (?:page|desk)\b)")


# A value of the API, the errors of the desk's own rows, and the steps of `watch`.
STORED = re.compile(r"cannot tell|(?:zircon|plain) told|known: ingest[a-z, ]+")


def text_of(body: str) -> str:
    shown = re.sub(r"<(script|style|template)\b.*?</\1>", " ", body, flags=re.DOTALL)
    return STORED.sub("", " ".join(html.unescape(re.sub(r"<[^>]+>", " ", shown)).split()))


def test_pages_use_the_words_of_the_field(desk):
    root, found = Asker(come("root", staff=True)), []
    for address in list_addresses("page"):
        if "GET" not in address.methods or address.right == "nobody":
            continue
        body = body_of(root.request("GET", address, desk.shop))
        if "<html" not in body and "<div" not in body:
            continue
        found += [f"{address.route}: {text[max(0, one.start() - 50) : one.end() + 30]}"
                  for text in [text_of(body)] for one in PHRASES.finditer(text)]  # fmt: skip
        titles = [text_of(title) for title in HEADINGS.findall(body)]
        found += [f"{address.route}: heading {title!r}" for title in titles if OPENINGS.match(title)]
    none_of(found)


def static_texts() -> Iterator[tuple[str, str]]:
    """Yield (place, text) of the help of commands, the API's document, the metrics and the rules of lint."""
    yield from ((f"manage.py {name}", text) for name, text in OURS.items())
    pinned = Path(__file__).resolve().parents[1] / "pinned"
    for name in ("commands", "openapi"):
        yield from (
            (f"{name}{path}", text) for path, text in described(json.loads((pinned / f"{name}.json").read_text()))
        )
    yield from (("metrics", line) for line in json.loads((pinned / "metrics.json").read_text()) if "# HELP" in line)
    for rule in lint.RULES.values():
        yield from ((f"lint {rule.id}", text) for text in (rule.title, rule.why, rule.fix, rule.source))


def described(part: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each `help`, `summary` and `description` of a document, with its path."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key in ("help", "summary", "description") and isinstance(value, str):
                yield path, STORED.sub("", value)
            else:
                yield from described(value, f"{path}/{key}")
    elif isinstance(part, list):
        for value in part:
            yield from described(value, path)


def test_commands_the_api_metrics_and_lint_use_the_words_of_the_field():
    texts = list(static_texts())
    assert len(texts) > 300
    none_of([f"{place}: «{one[0]}» in {text}" for place, text in texts for one in PHRASES.finditer(text)])


def test_a_phrase_of_stories_is_noticed():
    for text in (
        "3 of 9 jobs looked at in mail, the newest 42",
        "it carries 20 jobs a minute",
        "Look whether it runs.",
    ):
        assert PHRASES.search(text), text
    assert not PHRASES.search("20 jobs/min, a whole number, sampled a minute ago")
