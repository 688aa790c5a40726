"""Words of rendered pages: terms of the field, and sentences that name what they are about."""

from __future__ import annotations

import html
import re

from tests.kit.matrix import Asker, body_of, come, list_addresses, none_of

PHRASES = re.compile(
    r"\b(told|tells?|judge[ds]?|living|lies|c[ao]mes? home|beside|meanwhile|surely|anew|perhaps|nobody|somebody|mend(?:s|ed)?"
    r"|waits? since|ran well|runs? well|of it|\d a (?:second|minute))\b",
    re.IGNORECASE,
)
HEADINGS = re.compile(r"<h[1-6][^>]*>(.*?)</h[1-6]>", re.DOTALL)
OPENINGS = re.compile(r"(What|Who|Whom|How|Why|When it|Where it|Some of|It|This)\b(?! (?:page|desk)\b)")


# A value of the API, and the errors of the desk's own rows.
STORED = re.compile(r"cannot tell|(?:zircon|plain) told")


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
