"""The page of sources and keys, and what the overview and doctor report of signing."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.utils import timezone

from dashboard.setup import checkup
from jobs_admin.core import keys
from jobs_admin.core.envelope import ENDS_READER
from jobs_admin.core.refused import Refused
from jobs_admin.fleet import heartbeats
from jobs_admin.management.commands import token
from jobs_admin.models import AuditEvent, Failure, RefusedReports, Role, Source, Unfiled, UnsignedReports
from jobs_admin.models.access import ENGINE
from jobs_admin.trust import Cause, admission, source_keys
from tests.kit.browsing import Browser
from tests.kit.signed_reports import create_sources, end_unsigned, entry, file, forged, refile

pytestmark = pytest.mark.django_db


def browser(role="admin", source="*"):
    user = get_user_model().objects.create_user(f"{role}-{source}", password="x")
    Role.objects.create(user=user, source=source, role=role)
    client = Browser()
    client.force_login(user)
    return client


@pytest.fixture
def refused(watched):
    """The shop's reports: 3 unsigned, 6 with a wrong signature; one of an unknown source."""
    key = source_keys.create(ENGINE, "shop")
    create_sources("shop", "bank")
    end_unsigned()
    file(*(entry(f"j{n}") for n in range(3)), *forged(key).values(), entry("x1", source="new"))


def test_an_admin_files_what_was_refused_and_accepts_the_source_that_waits(refused):
    admin = browser()
    page = admin.get("/sources/").content.decode()
    assert (
        "File 3 reports" in page and "1 waiting to be accepted" in page and "Only signed reports are accepted" in page
    )
    assert admin.post("/sources/shop/file/").status_code == 302
    assert admin.post("/sources/new/accept/").status_code == 302
    refile()
    assert sorted(Failure.objects.values_list("first_job_id", flat=True)) == ["j0", "j1", "j2", "x1"]
    assert Unfiled.objects.exclude(cause="signature").count() == 0
    page = admin.get("/sources/").content.decode()
    assert "File 3 reports" not in page and "waiting to be accepted" not in page


def test_reports_without_a_source_that_have_no_room_are_listed_without_acts(refused, monkeypatch):
    monkeypatch.setitem(admission._BOUNDS, Cause.UNFILED, admission._Bound(1, 10**9))
    file((b"7-1", {b"v": b"x"}), (b"7-2", {b"v": b"x"}))
    page = browser().get("/sources/")
    assert page.status_code == 200 and "envelope version" in page.content.decode()
    with pytest.raises(Refused, match="not checked"):
        admission.file_unsigned(ENGINE, "")
    assert Unfiled.objects.get(entry_id="7-1").cause == ""


def test_what_ended_its_reader_is_not_filed():
    create_sources("bank")
    file((b"7-1", {b"v": b"x"}, "bank"), (b"7-2", {b"v": b"x"}, "bank"))
    Unfiled.objects.filter(entry_id="bank/7-1").update(why=f"{ENDS_READER}each time")
    assert admission.file_unsigned(ENGINE, "bank") == 1
    assert Unfiled.objects.get(entry_id="bank/7-1").cause == ""


def test_the_page_is_in_the_rail_and_the_menu_of_who_may_open_it(refused):
    for role, source, is_listed in (("admin", "*", True), ("admin", "bank", True), ("operator", "*", False)):
        page = browser(role, source).get("/queues/").content.decode()
        assert page.count('href="/sources/"') == (2 if is_listed else 0)
    assert 'href="/sources/" aria-current="page"' in browser(source="shop").get("/sources/").content.decode()


def test_what_cannot_be_done_is_shown_and_changes_nothing(refused):
    admin = browser()
    admin.post("/sources/bank/file/")
    assert (
        "No unsigned or unfiled report of bank is stored. Nothing was changed."
        in admin.get("/sources/").content.decode()
    )


def test_refused_reports_are_discarded_with_their_count(refused):
    browser().post("/sources/shop/discard-refused/")
    assert set(RefusedReports.objects.values_list("source", flat=True)) == {"new"}
    assert AuditEvent.objects.get(act="reports.discard").after == {"reports": 9}


def test_reports_are_deleted_only_after_a_check_of_their_number(refused):
    page = browser().get("/sources/").content.decode()
    for url, button in (
        ("/sources/new/discard/", "Delete 1 report"),
        ("/sources/shop/discard-refused/", "Delete 9 reports"),
    ):
        dialog = page[: page.index(button)].rpartition("<details")[2]
        assert 'class="menu"' in dialog and "Discard…</summary>" in dialog and f'action="{url}"' in dialog


def test_who_accepts_a_source_without_a_key_reads_that_its_next_reports_are_refused(refused, capsys):
    call_command("sources", "accept", "new")
    assert "new has no key: further reports of its workers are refused" in (message := capsys.readouterr().out)
    assert "manage.py source-key create new" in message


def test_an_accepted_source_whose_unsigned_reports_are_filed_needs_no_key(watched, capsys):
    create_sources("shop")
    UnsignedReports.objects.update(until=timezone.now() + timedelta(days=3))
    for n in range(6):  # five are accepted automatically
        file(entry(f"j{n}", source=f"new{n}"))
    call_command("sources", "accept", "new5")
    assert "is accepted" in (message := capsys.readouterr().out) and "has no key" not in message


def test_an_admin_of_one_source_sees_its_own_and_no_unknown_one(refused):
    page = browser(source="bank").get("/sources/").content.decode()
    assert "bank" in page and "shop" not in page and "new" not in page.partition("<main")[2].replace("renewed", "")


def test_the_overview_shows_everybody_that_reports_are_missing_and_only_admins_where_to_act(refused):
    for role, link in (("admin", True), ("viewer", False)):
        page = browser(role).get("/").content.decode()
        assert "shop: 3 reports refused since" in page
        assert ("/sources/" in page) is link and ("waiting to be accepted" in page) is link
        assert "could not be filed" not in page


def test_the_overview_shows_quietly_who_does_not_sign_until_the_time_is_nearly_over(watched):
    file(entry())
    admin, words = browser(), "1 source does not sign reports yet: shop."
    page = admin.get("/").content.decode()
    assert words in page and f'<p class="sub">{words}' in page
    UnsignedReports.objects.update(until=timezone.now() + timedelta(days=3))
    from jobs_admin.desk import overview

    overview.forget()
    assert f'<p class="sub">{words}' not in (page := admin.get("/").content.decode()) and words in page


def test_doctor_names_each_with_what_to_do(refused):
    found = checkup.check_signatures(timezone.now())
    assert [one.severity for one in found.findings] == ["high", "high", "warning"]
    assert "manage.py sources file shop" in " ".join(one.fix for one in found.findings)
    assert "1 source is waiting to be accepted: new." in [one.text for one in found.findings]
    assert found.text == "2 keys, unsigned reports accepted no longer"


def test_doctor_names_a_key_that_cannot_be_opened(settings):
    from cryptography.fernet import Fernet

    from jobs_admin import config
    from tests.kit.sources import forget_configuration

    key = source_keys.create(ENGINE, "shop")
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [Fernet.generate_key().decode()]}
    forget_configuration(config)
    (found,) = checkup.check_signatures(timezone.now()).findings
    assert found.text.startswith(f"The key {key.id} cannot be decrypted")
    forget_configuration(config)


def test_a_calm_desk_shows_nothing_of_it(watched):
    Source.objects.create(name="shop", signed_since=timezone.now())
    assert admission.findings(admission.state(ENGINE, timezone.now()), timezone.now()) == []


def test_doctor_names_workers_that_do_not_sign_or_with_a_key_that_is_over(watched):
    now = timezone.now()
    create_sources("shop")
    good, revoked = source_keys.create(ENGINE, "shop"), source_keys.create(ENGINE, "shop")

    def beat(name, **more):
        word = {"v": 1, "source": "shop", "name": name, "boot": "b", "at": now.timestamp(), "queues": []}
        watched.hset(keys.workers("shop"), name, json.dumps(word | more))

    beat("signs", key=good.id)
    beat("older")
    beat("over", key=revoked.id)
    heartbeats.count_heartbeats(now)
    assert [one.id for one in checkup._about_signing("shop", now)] == ["workers-unsigned"]
    source_keys.revoke(ENGINE, revoked.id, now)
    unsigned, over = checkup._about_signing("shop", now)
    assert "1 of the workers do not sign" in unsigned.text and "older" in unsigned.text
    assert "unsigned reports are refused from a day after the first signed one" in unsigned.fix
    assert "source-key list" in over.fix, "a key that is in force is at hand"
    end_unsigned()
    refused = checkup._about_signing("shop", timezone.now())[0]
    assert (
        "Reports of these workers are refused: unsigned reports are not accepted" in refused.text
        and "a day after" not in refused.fix
    )
    assert refused.severity == "high"
    assert "1 of the workers sign with a key that is not active: over." in over.text
    source_keys.revoke(ENGINE, good.id, now)
    unsigned, over = checkup._about_signing("shop", timezone.now())
    assert "2 of the workers sign with a key that is not active" in over.text
    assert (
        "although the source has a key" not in unsigned.text and "Reports of these workers are refused" in unsigned.text
    )
    assert "`python3 manage.py source-key create shop`" in unsigned.fix and "unsigned-reports --until" in unsigned.fix


def test_doctor_shows_nothing_of_keys_while_unsigned_reports_are_accepted_and_the_source_has_none(watched):
    create_sources("shop")
    word = {"v": 1, "source": "shop", "name": "w", "boot": "b", "at": timezone.now().timestamp(), "queues": []}
    watched.hset(keys.workers("shop"), "w", json.dumps(word))
    heartbeats.count_heartbeats(timezone.now())
    assert checkup._about_signing("shop", timezone.now()) == []


def test_doctor_names_workers_with_a_key_of_another_source(watched):
    create_sources("shop", "bank")
    of_bank = source_keys.create(ENGINE, "bank")
    word = {
        "v": 1,
        "source": "shop",
        "name": "w",
        "boot": "b",
        "at": timezone.now().timestamp(),
        "queues": [],
        "key": of_bank.id,
    }
    watched.hset(keys.workers("shop"), "w", json.dumps(word))
    heartbeats.count_heartbeats(timezone.now())
    assert [one.id for one in checkup._about_signing("shop", timezone.now())] == ["workers-key"]


def test_a_program_does_by_the_api_what_an_admin_does_on_the_page(refused):
    tokens = {}

    def call(method, path, role="admin", source="*"):
        text = tokens.get((role, source)) or token.create(f"{role} of {source}", role, source)
        tokens[role, source] = text
        answer = getattr(Browser(), method)(f"/api/sources/{path}", headers={"Authorization": f"Bearer {text}"})
        return answer.status_code, answer.json()

    status, listed = call("get", "refused")
    rows = {(row["source"], row["cause"]): row["stored"] for row in listed["items"]}
    assert status == 200 and rows == {("new", "unknown"): 1, ("shop", "unsigned"): 3, ("shop", "signature"): 6}
    assert call("get", "refused", source="bank")[1]["items"] == []
    assert call("post", "shop/file", role="operator")[0] == 403
    assert call("post", "shop/file", source="bank")[0] == 404
    assert call("post", "new/accept", source="shop")[0] == 403
    assert call("post", "shop/file") == (200, {"reports": 3})
    assert call("post", "shop/discard-refused") == (200, {"reports": 6})
    status, message = call("post", "shop/file")
    assert (status, message["error"]["code"]) == (409, "wrong_state")
    assert call("post", "new/accept") == (200, {"reports": 1})
    refile()
    assert Failure.objects.count() == 4


def test_a_source_that_is_not_configured_is_merged_from_its_row(watched, sources):
    Source.objects.create(name="shopp")
    admin = browser()
    page = admin.get("/sources/").content.decode()
    assert page.count("Merge source") == 1 and 'action="/sources/shopp/merge/"' in page
    admin.post("/sources/shopp/merge/", {"into": "shop"})
    assert "0 failures of shopp moved to shop. The source shopp is removed." in admin.get("/sources/").content.decode()
    assert not Source.objects.filter(name="shopp").exists()
    assert "Merge source" not in browser("admin", "shop").get("/sources/").content.decode()
