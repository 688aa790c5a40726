"""The first view in a browser without a cache: the page, its styles, scripts and icons, compressed.

Not counted is what a page asks for automatically once it stands (`hx-trigger="load"`: facets and tabs of the list, the
related jobs of a failure, the story of a group), nor the headers of answers.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from random import Random

import brotli
import pytest
from django.contrib.staticfiles import finders
from django.utils import timezone

from dashboard.web.static_files import minify
from jobs_admin.models import GroupCounter
from tests.kit.failures import bury
from tests.kit.groups import group

MOST = 40_000  # bytes
_LOADED = re.compile(r'(?:<link rel="(?:stylesheet|icon)"|<script|<use)[^>]* ?(?:href|src)="/static/([^"#]+)')


@pytest.fixture
def pages(watched):
    """A full page of failures that are all different, as their groups are, and as each group's last day was."""
    random, now = Random(1), timezone.now()
    for n in range(50):
        name = f"{random.choice(['shop', 'billing', 'mail'])}.{random.choice(['errors', 'hooks'])}.Error{n:02}"
        message = f"POST /v1/events/{random.randbytes(6).hex()} answered {random.randrange(400, 600)}"
        grouped = group(
            name, message="POST <path> answered <n>", culprit=f"shop/{random.randbytes(3).hex()}.py in send"
        )
        where = {"queue": f"queue-{n % 9}", "tenant": f"tenant-{random.randrange(90)}", "task": f"shop.task_{n % 20}"}
        trace = f'Traceback:\n  File "/app/shop/hooks.py", line {n}, in send\n    raise {name}()\n{name}: {message}\n'
        hours = [now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=past) for past in range(24)]
        GroupCounter.objects.bulk_create(
            GroupCounter(group=grouped, step=3600, at=at, failed=random.randrange(400)) for at in hours
        )
        (failure,) = bury(trace=trace, error_type=name, message=message, group=grouped, **where)
    return {
        "list": "/failures/",
        "groups": "/groups/",
        "group": f"/groups/{grouped.fingerprint}/",
        "failure": f"/failures/{failure.pk}/",
        "overview": "/",
    }


def test_each_group_of_the_list_has_a_small_picture_of_its_own(ann, pages):
    lines = re.findall(r'<(?:polyline|path)[^>]* (?:points|d)="([^"]+)"', ann.get(pages["groups"]).content.decode())
    assert len(set(lines)) >= 50, lines[:3]


def minified_text(file: str) -> str:
    return minify(file, Path(finders.find(file)).read_text())


@pytest.mark.parametrize("name", ["list", "groups", "group", "failure", "overview"])
def test_a_first_view_is_at_most_40_kilobytes(ann, pages, name):
    # Each response has up to 100 bytes of random padding: the shortest of five has little of it.
    responses = [ann.get(pages[name], headers={"Accept-Encoding": "br"}).content for _ in range(5)]
    document = min(responses, key=len)
    files = set(_LOADED.findall(brotli.decompress(document).decode()))
    assert any(file.endswith("htmx-2.min.js") for file in files) and "redrive/icons/sprite.svg" in files
    sizes = {file: len(brotli.compress(minified_text(file).encode())) for file in files}
    assert len(document) + sum(sizes.values()) <= MOST, sizes | {"document": len(document)}


def test_what_is_cut_away_of_a_script_is_never_part_of_a_text():
    for script in Path("static/redrive/js").glob("*.js"):
        assert not [line for line in script.read_text().splitlines() if line.count("`") % 2], script


def test_what_is_sent_has_no_comment_and_files_of_others_are_sent_as_they_are():
    script = "// why\nconst a = 1; // stays\n\n  const b = `${c ? ` ${d} e` : f}`;\n"
    assert minify("redrive/js/a.js", script) == "const a = 1; // stays\nconst b = `${c ? ` ${d} e` : f}`;"
    assert minify("redrive/css/a.css", "/* why\n */\n.a { b: c; }\n") == ".a{b:c}"
    assert minify("redrive/vendor/a.js", "// theirs\n") == "// theirs\n"
