"""Screenshots of every page of a running desk: light and dark, 1440 and 390 px wide.

    python bench/screens.py FOLDER [--url http://127.0.0.1:8000] [--user admin] [--only overview,groups]

The password comes from REDRIVE_ADMIN_PASSWORD. Needs playwright and Chromium (CHROMIUM, else /usr/bin/chromium).
Prints one line per page: whether it scrolls sideways, and what the console said.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

PAGES = {
    "overview": "/",
    "groups": "/groups/",
    "groups-by-queue": "/groups/?by=queue",
    "groups-by-tenant": "/groups/?by=tenant",
    "groups-by-release": "/groups/?by=release",
    "rules": "/groups/rules/",
    "failures": "/failures/",
    "failures-found": "/failures/?q=queue%3Awebhooks+timeout",
    "failures-none": "/failures/?q=nothing+is+called+this",
    "search-help": "/failures/help/",
    "views": "/views/",
    "replays": "/replays/",
    "replay-new": "/replays/new/?q=queue%3Awebhooks+state%3Adead",
    "policies": "/policies/",
    "policy-new": "/policies/new/",
    "policy-edited": "/policies/webhooks/",  # the demo's
    "lint": "/policies/lint/",
    "quarantine": "/quarantine/",
    "queues": "/queues/",
    "audit": "/audit/",
    "not-found": "/groups/v2-nobody/",
    "demo": "/demo/",
}
# Found on the pages: the first link there whose address fits.
FIRST = {
    "group": ("/groups/", r"^/groups/v[0-9]-[0-9a-f]+/$"),
    "failure": ("/failures/", r"^/failures/\d+/$"),
    "replay": ("/replays/", r"^/replays/\d+/$"),
    "versions": ("/policies/", r"^/policies/[a-z0-9._-]+/versions/$"),
}
# What is typed there, by the labels of its fields, before the picture is taken: it stands beside what is in force.
TYPED = {"policy-edited": {"First delay": "10 s", "Max attempts": "9"}}
WIDTHS = (1440, 390)
THEMES = ("light", "dark")


def addresses(page: Page, url: str, only: list[str]) -> dict[str, str]:
    found = {name: path for name, path in PAGES.items() if not only or name in only}
    for name, (where, pattern) in FIRST.items():
        if only and name not in only:
            continue
        page.goto(url + where)
        hrefs = page.eval_on_selector_all("main a[href]", "links => links.map(a => a.getAttribute('href'))")
        path = next((href for href in hrefs if re.match(pattern, href)), None)
        if path:
            found[name] = path
    return found


def log_in(browser: Browser, url: str, user: str, **options: object) -> Page:
    page = browser.new_context(**options).new_page()
    page.goto(f"{url}/login/")
    page.fill("#id_username", user)
    page.fill("#id_password", os.environ["REDRIVE_ADMIN_PASSWORD"])
    page.click("button[type=submit]")
    page.wait_for_url(f"{url}/")
    return page


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--url", default="http://127.0.0.1:8000")
    arguments.add_argument("--user", default="admin")
    arguments.add_argument("--height", type=int, help="so much of each page from its top; else all of it")
    arguments.add_argument("--only", default="", help="names of pages, with commas")
    given = arguments.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    faults = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"]
        )
        for theme in THEMES:
            for width in WIDTHS:
                size = {"width": width, "height": 900 if width > 400 else 844}
                page = log_in(browser, given.url, given.user, color_scheme=theme, viewport=size)
                messages: list[str] = []
                page.on(
                    "console", lambda message, messages=messages: messages.append(f"{message.type}: {message.text}")
                )
                page.on("pageerror", lambda error, messages=messages: messages.append(f"error: {error}"))
                for name, path in addresses(page, given.url, [n for n in given.only.split(",") if n]).items():
                    messages.clear()
                    page.goto(given.url + path, wait_until="load")
                    for label, text in TYPED.get(name, {}).items():
                        page.get_by_label(label).fill(text)
                        page.wait_for_timeout(2_000)  # drawn before the next is typed, which would cut it short
                    page.wait_for_timeout(150)
                    clip = {"x": 0, "y": 0, "width": width, "height": given.height} if given.height else None
                    page.screenshot(path=given.folder / f"{name}-{theme}-{width}.png", full_page=True, clip=clip)
                    over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    # A page that is not there says so in the console: that is the page we asked for.
                    unexpected = [line for line in messages if not (name == "not-found" and "404" in line)]
                    faults += bool(over > 0 or unexpected)
                    fit = f"scrolls sideways by {over}" if over > 0 else "fits"
                    print(f"{name} {theme} {width}: {fit}", *unexpected)
        browser.close()
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
