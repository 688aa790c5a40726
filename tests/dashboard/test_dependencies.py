"""The pages of dependencies, and where others name them."""

from __future__ import annotations

import html
import json
import re

import pytest
from django.utils import timezone

from jobs_admin import config
from jobs_admin.management.commands.token import create
from jobs_admin.models import Failure, GroupSource
from tests.kit.breakers import create_policy, opened
from tests.kit.breakers import store as store_breaker
from tests.kit.depths import alert
from tests.kit.pages import count_of_link, text_of
from tests.kit.reports import file, report


@pytest.fixture
def outage(watched, db):
    """Jobs of the shop that its partner failed, and one of a bank that another service did."""
    at = timezone.now().timestamp() - 60

    def failed(job_id, host, **fields):
        message = f"503 Server Error: Service Unavailable for url: https://{host}/v1/orders/{job_id}"
        error = {"error_type": "requests.exceptions.HTTPError", "message": message, "trace": ""}
        return report(job_id, **{"at": at, "task": "shop.charge"} | error | fields)

    now = timezone.now()
    file(*[failed(f"j{n}", "partner.example") for n in range(3)], now=now)
    file(failed("b1", "bank.example", source="bank", task="bank.pay", tenant="<b>"), now=now)
    file(report("k1", at=at), now=now)


def test_the_list_has_the_dependencies_with_their_numbers(ann, outage):
    page = ann.get("/dependencies/").content.decode()
    text = text_of(ann.get("/dependencies/"))
    assert "partner.example" in text and "bank.example" in text and "Hosts and services that caused failures" in text
    links = re.findall(r'<a class="is-dead count-of-state"\s+href="([^"]+)">([\d,]+)</a>', page)
    assert sorted(int(count) for _, count in links) == [1, 3]
    for link, count in links:
        assert count_of_link(ann, html.unescape(link)) == int(count)


def test_the_page_of_one_has_groups_share_spread_and_one_act(ann, outage, shop):
    page = ann.get("/dependencies/partner.example/").content.decode()
    text = text_of(ann.get("/dependencies/partner.example/"))
    for words in ("Review and replay 3 jobs", "Failed 3 jobs of 1 queue, 1 task and 1 group.", "shop.charge", "acme", "HTTPError",
                  "Address in the message of requests.exceptions.HTTPError", "75 %", "Share in its queues"):  # fmt: skip
        assert words in text, (words, text)
    assert page.count('class="button primary"') == 1 and "dependency%3Apartner.example+state%3Adead" in page
    assert "bank.example" not in text and "Last 30 d" in text
    assert "per day" in text_of(ann.get("/dependencies/partner.example/?span=30d"))
    assert "<b>" not in ann.get("/dependencies/bank.example/").content.decode().replace("<b></b>", "")


def test_groups_of_further_reasons_are_counted(ann, watched):
    now = timezone.now()
    for n in range(5):
        text = f"GET https://partner.example/v1 failed in step {chr(97 + n)}"
        of = {"error_type": f"shop.Error{chr(65 + n)}", "message": text, "trace": ""}
        file(report(f"j{n}", at=now.timestamp() - 60, **of), now=now)
    assert "Other reasons · 2 groups" in text_of(ann.get("/dependencies/partner.example/"))


def test_a_viewer_of_one_source_sees_only_its_dependencies(outage, vera):
    client = vera
    text = text_of(client.get("/dependencies/"))
    assert "partner.example" in text and "bank.example" not in text
    assert client.get("/dependencies/bank.example/").status_code == 404
    page = client.get("/dependencies/partner.example/").content.decode()
    assert "Review and replay" not in page


def test_the_list_is_limited_to_the_chosen_source(ann, outage, sources):
    page = ann.get("/dependencies/", {"source": "bank"})
    text = text_of(page)
    assert "bank.example" in text and "partner.example" not in text and "Source: bank" in text
    for state in ("", "+state%3Adead"):
        link = f'/failures/?q=dependency%3Abank.example+source%3Abank{state}"'
        assert link in page.content.decode(), "its numbers are the source's"
    assert 'hx-get="/dependencies/?source=bank"' in page.content.decode(), "it stays so when it refreshes itself"
    assert "Source: All sources" in text_of(ann.get("/dependencies/"))


@pytest.mark.parametrize("name", ["nothing", "x" * 500, "~2F", "%3Cscript%3E", "a%00b", "..%2F", "several"])
def test_a_dependency_that_is_none_is_not_found(ann, outage, name):
    assert ann.get(f"/dependencies/{name}/").status_code == 404


def test_a_desk_without_dependencies_has_an_empty_state(ann, watched):
    assert "No dependencies." in text_of(ann.get("/dependencies/"))


def test_groups_and_their_pages_name_it_with_its_reason(ann, outage):
    page = ann.get("/groups/").content.decode()
    assert 'calls <a href="/dependencies/partner.example/">partner.example</a>' in page
    assert 'title="Address in the message of requests.exceptions.HTTPError"' in page
    name = GroupSource.objects.get(dependency="partner.example").group.fingerprint
    text = text_of(ann.get(f"/groups/{name}/"))
    assert "calls partner.example Address in the message of requests.exceptions.HTTPError" in text


def test_the_page_of_a_failure_names_it(ann, outage):
    pk = Failure.objects.get(first_job_id="b1").pk
    page = ann.get(f"/failures/{pk}/").content.decode()
    assert 'href="/dependencies/bank.example/">bank.example</a>' in page
    other = Failure.objects.get(first_job_id="k1").pk
    assert "/dependencies/" not in ann.get(f"/failures/{other}/").content.decode()


def test_it_is_set_on_the_page_of_a_group_and_undone(ann, outage):
    name = GroupSource.objects.get(dependency="partner.example").group.fingerprint
    answer = ann.post(f"/groups/{name}/change/", {"act": "dependency", "dependency": "Payments"}, follow=True)
    text = text_of(answer)
    assert "Dependency saved." in text and "calls payments Set by ann" in text
    receipt = re.search(r'name="receipt" value="([\d,-]+)"', answer.content.decode())[1]
    ann.post("/groups/bulk/", {"act": "undo", "receipt": receipt}, follow=True)
    assert "calls partner.example" in text_of(ann.get(f"/groups/{name}/"))
    refused = ann.post(f"/groups/{name}/change/", {"act": "dependency", "dependency": "a b"}, follow=True)
    assert "Nothing was changed." in text_of(refused)
    assert "Dependency changed by ann" in text_of(ann.get(f"/groups/{name}/story/"))


def test_facets_completion_and_the_palette_offer_it(ann, outage):
    facets = text_of(ann.get("/failures/facets/"))
    assert "Dependency" in facets and "partner.example" in facets
    assert "partner.example" in text_of(ann.get("/failures/facets/?q=tenant:acme"))
    assert "partner.example" in text_of(ann.get("/failures/complete/", {"q": "dependency:par", "at": 14}))
    assert "/dependencies/partner.example/" in ann.get("/palette/", {"q": "partner"}).content.decode()


def test_the_api_has_it_on_groups_and_searches_by_it(client, outage):
    given = {"headers": {"authorization": f"Bearer {create('all', 'operator')}"}}
    (item,) = client.get("/api/groups", {"q": "dependency:partner.example"}, **given).json()["items"]
    reason = "Address in the message of requests.exceptions.HTTPError"
    assert item["dependencies"] == [{"name": "partner.example", "reason": reason, "set_by": ""}]
    url, change = f"/api/groups/{item['fingerprint']}", json.dumps({"dependency": "Payments"})
    changed = client.patch(url, change, content_type="application/json", **given).json()
    assert changed["dependencies"] == [{"name": "payments", "reason": "Set by token all", "set_by": "token all"}]
    assert client.get("/api/failures", {"q": "dependency:payments"}, **given).json()["count"] == 3
    facets = client.get("/api/failures/facets", {"q": "state:dead"}, **given).json()["facets"]
    (values,) = [one["values"] for one in facets if one["field"] == "dependency"]
    assert {one["value"]: one["count"] for one in values} == {"payments": 3, "bank.example": 1}


def test_the_api_lists_dependencies_and_shows_one(client, outage):
    given = {"headers": {"authorization": f"Bearer {create('bank', 'viewer', 'bank')}"}}
    listed = client.get("/api/dependencies", **given).json()
    assert [(one["name"], one["dead"]) for one in listed["items"]] == [("bank.example", 1)] and listed["count"] == 1
    one = client.get("/api/dependencies/bank.example", **given).json()
    reason = "Address in the message of requests.exceptions.HTTPError"
    assert one["reasons"] == [{"value": reason, "count": 1}] and sum(one["failed"]) == sum(one["ended"]) == 1
    assert client.get("/api/dependencies/partner.example", **given).status_code == 404


def test_an_incident_names_what_failed_its_jobs(ann, outage):
    page = ann.get("/incidents/?source=shop&queue=emails").content.decode()
    assert "Failed dependencies" in page and 'href="/dependencies/partner.example/">partner.example</a>' in page
    assert "bank.example" not in page
    found = ann.get("/incidents/as/json/?source=shop&queue=emails").json()
    assert found["dependencies"] == [{"dependency": "partner.example", "jobs": 3}]
    assert (
        "| Failed dependencies | partner\\.example 3 |"
        in ann.get("/incidents/as/markdown/?source=shop&queue=emails").content.decode()
    )


def test_an_alert_names_the_dependency_of_its_groups(ann, outage):
    firing = alert("emails", fired_at=timezone.now(), state="firing", opened_at=timezone.now())
    text = text_of(ann.get(f"/alerts/{firing.pk}/"))
    assert "calls partner.example" in text and "bank.example" not in text


def test_the_page_shows_the_state_of_its_breaker(ann, outage, sources):
    create_policy("partner", dependency="Partner.example", queue="emails")
    store_breaker(config.store(), opened("Partner.example", on_hold=1_243))
    page = ann.get("/dependencies/partner.example/").content.decode()
    assert 'href="/breakers/shop/Partner.example/"' in page
    assert "1,243 jobs held" in text_of(ann.get("/dependencies/partner.example/"))
    assert "/breakers/shop/" not in ann.get("/dependencies/bank.example/").content.decode()
    assert ann.get("/dependencies/").content.decode().count('href="/breakers/shop/Partner.example/"') == 1
    assert "open Breaker · Partner.example has been down" in text_of(ann.get("/dependencies/"))


def test_the_page_of_a_breaker_leads_to_its_dependency_and_its_failures(ann, outage, sources):
    create_policy("partner", dependency="Partner.example", queue="emails")
    store_breaker(config.store(), opened("Partner.example"))
    page = ann.get("/breakers/shop/Partner.example/").content.decode()
    assert 'href="/dependencies/partner.example/"' in page
    [link] = re.findall(r'<a href="([^"]+)">View failures', page)
    assert "dependency%3Apartner.example" in link and count_of_link(ann, html.unescape(link)) == 3
