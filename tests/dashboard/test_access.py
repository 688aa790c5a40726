from __future__ import annotations

import pytest
from django.urls import path
from django.views.decorators.http import require_POST

from dashboard.urls import handler403, handler404, handler500  # noqa: F401  (this module is a URLconf too)
from dashboard.urls import urlpatterns as pages
from dashboard.web.access import can
from dashboard.web.htmx import go
from jobs_admin.models import AuditEvent, Replay
from jobs_admin.models.access import OPERATOR


@require_POST
@can(OPERATOR)
def stop(request):
    return go(request, "/")


urlpatterns = [*pages, path("stop/", stop, name="stop")]


@pytest.fixture
def act(settings):
    settings.ROOT_URLCONF = __name__


def test_a_stranger_is_sent_to_the_login_and_back(client, db):
    answer = client.get("/groups/?q=x")
    assert answer.status_code == 302 and answer["Location"] == "/login/?next=/groups/%3Fq%3Dx"


def test_who_has_no_role_reads_a_sentence_and_nothing_else(without_role):
    answer = without_role.get("/groups/")
    assert answer.status_code == 403 and b"need the role viewer" in answer.content


def test_a_viewer_may_not_act_and_the_try_is_written_down(vera, act):
    answer = vera.post("/stop/")
    assert answer.status_code == 403 and b"need the role operator" in answer.content
    event = AuditEvent.objects.get()
    assert (event.actor, event.act, event.object, event.allowed) == ("vera", "stop", "/stop/", False)


def test_a_refused_reading_is_not_audited(without_role):
    without_role.get("/groups/")
    assert not AuditEvent.objects.exists()


def test_an_operator_may_act(otto, act):
    assert otto.post("/stop/")["Location"] == "/"


def test_htmx_is_sent_on_by_its_own_header(otto, act):
    answer = otto.post("/stop/", headers={"HX-Request": "true"})
    assert answer.status_code == 200 and answer["HX-Redirect"] == "/"


def test_a_read_only_desk_refuses_the_act_and_shows_it_on_every_page(otto, act, settings, watched):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    answer = otto.post("/stop/")
    assert answer.status_code == 403 and b"read-only" in answer.content
    assert b"Read-only." in otto.get("/groups/").content


def test_a_get_of_an_act_is_refused(otto, act):
    assert otto.get("/stop/").status_code == 405


def test_an_old_form_gets_a_sentence(otto, act, django_user_model):
    from django.test import Client

    strict = Client(enforce_csrf_checks=True)
    strict.force_login(django_user_model.objects.get(username="otto"))
    answer = strict.post("/stop/")
    assert answer.status_code == 403 and b"Reload the page" in answer.content


def test_htmx_is_refused_with_the_sentence_alone(vera, act):
    answer = vera.post("/stop/", headers={"HX-Request": "true"})
    assert answer["Content-Type"].startswith("text/plain") and answer.content.startswith(b"You need the role")


CURSORS = ("0001-01-01T00:00:00+14:00~1", "~", "1~\0~~", "9" * 30, "-1", "²", "1~1~s~\0", "1e9", "٣", "zz.zz", "None")


@pytest.mark.parametrize("after", CURSORS)
def test_no_cursor_breaks_a_page(ann, after, watched):
    replay = Replay.objects.create(scope_max_id=0, actor="ann")
    pages = (
        "/groups/",
        "/groups/?order=count",
        "/failures/",
        "/replays/",
        f"/replays/{replay.pk}/",
        "/queues/",
        "/audit/",
    )
    for page in pages:
        assert ann.get(page, {"after": after} | ({"order": "count"} if "?" in page else {})).status_code in {
            200,
            404,
        }, page
