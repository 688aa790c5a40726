from __future__ import annotations

import re

import pytest
from django.conf import settings as configured

from tests.kit.failures import bury
from tests.kit.groups import group

PAGES = ["/", "/groups/", "/queues/", "/failures/", "/replays/"]


@pytest.mark.parametrize("path", [*PAGES, "/login/", "/nothing/"])
def test_no_page_allows_inline_or_evaluated_code(ann, watched, path):
    policy = ann.get(path)["Content-Security-Policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy and "script-src 'self'" in policy


@pytest.mark.parametrize("path", PAGES)
def test_what_pages_show_is_stored_by_no_cache(ann, watched, path):
    assert "no-store" in ann.get(path)["Cache-Control"]


@pytest.mark.parametrize("path", PAGES)
def test_pages_have_no_inline_script_style_or_handler(ann, watched, path):
    bury(2, group=group())
    page = ann.get(path).content.decode()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)|javascript:", page)


def test_pages_are_not_framed_sniffed_or_shown_to_others(ann, watched):
    answer = ann.get("/")
    assert answer["X-Frame-Options"] == "DENY" and answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin" and answer["Cross-Origin-Opener-Policy"] == "same-origin"


def test_htmx_evaluates_nothing_and_stays_at_home(ann, watched):
    page = ann.get("/").content.decode()
    for message in ('"allowEval":false', '"allowScriptTags":false', '"selfRequestsOnly":true', '"historyCacheSize":0'):
        assert message in page


def test_no_template_trusts_text_or_needs_eval():
    folders = (configured.BASE_DIR / "templates", configured.BASE_DIR / "jobs_admin/templates")
    for path in [path for folder in folders for path in folder.rglob("*.html")]:
        text = path.read_text()
        assert not re.search(r"\|\s*safe\b|\{%\s*autoescape off|hx-on|hx-vals=.js:|hx-trigger=\"[^\"]*\[", text), path


def test_what_a_job_shows_is_never_markup(ann, watched):
    hostile = '"><script>alert(1)</script>\u202e'
    where = group(hostile, hostile, culprit=hostile)
    bury(group=where, queue=hostile, task=hostile, tenant=hostile, message=hostile, host=hostile, trace=hostile)
    for path in ("/", "/groups/", f"/groups/{where.fingerprint}/", "/queues/"):
        page = ann.get(path).content.decode()
        assert "<script>alert" not in page and "\u202e" not in page, path
