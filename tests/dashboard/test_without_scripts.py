"""Pages whose browser runs no scripts: each form has an address and a button, each link a page, each act an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from tests.kit.matrix import Asker, body_of, come, list_addresses, none_of, undone

# Parts that come or refresh of their own, and previews while one types: without scripts the page has them as they are.
PASSIVE = ("load", "redrive:tick", "input", "change", "intersect", "revealed")
# No forms: a check of one while it is filled in, which only scripts ask for and saving repeats; and what Slack sends.
NO_FORMS = {"channel-check", "slack"}
VOID = {"input", "br", "hr", "img", "link", "meta", "use", "path", "rect", "line", "circle", "source", "wbr", "col"}


@dataclass
class Element:
    tag: str
    has: dict[str, str]
    inside: list[Element]
    children: list[str] = field(default_factory=list)

    def within(self, tag: str) -> Element | None:
        return next((one for one in reversed(self.inside) if one.tag == tag), None)

    def __str__(self) -> str:
        named = " ".join(f'{name}="{self.has[name]}"' for name in ("id", "name", "class", "href") if self.has.get(name))
        return f"<{self.tag} {named[:120]}>"


class Page(HTMLParser):
    """The elements of a page, each with those around it; what stands in `noscript` counts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, list(self._open))
        if self._open:
            self._open[-1].children.append(tag)
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and any(one.tag == tag for one in self._open):
            if self._open.pop().tag == tag:
                break

    def form_of(self, element: Element) -> Element | None:
        name = element.has.get("form")
        named = (one for one in self.elements if one.tag == "form" and one.has.get("id") == name)
        return next(named, None) if name else element.within("form")

    def faults(self) -> Iterator[str]:
        sending = [one for one in self.elements if one.tag == "button" and one.has.get("type", "submit") == "submit"]
        forms_sent = [id(self.form_of(one)) for one in sending]
        for one in self.elements:
            if one.tag == "form" and one.has.get("method") != "dialog":
                if not one.has.get("action") and one.has.get("method", "get") == "post":
                    yield f"{one} is posted nowhere"
                if "hx-post" in one.has and one.has.get("method") != "post":
                    yield f"{one} is only htmx's"
                is_searched = one.has.get("method", "get") == "get"  # Enter sends the one field
                if id(one) not in forms_sent and not is_searched:
                    yield f"{one} has no button"
            elif one.tag == "a" and "hx-get" in one.has and not one.has.get("href"):
                yield f"{one} leads nowhere"
            elif one.tag == "button" and {"hx-get", "hx-post"} & one.has.keys():
                form = self.form_of(one)
                if not (one.has.get("formaction") or (form and form.has.get("action"))):
                    yield f"{one} is only htmx's"
            elif one.tag not in {"a", "form", "button"} and {"hx-get", "hx-post"} & one.has.keys():
                triggers = [part.split() for part in one.has.get("hx-trigger", "").split(",")]
                is_passive = any(words and words[0] in PASSIVE for words in triggers)
                yield from () if is_passive else [f"{one} needs a click that only htmx hears"]
            if one.tag == "button" and one.has.get("type") == "button" and not _is_hidden(one):
                yield f"{one} does nothing"
            if one.tag == "button" and {"form", "name"} <= one.has.keys() and one.has.get("type") != "submit":
                form = self.form_of(one)
                if form and "hx-post" in form.has and "hx-trigger" not in form.has:
                    yield f"{one} is sent by htmx without its value: it lacks type=submit"
            if one.has.get("tabindex", "0") not in {"0", "-1"}:
                yield f"{one} is out of the order of reading"
            if one.tag == "details" and "menu" in one.has.get("class", "").split() and one.children[:1] != ["summary"]:
                yield f"{one} has no summary"


CSS = (Path(__file__).resolve().parents[2] / "static/redrive/css/parts.css").read_text()
HIDDEN = set(re.findall(r"\[([\w-]+)\]", CSS.partition("@media (scripting: none)")[2].partition("}")[0]))


def _is_hidden(element: Element) -> bool:
    if HIDDEN & element.has.keys():
        return True
    return "hidden" in element.has or any("hidden" in one.has or one.tag == "dialog" for one in element.inside)


def test_forms_links_and_buttons_work_without_scripts(desk):
    root, found = Asker(come("root", staff=True)), set()
    for address in list_addresses("page"):
        if "GET" not in address.methods or address.right == "nobody":
            continue
        answer = root.request("GET", address, desk.shop)
        body = body_of(answer)
        if answer.status_code >= 400:
            found.add(f"{address.name}: {answer.status_code}")
        found |= {f"{address.name}: {fault}" for fault in Page(body).faults()}
    none_of(sorted(found))


def test_a_plain_post_is_answered_with_a_page_or_a_redirect(desk):
    root, found = Asker(come("root", staff=True)), []
    for address in list_addresses("page"):
        if "POST" not in address.methods or address.name in NO_FORMS:
            continue
        with undone():
            answer = root.request("POST", address, desk.shop)
        is_page = answer.headers.get("Content-Type", "").startswith("text/html") and "<html" in body_of(answer)
        is_file = "attachment" in answer.headers.get("Content-Disposition", "")
        is_right = answer.status_code < 400 or answer.status_code in {409, 422}
        if (
            not (is_right and (answer.status_code in {302, 303} or is_page or is_file))
            or "HX-Redirect" in answer.headers
        ):
            found.append(f"{address.name}: {answer.status_code} {body_of(answer)[:80]!r}")
    none_of(found)


def test_what_needs_scripts_is_noticed():
    page = Page(
        '<form hx-post="/x"><input></form><form method="post" action="/y"></form><a hx-get="/z">z</a><div hx-get="/u"></div>'
        '<button type="button">b</button><p tabindex="3"></p><details class="menu"><p></p></details><button hx-post="/v">'
    )
    assert len(list(page.faults())) == 8
    apart = '<form id="f" hx-post="/x" method="post" action="/x"></form><button form="f" name="step" value="1"{}>Go</button>'
    assert len(list(Page(apart.format("")).faults())) == 1 and not list(Page(apart.format(' type="submit"')).faults())
    assert not list(Page('<form method="post" action="/y" id="f"></form><button form="f">Save</button>').faults())
