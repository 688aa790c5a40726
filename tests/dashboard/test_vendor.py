from __future__ import annotations

import base64
import hashlib
import json

from django.conf import settings
from django.contrib.staticfiles import finders

VENDOR = settings.BASE_DIR / "static" / "redrive" / "vendor"


def test_vendored_files_are_the_published_ones_and_all_are_listed():
    listed = json.loads((VENDOR / "VENDOR.json").read_text())
    found = {}
    for path in VENDOR.rglob("*"):
        if path.is_file() and path.name != "VENDOR.json":
            digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
            found.setdefault(path.parent.name, {})[path.name] = f"sha512-{digest}"
    assert found == {name: entry["files"] for name, entry in listed.items()}


def test_each_vendored_library_has_its_licence_beside_it():
    for name, entry in json.loads((VENDOR / "VENDOR.json").read_text()).items():
        assert entry["licence"] and "LICENSE" in entry["files"], name


def test_htmx_is_version_2():
    path = finders.find("django_htmx/htmx-2.min.js")
    with open(path) as file:
        assert 'version:"2.' in file.read()
