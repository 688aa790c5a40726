"""Canaries that were written without reading the rules: hidden, or documented as shown; and a real worker that repeats what it was given.

`python -m bench.canaries SET` takes each through a real worker and a whole desk, and reads every sink.
"""

from __future__ import annotations

import json
import traceback

import pytest
import redis

from dashboard.setup.engine import Engine
from jobs_admin.core import keys
from jobs_admin.core.display import shown_json, shown_message, shown_trace
from jobs_admin.core.envelope import decode
from jobs_admin.core.redaction import PLACEHOLDER, redact, redact_text
from tests.canaries.jobs import FOLDER, fail_with, needles, read_set
from tests.kit.cases import with_cases
from tests.kit.hostile import HostileWorker

SETS = ["first_set", "second_set", "third_set", "fourth_set", "fifth_set", "sixth_set", "seventh_set"]
SHOWN = json.loads((FOLDER / "shown.json").read_text())  # label: reason


class Task:
    """The part that `fail_with` needs of one."""

    def __init__(self, place, number):
        self.folder, self.request = place, type("Request", (), {"id": number})

    def retry(self, exc, countdown):
        return exc


def copies_of(canary, number, folder, monkeypatch):
    """The report of a job that fails so."""
    monkeypatch.setenv("REAL_MARKS", str(folder))
    if canary["place"] in {"args", "kwargs", "headers"}:
        return [shown_json(canary["text"]).text]
    try:
        fail_with(Task(folder, number), canary)
    except Exception as error:
        trace = traceback.format_exc()
        noted = [shown_json({"note": canary["text"]}).text] if canary["place"] != "source" else []
        return [shown_message(str(error)).text, shown_trace(trace).text, *noted]
    raise AssertionError("it did not fail")


@pytest.mark.parametrize("name", SETS)
def test_a_canary_is_hidden_or_documented(name, tmp_path, monkeypatch):
    other = []
    for number, canary in enumerate(read_set(name)):
        try:
            copies = "\n".join(copies_of(canary, number, tmp_path, monkeypatch))
        except Exception as error:
            other.append((canary["label"], repr(error)))
            continue
        found = [part for part in needles(canary) if part in copies or json.dumps(part)[1:-1] in copies]
        if bool(found) != (canary["label"] in SHOWN):
            other.append((canary["label"], copies))
    assert other == []


@with_cases("text", json.loads((FOLDER / "near_misses.json").read_text()))
def test_a_near_miss_stays_as_it_is(text):
    assert redact_text(text) == (text, 0)
    assert redact({"note": text}) == ({"note": text}, 0)
    assert redact_text(f"ValueError: {text}\n") == (f"ValueError: {text}\n", 0)


@pytest.mark.server
@pytest.mark.long("Starts a broker, a store and a worker of its own.")
def test_what_a_job_was_given_as_a_secret_is_hidden_where_its_error_repeats_it(tmp_path):
    secret, phrase, in_header = "Tundra-hazel#31", "violet otter maple tundra", "9f8e7d6c5b4a"
    repeated = f"login('bob', '{secret}') with {phrase!r} and {in_header}; warm-up of order 4711 by admin"
    broker, store = Engine(tmp_path / "broker").start(), Engine(tmp_path / "store").start()
    worker = HostileWorker(broker.url, store.url, name="w")
    try:
        worker.start()
        arguments = {
            "account": {"password": secret, "user": "admin"},
            "passphrase": phrase,
            "text": repeated,
            "because": repeated,
        }
        worker.send("tells", {"credentials": ["bob", secret]}, kwargs=arguments, headers={"x-tenant-token": in_header})
        with redis.Redis.from_url(store.url) as reports:
            worker.wait(lambda: reports.xlen(keys.failures("shop")), what="the report")
            report = decode(reports.xrange(keys.failures("shop"))[0][1])
    finally:
        worker.kill()
        broker.stop()
        store.stop()
    hidden = f"login('bob', '{PLACEHOLDER}') with '{PLACEHOLDER}' and {PLACEHOLDER}; warm-up of order 4711 by admin"
    assert report.message == hidden
    assert hidden in report.trace and report.trace.count(hidden) >= 2  # and the cause
    for value in (secret, phrase, in_header):
        assert value not in report.message + report.trace
