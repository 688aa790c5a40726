"""A failure in the tools that a team has: ids and links on its page, in the API, in exports, and in the search."""

from __future__ import annotations

import io
import json
import re
from urllib.parse import quote, unquote, urlsplit

import pytest
from django.core.management import call_command

from dashboard.setup import environment
from jobs_admin import config, failures
from jobs_admin.core import desk_settings
from jobs_admin.failures import exporting
from jobs_admin.models import Failure
from tests.kit.people import ROOT
from tests.kit.reports import file, misindexed, report

pytestmark = pytest.mark.django_db

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = json.dumps({"traceparent": f"00-{TRACE}-{SPAN}-01"})
HOSTILE = "{from}\"'><script>\r\nX: 1\u202e/../ü&#"


@pytest.fixture
def tools(settings):
    settings.REDRIVE = settings.REDRIVE | {
        "TRACE_URL": "https://tempo.example/trace/{trace_id}?span={span_id}",
        "SENTRY_URL": "https://acme.sentry.io/issues/?query={event_id}",
        "LOGS_URL": "https://logs.example/?q={task}&tenant={tenant}&from={from}&to={to}&iso={from_iso}",
    }


def links_in(page: str) -> dict[str, str]:
    """Return name -> URL of the links in a failure's facts."""
    found = re.findall(
        r'<dt>(\w+)</dt><dd class="mono"><a href="([^"]+)"\s+target="_blank" rel="noopener noreferrer"', page
    )
    return {name: url.replace("&amp;", "&") for name, url in found}


EVENT = "0123456789abcdef" * 2


def one(**fields) -> Failure:
    file(report("j1", **{"headers": HEADERS, **fields}))
    return Failure.objects.get()


def test_the_page_links_the_trace_and_the_logs_in_a_new_tab(ann, tools):
    failure = one()
    page = ann.get(f"/failures/{failure.pk}/").content.decode()
    at = int(failure.failed_at.timestamp() * 1000)
    logs = links_in(page).pop("Logs")
    assert links_in(page)["Trace"] == f"https://tempo.example/trace/{TRACE}?span={SPAN}" and f">{TRACE}</a>" in page
    assert logs.startswith(f"https://logs.example/?q=shop.send&tenant=acme&from={at - 900_000}&to={at + 900_000}&iso=2")


def test_without_a_setting_the_trace_is_text_and_without_a_trace_there_is_none(ann):
    failure = one()
    page = ann.get(f"/failures/{failure.pk}/").content.decode()
    assert f'<dt>Trace</dt><dd class="mono">{TRACE}</dd>' in page and links_in(page) == {}
    Failure.objects.update(headers="")
    assert "<dt>Trace</dt>" not in ann.get(f"/failures/{failure.pk}/").content.decode()


def test_a_sentry_event_is_on_page_and_in_api_export_and_search(ann, call_api, tools):
    failure = one(event_id=EVENT)
    page = ann.get(f"/failures/{failure.pk}/").content.decode()
    assert links_in(page)["Sentry"] == f"https://acme.sentry.io/issues/?query={EVENT}" and f">{EVENT}</a>" in page
    found = call_api("GET", f"failures/{failure.pk}").json()
    assert found["event_id"] == EVENT and found["links"][2]["url"].endswith(EVENT)
    line = b"".join(exporting.stream(ROOT, "", "csv", columns=["event_id"])).splitlines()[1]
    assert line.decode() == EVENT
    assert [row.job_id for row in failures.search(ROOT, EVENT).rows] == ["j1"] and misindexed() == []
    file(report("j1", attempt=2))  # the latest attempt has none
    assert "Sentry" not in links_in(ann.get(f"/failures/{failure.pk}/").content.decode()) and misindexed() == []
    assert failures.search(ROOT, EVENT).rows == []


def test_a_link_to_sentry_has_its_own_trace(ann, settings):
    settings.REDRIVE = settings.REDRIVE | dict.fromkeys(("SENTRY_URL", "TRACE_URL"), "https://x.example/{trace_id}")
    failure = one(headers=json.dumps({**json.loads(HEADERS), "sentry-trace": f"{'a' * 32}-{SPAN}-1"}))
    found = links_in(ann.get(f"/failures/{failure.pk}/").content.decode())
    assert found == {"Trace": f"https://x.example/{TRACE}", "Sentry": f"https://x.example/{'a' * 32}"}


@pytest.mark.parametrize(
    "event",
    ["A" * 32, "a" * 31, "a" * 1_000_000, "javascript:alert(1)", "a" * 31 + "\n", "\u0665" * 32, None, 7, ["a" * 32]],
)
def test_a_report_with_anything_else_as_its_event_is_filed_without(event):
    assert one(event_id=event).event_id is None


def test_headers_of_a_megabyte_are_filed_and_shown(ann, tools):
    failure = one(headers=json.dumps({"x": "a" * 1_000_000, **json.loads(HEADERS)}))
    assert ann.get(f"/failures/{failure.pk}/").status_code == 200 and misindexed() == []


def test_a_viewer_without_the_source_is_shown_no_link(vera, call_api, tools):
    failure = one(source="bank", event_id=EVENT)
    assert vera.get(f"/failures/{failure.pk}/").status_code == 404
    assert call_api("GET", f"failures/{failure.pk}", role="viewer", source="shop").status_code == 404
    found = call_api("GET", "failures", role="viewer", source="shop", q=TRACE).json()
    assert found["items"] == [] and found["count"] == 0 and EVENT not in json.dumps(found)


def test_a_link_is_left_out_where_a_value_is_missing(ann, tools):
    failure = one(tenant="", headers="{}")
    page = ann.get(f"/failures/{failure.pk}/").content.decode()
    assert links_in(page) == {} and "tempo.example" not in page


def test_no_value_of_a_job_leaves_its_place_in_the_url(ann, tools):
    failure = one(task=HOSTILE, tenant=HOSTILE)
    page = ann.get(f"/failures/{failure.pk}/").content.decode()
    url = links_in(page)["Logs"]
    assert urlsplit(url).netloc == "logs.example" and f"q={quote(failure.task, safe='')}&tenant=" in url
    assert "<script>" not in url and "\n" not in url and unquote(url).count("&from=") == 1


def test_the_api_has_ids_and_links(call_api, tools):
    failure = one()
    found = call_api("GET", f"failures/{failure.pk}").json()
    assert (found["trace_id"], found["span_id"]) == (TRACE, SPAN)
    assert [link["name"] for link in found["links"]] == ["Trace", "Logs"]
    assert found["links"][0] == {"name": "Trace", "url": f"https://tempo.example/trace/{TRACE}?span={SPAN}"}
    Failure.objects.update(headers="no JSON: traceparent", tenant="")
    found = call_api("GET", f"failures/{failure.pk}").json()
    assert (found["trace_id"], found["span_id"], found["links"]) == (None, None, [])


def test_the_terminal_prints_the_links(tools):
    failure, out = one(), io.StringIO()
    call_command("failure", "show", str(failure.pk), stdout=out)
    assert f"https://tempo.example/trace/{TRACE}?span={SPAN}" in out.getvalue()


def test_the_terminal_prints_ids_without_links():
    failure, out = one(event_id=EVENT), io.StringIO()
    call_command("failure", "show", str(failure.pk), stdout=out)
    assert re.search(rf"trace +{TRACE}\n", out.getvalue()) and re.search(rf"sentry +{EVENT}\n", out.getvalue())


def test_an_export_has_the_trace_if_it_is_chosen():
    one()
    (row, _) = b"".join(exporting.stream(ROOT, "", "jsonl", columns=["trace_id"])).splitlines()
    assert json.loads(row)["trace_id"] == TRACE
    Failure.objects.update(headers="{")
    (row, _) = b"".join(exporting.stream(ROOT, "", "jsonl", columns=["trace_id"])).splitlines()
    assert json.loads(row)["trace_id"] == ""
    assert "trace_id" not in json.loads(b"".join(exporting.stream(ROOT, "", "jsonl")).splitlines()[0])


@pytest.mark.parametrize("name", ["TRACE_URL", "LOGS_URL", "SENTRY_URL"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("javascript:alert({trace_id})", "must begin with https:// or http://"),
        ("https://x.example/{trace}", "{trace} is not a field; known: {trace_id}, {span_id}"),
        ("https://{tenant}.example/{trace_id}", "A field must not be part of the host"),
    ],
)
def test_a_template_that_cannot_be_used_ends_the_start(monkeypatch, settings, name, value, message):
    monkeypatch.setenv(f"REDRIVE_{name}", value)
    with pytest.raises(
        environment.Misconfigured, match=f"^REDRIVE_{name} cannot be used: .*{re.escape(message)}.*Nothing was started"
    ):
        environment.redrive()
    settings.REDRIVE = settings.REDRIVE | {name: value}
    with pytest.raises(config.BadConfiguration, match=re.escape(message)):
        config.setting(name)


def test_a_template_that_is_no_text_is_refused():
    with pytest.raises(desk_settings.BadSetting, match="must be a string, not int"):
        desk_settings.parse({"TRACE_URL": 7})
