"""Names and shapes that others depend on: each is compared with a file in `tests/pinned/`.

A file is changed on purpose only, in the commit that changes what it holds and that says so in the documentation:
`WRITE_PINS=1 python3 manage.py test tests/test_pinned.py`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from collections import Counter
from dataclasses import fields
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission
from django.core.management import get_commands, load_command_class
from django.db import connection
from django.urls import URLPattern, get_resolver
from pydantic import BaseModel

from dashboard.web import metrics
from dashboard.web.api.base import api
from jobs_admin.alerts import notice_body
from jobs_admin.core import envelope, keys
from jobs_admin.core.pacing import CAREFUL, Controller, Pace, default_for, settled
from jobs_admin.core.policy import presets
from jobs_admin.db import audit
from jobs_admin.models import Alert, AuditEvent, Channel, Notice, Rule
from jobs_admin.models.access import ADMIN, EVERY_SOURCE, Viewer
from jobs_admin.notices import formats, sealing
from jobs_admin.worker.celery import install

ROOT = Path(__file__).resolve().parent.parent
PINNED = ROOT / "tests/pinned"
OURS = ("jobs_admin", "dashboard")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def openapi():
    import_module("dashboard.routes.api")  # the calls are added as it is read
    return api.get_openapi_schema(path_prefix="/api/")


def commands():
    found = {}
    for name, app in sorted(get_commands().items()):
        if app in (*OURS, "demo"):
            parser = load_command_class(app, name).create_parser("manage.py", name)
            found[name] = {"help": parser.description, "arguments": [_argument(one) for one in _arguments(parser)]}
    return found


def _arguments(parser):
    """All arguments of a command but those that every Django command has; of subcommands, too."""
    common = {
        "help",
        "version",
        "verbosity",
        "settings",
        "pythonpath",
        "traceback",
        "no_color",
        "force_color",
        "skip_checks",
    }
    return [one for one in parser._actions if one.dest not in common]


def _argument(action):
    plain = {
        "name": " ".join(action.option_strings) or action.dest,
        "help": action.help,
        "default": action.default
        if isinstance(action.default, str | int | float | bool | None)
        else str(type(action.default)),
        "nargs": action.nargs,
    }
    if isinstance(action.choices, dict):
        return plain | {
            "of": {name: [_argument(one) for one in _arguments(sub)] for name, sub in action.choices.items()}
        }
    return plain | ({"choices": sorted(map(str, action.choices))} if action.choices else {})


def environment():
    """Return every variable whose name the product's code says."""
    places = [ROOT / "manage.py", *(ROOT / name for name in (*OURS, "demo", "clients/node"))]
    files = [path for place in places for path in ([place] if place.is_file() else place.rglob("*"))]
    texts = (path.read_text() for path in files if path.suffix in (".py", ".js") and "node_modules" not in path.parts)
    return sorted({name for text in texts for name in re.findall(r"\bREDRIVE_[A-Z][A-Z_]*[A-Z]\b", text)})


def urls():
    return [list(one) for one in sorted(_urls(get_resolver(), "", "")) if not one[0].startswith("admin/")]


def _urls(resolver, prefix, namespace):
    for one in resolver.url_patterns:
        route = prefix + str(one.pattern)
        if isinstance(one, URLPattern):
            yield route, f"{namespace}{one.name or ''}"
        else:
            yield from _urls(one, route, namespace + (f"{one.namespace}:" if one.namespace else ""))


def permissions():
    found = Permission.objects.filter(content_type__app_label__in=OURS)
    return sorted(f"{one.content_type.app_label}.{one.codename}" for one in found.select_related("content_type"))


def schema():
    """Return each of our tables as SQLite made it, with its indexes; constraints and values sorted, since their order is not fixed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE tbl_name LIKE 'jobs_admin_%' AND sql IS NOT NULL"
        )
        return {f"{kind} {name}": _by_name(sql) for kind, name, sql in sorted(cursor.fetchall())}


def _by_name(sql):
    sql = re.sub(r"IN \(('\w+'(?:,'\w+')+)\)", lambda found: f"IN ({','.join(sorted(found[1].split(',')))})", sql)
    head, *constraints = sql.removesuffix(")").split(", CONSTRAINT ")
    return [head, *sorted(constraints)]


def store():
    """Return the name of every key, and a digest of every script with its keys and arguments."""
    names = {
        name: make(
            *(f"<{one}>" for one, given in inspect.signature(make).parameters.items() if given.default is given.empty)
        )
        for name, make in inspect.getmembers(keys, inspect.isfunction)
        if inspect.signature(make).return_annotation == "str" and not name.startswith("_") and name != "short"
    }
    scripts = [
        path
        for name in (*OURS, "clients/node")
        for path in (ROOT / name).rglob("*.lua")
        if "node_modules" not in path.parts
    ]
    digests = [[path.name, hashlib.sha256(path.read_bytes()).hexdigest()] for path in scripts]
    return {"keys": names, "scripts": sorted(digests)}


def report():
    """Return the fields of a report, and one as it is written to the stream."""
    lineage = envelope.Lineage("emails", "j-1", 2, 7, "12", "j-2")
    complete = envelope.Envelope(
        "shop", "emails", "tasks.send", "j-2", "retry", 1, 1.5, "KeyError", "x", raw=b"{}", trace="T", lineage=lineage
    )
    written = {_text(name): _text(value) for name, value in envelope.encode(complete).items()}
    return {
        "fields": [[one.name, one.type] for one in fields(envelope.Envelope)],
        "lineage": [[one.name, one.type] for one in fields(envelope.Lineage)],
        "written": written | {"meta": json.loads(written["meta"])},
    }


def _text(value):
    return value.decode() if isinstance(value, bytes) else str(value)


def stored():
    """Return what is kept as JSON: a pace, and what the controller of a replay remembers."""
    pace = settled(Pace(CAREFUL), jobs=1_000)
    return {
        "careful": pace.as_dict(),
        "steady": default_for(10).as_dict(),
        "controller": Controller(pace, 0.0).as_dict(),
        "policies": {one.name: one.document for one in presets._ALL},
    }


def audited(settings):
    """Return the MAC of a row: it changes with any field that it covers, and with how they are written."""
    settings.SECRET_KEY = "pinned"
    event = AuditEvent(
        at=AT, actor="ann", user_id=1, token_id=2, act="replay.start", source="shop", object="replay:1", reason="why",
        before={"a": 1}, after={"b": [1.5, None]}, allowed=True,
    )  # fmt: skip
    return audit._mac("before", event)


def noticed(settings):
    """Return what each kind of channel is sent of an alert; its addresses and ids are those of an empty database."""
    settings.REDRIVE = settings.REDRIVE | {"URL": "https://desk.example"}
    rule = Rule.objects.create(name="Too many dead", metric="dead", source="shop", threshold=100, severity="warning")
    alert = Alert.objects.create(
        id=7, rule=rule, state="firing", source="shop", subject="emails", severity="warning", value=120, peak=120,
        threshold=100, opened_at=AT, fired_at=AT, judged_at=AT, transitions=2,
    )  # fmt: skip
    AuditEvent.objects.create(id=1204, at=AT, act="rule.create", mac="9f86d081884c7d65" + "0" * 48)
    body = notice_body.build(alert, [alert], AT, reason="fired")
    notice = Notice(key="alert-7-2", type="alert.firing", severity="warning", body=body, created_at=AT)
    secrets = {
        "webhook": "whsec_" + "c2VjcmV0" * 4, "slack": "https://hooks.slack.com/services/T/B/x", "pagerduty": "k" * 32,
    }  # fmt: skip
    sent = {}
    for kind, secret in secrets.items():
        url = "https://a.example/hook"
        request = formats.request(notice, Channel(name=kind, kind=kind, url=url, secrets=[sealing.seal(secret)]), AT)
        sent[kind] = {"headers": dict(request.headers), "body": json.loads(request.body)}
    return sent


def metric_lines():
    """Return the names of all metrics, as Prometheus gets them."""
    text = metrics.text(Viewer("pinned", {EVERY_SOURCE: ADMIN}))
    return sorted(line for line in text.splitlines() if line.startswith("#"))


def installing():
    return str(inspect.signature(install))


PINS = {
    "openapi": lambda settings: openapi(),
    "commands": lambda settings: commands(),
    "environment": lambda settings: environment(),
    "urls": lambda settings: urls(),
    "permissions": lambda settings: permissions(),
    "schema": lambda settings: schema(),
    "store": lambda settings: store(),
    "report": lambda settings: report(),
    "stored": lambda settings: stored(),
    "audit": audited,
    "webhooks": noticed,
    "metrics": lambda settings: metric_lines(),
    "install": lambda settings: installing(),
}


@pytest.mark.sqlite
@pytest.mark.django_db
@pytest.mark.parametrize("name", PINS)
def test_what_others_depend_on_stays_as_it_is(name, settings, request):
    if name in ("metrics",):
        request.getfixturevalue("store")
    found = json.loads(json.dumps(PINS[name](settings), default=str))
    path = PINNED / f"{name}.json"
    if os.environ.get("WRITE_PINS"):
        path.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    changed = sorted(differing(json.loads(path.read_text()), found))
    assert not changed, "\n".join(
        [f"If it is meant: WRITE_PINS=1 python3 manage.py test tests/test_pinned.py -k {name}", *changed]
    )


ABSENT = "(absent)"


def differing(before, after, path=""):
    """Yield the path of each value that is not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            yield from differing(before.get(key, ABSENT), after.get(key, ABSENT), f"{path}/{key}")
    elif before != after:
        yield f"{path or '/'}: {str(before)[:200]} is now {str(after)[:200]}"


def test_no_two_shapes_of_the_api_have_one_name():
    """The description of the API has one schema for each name: of two, one call would be described by the other's."""
    openapi()
    shapes = {shape for shape in subclasses(BaseModel) if shape.__module__.startswith(OURS)}
    names = Counter(shape.__name__ for shape in shapes)
    assert [name for name, count in names.items() if count > 1] == []


def subclasses(shape):
    for one in shape.__subclasses__():
        yield one
        yield from subclasses(one)


def test_every_file_belongs_to_a_pin():
    assert {path.stem for path in PINNED.glob("*.json")} == set(PINS)
