"""The desk below a path of another project, whose own addresses have the same names."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from django.contrib.auth import get_user_model
from django.http import HttpResponse
from django.urls import include, path, resolve

from dashboard.web import links, rights, shell
from dashboard.web.rights import addresses
from jobs_admin import config
from jobs_admin.models import AuditEvent
from tests.kit.matrix import Asker, body_of, come, create_desk, token, views_of

MOUNT = "/ops/redrive/"
ADDRESS = re.compile(r"""\b(?:href|src|action|hx-(?:get|post)|data-[a-z-]+|value)=["'](/[^"'#]*)""")


def of_the_host(request):
    return HttpResponse("the host's")


urlpatterns = [
    *(path(f"host/{name}/", of_the_host, name=name) for name in ("overview", "failure-list", "login", "metrics")),
    path("ops/redrive/", include("dashboard.routes")),
]


@pytest.fixture
def mounted(settings):
    def forget():
        for remembered in (links._address, shell._places, shell._render_cached):
            remembered.cache_clear()

    settings.ROOT_URLCONF = __name__
    forget()
    yield
    forget()


@pytest.fixture
def rows(mounted, watched, settings, tmp_path, db, engine):
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": engine.url, "DEMO_PARTNER_URL": "http://127.0.0.1:9"}
    desk = create_desk(settings, tmp_path)
    views_of(desk, get_user_model().objects.create_user("olga"))
    return desk.shop


def test_every_page_is_there_and_leads_to_no_address_outside_of_the_mount(rows):
    asker, answered, led_to = Asker(come("root", staff=True)), set(), set()
    for address in addresses():
        assert address.route.startswith(MOUNT), address
        if "GET" in address.methods and address.kind == "page":
            answer = asker.request("GET", address, rows)
            # 409: the thing can be looked at, and not acted on.
            assert answer.status_code in {200, 302, 404, 409}, (address, answer.status_code)
            if answer.status_code == 200:
                answered.add(address.name)
                led_to |= {(address.name, url) for url in ADDRESS.findall(body_of(answer))}
            elif answer.status_code == 302:
                led_to.add((address.name, answer["Location"]))
    paths = {(name, urlsplit(url).path) for name, url in led_to}
    assert {one for one in paths if not one[1].startswith((MOUNT, "/static/"))} == set()
    assert len(answered) > 50 and len(paths) > 300, (len(answered), len(paths))
    for _, where in paths:
        if not where.startswith("/static/"):
            resolve(where)


def test_every_call_that_reads_is_there(rows):
    asker = Asker(come("root"), token("root"))
    read = [one for one in addresses() if one.kind == "api" and one.methods == ("GET",)]
    for address in read:
        answer = asker.request("GET", address, rows)
        assert answer.status_code in {200, 404, 409}, (address, answer.status_code)
        assert not re.search(r'"http://127.0.0.1:8000/(?!ops/redrive/)', body_of(answer)), address
    assert len(read) > 20


def test_a_stranger_is_sent_to_the_login_of_the_project_and_back(client, mounted, db, settings):
    settings.LOGIN_URL = "login"
    assert client.get(f"{MOUNT}groups/")["Location"] == f"/host/login/?next={MOUNT}groups/"


def test_an_act_is_audited_under_the_name_that_it_has_everywhere(vera, mounted):
    assert vera.post(f"{MOUNT}failures/bulk/").status_code == 403
    event = AuditEvent.objects.get()
    assert (event.act, event.object, event.allowed) == ("failure-bulk", f"{MOUNT}failures/bulk/", False)


def test_the_desk_queries_no_right_of_the_projects_own_addresses(mounted):
    assert rights.every_address_declares_its_right() == [] and len(addresses()) > 150


def test_links_of_notices_lead_to_the_mount(mounted):
    assert config.page_at("alerts/7/") == "http://127.0.0.1:8000/ops/redrive/alerts/7/"
