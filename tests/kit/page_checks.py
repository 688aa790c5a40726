"""Checks of a page: its size, its contrast and its names in both themes, and what the browser complains of."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest

from dashboard.web.rights import Address, addresses
from tests.kit.browser import NEEDS_PLAYWRIGHT, WITHIN_S, complaints_of
from tests.kit.endurance import IS_ON

# Only `--strict` installs playwright. Without it the modules that import this one are skipped, for this reason.
expect = pytest.importorskip("playwright.sync_api", reason=NEEDS_PLAYWRIGHT).expect

SIZES = {"wide": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}
# The demo's refunds that its release broke: of one group, which is likely to fail again whatever the shop does at the moment.
PERMANENT = "state:dead+task:shop.billing.refund+error:TypeError"
# Rules of the levels that count: WCAG 2.2 A and AA.
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}
# What another theme can change; nothing else of a page depends on it.
OF_THEME = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
# Of a long list its first rows: the others are of the same making.
SEEN = {"include": [["html"]], "exclude": [["[data-rows] > :nth-child(n+9)"], ["tbody > :nth-child(n+9)"]]}
# No pages: a file that is kept, a text, an answer to a program, a way out. The login is looked at by whom it is for.
NO_PAGE = {
    "failure-export",
    "failure-text",
    "incident-text",
    "healthz",
    "readyz",
    "security-txt",
    "logout",
    "login",
    "login-code",
    "login-set-up",
    "second-factor",
    "sign-on",
    "sign-on-callback",
}
# Lines that are put into lists and menus of other pages, and are looked at there: nothing leads to them.
LINES = {"palette", "failure-complete", "failure-newer", "view-tabs", "view-count", "undo", "silence-fitting"}


def pages() -> list[Address]:
    """Every address of the URLconf that a browser can open and that shows a page."""
    return [a for a in addresses() if a.kind == "page" and "GET" in a.methods and a.name not in NO_PAGE | LINES]


def opened(browser, url: str, size: str, **options):
    """A page of the browser that keeps what it complains of."""
    context = browser.new_context(
        base_url=url, viewport=SIZES[size], color_scheme="light", reduced_motion="reduce", **options
    )
    context.set_default_timeout(WITHIN_S * 1000)
    page = context.new_page()
    page.complaints = complaints_of(page)
    return page


def faults(page, name: str) -> list[str]:
    """The faults of the page, in light and in dark, in words."""
    return _faults(page, name, {"light": RULES, "dark": OF_THEME})


def _faults(page, name: str, rules_of: dict[str, dict]) -> list[str]:
    """The faults of the page as large as it is, by the rules of each theme."""
    is_missing = name.startswith("not found")
    found = [f"{name}: console: {fault}" for fault in page.complaints if not (is_missing and "404" in fault)]
    page.complaints.clear()
    over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if over > 0:
        found.append(f"{name}: scrolls sideways by {over} px")
    if headings := page.evaluate("document.querySelectorAll('h1').length") - 1:
        found.append(f"{name}: has {headings + 1} headings of the first level")
    if not page.evaluate("'audit' in window"):
        page.evaluate(_axe())
    for theme, rules in rules_of.items():
        page.emulate_media(color_scheme=theme)
        found += [f"{name}{', dark' * (theme == 'dark')}: {fault}" for fault in _broken(page, rules)]
    page.emulate_media(color_scheme="light")
    return found


# 1280 px at 400 % and 1440 px at 200 %: there only what a width changes is measured.
NARROW = (320, 720)
# A table is named, and what of it is scrolled sideways can be scrolled by keyboard.
_UNFIT = """() => {
  const root = document.documentElement, found = [];
  if (root.scrollWidth > root.clientWidth) found.push(`scrolls sideways by ${root.scrollWidth - root.clientWidth} px`);
  for (const table of document.querySelectorAll("main table")) {
    if (!table.checkVisibility()) continue;
    const box = table.closest(".scroll"), what = `table ${table.className}`;
    const isNamed = (one) => one?.hasAttribute("aria-label") || one?.hasAttribute("aria-labelledby") || one?.caption;
    if (!isNamed(table) && !isNamed(box)) found.push(`${what} has no name`);
    if (box && box.scrollWidth > box.clientWidth + 1 && !(box.tabIndex === 0 && isNamed(box))) found.push(`${what} cannot be scrolled by keyboard`);
  }
  return found;
}"""


# Which theme a page has at which size, by its name. Parts that only one size shows are on many pages, and so are seen in both.
_CROSSED = ({"wide": "light", "phone": "dark"}, {"wide": "dark", "phone": "light"})


def faults_at_sizes(page, name: str) -> list[str]:
    """The faults of the page at each size, each in one theme, and with `--endurance` in both. It is loaded once."""
    before, found, themes = page.viewport_size, [], _CROSSED[crc32(name.encode()) % 2]
    for size, viewport in SIZES.items():
        page.set_viewport_size(viewport)
        page.evaluate("scrollTo(0, 0)")  # an input half under the bar at the bottom counts as too small
        found += faults(page, f"{name} {size}") if IS_ON else _faults(page, f"{name} {size}", {themes[size]: RULES})
    for width in NARROW:
        page.set_viewport_size({"width": width, "height": 640})
        found += [f"{name} {width} px: {fault}" for fault in page.evaluate(_UNFIT)]
    page.set_viewport_size(before)
    return found


# Appearances of texts whose contrast was measured and is enough, in any theme and at any size: see audit.js.
_MEASURED: set[str] = set()


def _broken(page, rules: dict) -> list[str]:
    answer = page.evaluate("([scope, rules, measured]) => audit(scope, rules, measured)", [SEEN, rules, [*_MEASURED]])
    _MEASURED.update(answer["measured"])
    return answer["broken"]


@cache
def _axe() -> str:
    import axe_playwright_python

    scripts = (Path(axe_playwright_python.__file__).parent / "axe.min.js", Path(__file__).parent / "audit.js")
    return ";\n".join([*(script.read_text() for script in scripts), "null"])


def first_link(page, where: str, pattern: str) -> re.Match[str]:
    """The first link on the page at `where` whose address fits."""
    page.goto(where)
    links = page.eval_on_selector_all("main a[href]", "all => all.map(a => a.getAttribute('href'))")
    return next(found for link in links if (found := re.search(pattern, link)))


# 1440 px at 100 % and 200 %, a tablet, a phone.
BAR_SIZES = ((1440, 900), (720, 450), (1024, 768), (390, 844))
_UNDER_THE_BAR = """() => {
  const bar = document.querySelector('.save-bar');
  const box = bar.getBoundingClientRect();
  const nav = [...document.querySelectorAll('.rail')].find((one) => getComputedStyle(one).position === 'fixed');
  const floor = nav ? nav.getBoundingClientRect().top : innerHeight;
  const wrong = [];
  let count = 0;
  if (box.top < innerHeight / 2 || box.bottom > floor + 1) wrong.push(`the bar: ${box.top} to ${box.bottom}`);
  for (const field of document.querySelectorAll('main form :is(input, select, textarea):not([type=hidden])')) {
    if (!field.checkVisibility()) continue;
    field.focus();
    if (document.activeElement !== field) continue;
    count++;
    const at = field.getBoundingClientRect();
    if (at.bottom > bar.getBoundingClientRect().top + 1) wrong.push(`${field.name}: ${at.bottom}`);
  }
  scrollTo(0, 0);
  return count ? wrong : ['no field'];
}"""


def fields_under_the_bar(page) -> dict[str, list[str]]:
    """Return, by size of the page, where the bar is out of view and which fields it covers while they have the focus."""
    before, found = page.viewport_size, {}
    for width, height in BAR_SIZES:
        page.set_viewport_size({"width": width, "height": height})
        if wrong := page.evaluate(_UNDER_THE_BAR):
            found[f"{width} x {height}"] = wrong
    page.set_viewport_size(before)
    return found
