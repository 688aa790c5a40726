"""Second factor of accounts with a password, and sessions: who comes in by which codes, and whose session ends when.

`test_rights.py` tries every address with a session of the first step (`tests.kit.matrix.come`).
"""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import closing
from datetime import timedelta
from io import StringIO

import pyotp
import pytest
from axes.models import AccessAttempt
from cryptography.fernet import Fernet
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections
from django.test import Client
from django.utils import timezone

from dashboard.setup import checkup
from dashboard.setup import environment as env
from dashboard.web import second_step
from dashboard.web import sign_ins as web_sign_ins
from dashboard.web.middleware import identity
from dashboard.web.sign_ins import browser_name
from jobs_admin import config
from jobs_admin.desk import key_rotation
from jobs_admin.models import AuditEvent, Role, SecondFactor, SignIn
from jobs_admin.models.access import viewer_of
from jobs_admin.rights import second_factor, sign_ins
from jobs_admin.rights.second_factor import Result
from tests.kit import migrated
from tests.kit.people import PASSWORD

User = get_user_model()
KEY = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


@pytest.fixture
def keys(settings):
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [Fernet.generate_key().decode()]}
    config.payload_keys.cache_clear()
    yield settings
    config.payload_keys.cache_clear()


@pytest.fixture
def ann(keys, db):
    user = User.objects.create_user("ann", password=PASSWORD)
    Role.objects.create(user=user, source="*", role="operator")
    return user


def give_factor(user) -> list[str]:
    """Give the person KEY, as if enrolled long ago, and return the recovery codes."""
    sealed = config.payload_keys().encrypt(KEY.encode()).decode()
    SecondFactor.objects.create(user=user, sealed=sealed, last_step=0)
    return second_factor.renew_recovery_codes(user)


def code(steps: int = 0, key: str = KEY, now=None) -> str:
    return pyotp.TOTP(key).at(now or timezone.now(), counter_offset=steps)


def log_in(client, name="ann", **more):
    return client.post("/login/", {"username": name, "password": PASSWORD, "next": "/groups/"}, **more)


def is_in(client) -> bool:
    return client.get("/account/").status_code == 200


def acts() -> list[tuple[str, str, bool]]:
    return list(AuditEvent.objects.order_by("id").values_list("act", "object", "allowed"))


def test_the_password_leads_to_the_code_and_the_code_opens_a_new_session(client, ann):
    give_factor(ann)
    planted = client.session
    planted.save()
    client.cookies["sessionid"] = planted.session_key  # known to another person
    assert log_in(client)["Location"] == "/login/code/"
    between = client.session.session_key
    assert between != planted.session_key and not Session.objects.filter(session_key=planted.session_key).exists()
    assert "_auth_user_id" not in client.session and not is_in(client)
    assert client.session.get_expiry_age() <= second_step.WITHIN_S
    wrong = client.post("/login/code/", {"code": "000000" if code() != "000000" else "000001"})
    assert wrong.status_code == 422 and b"You are not logged in" in wrong.content and not is_in(client)
    answer = client.post("/login/code/", {"code": f" {code()[:3]} {code()[3:]}"})
    assert answer["Location"] == "/groups/" and is_in(client)
    assert client.session.session_key != between and not Session.objects.filter(session_key=between).exists()
    assert client.session.get_expiry_age() > 23 * 3600 and second_step._STARTED not in client.session
    assert acts() == [
        ("second_factor.renew_recovery_codes", "user:ann", True), ("login.second_factor", "user:ann", False)
    ]  # fmt: skip
    assert not AccessAttempt.objects.exists(), "codes are counted per account, not with the passwords"


def test_after_ten_mistyped_codes_the_apps_codes_are_locked_and_a_recovery_code_logs_in(client, ann):
    recovery = give_factor(ann)
    log_in(client)
    typo = recovery[0][:-1] + ("2" if recovery[0][-1] != "2" else "3")
    answers = [client.post("/login/code/", {"code": typo}) for _ in range(12)]
    assert {answer.status_code for answer in answers} == {422}
    assert [b"use a recovery code" in answer.content for answer in answers] == [False] * 10 + [True] * 2
    assert client.post("/login/code/", {"code": code()}).status_code == 422 and not is_in(client)
    assert log_in(client)["Location"] == "/login/code/", "the password is not locked"
    assert client.post("/login/code/", {"code": recovery[0]})["Location"] == "/groups/"
    assert b"At least 10 wrong codes were sent for your account" in client.get("/account/").content


def test_codes_sent_from_a_session_count_together_with_those_of_the_sign_in(client, ann):
    recovery, thief = give_factor(ann), Client()
    for browser, one in ((client, code()), (thief, recovery[0])):
        log_in(browser)
        browser.post("/login/code/", {"code": one})
        assert is_in(browser)
    SecondFactor.objects.update(last_step=0)  # so that the code of this moment is unused
    for _ in range(5):
        log_in(Client())
        assert second_factor.check(ann, "x") is Result.WRONG
        answer = thief.post("/account/second-factor/remove/", {"code": "x"}, follow=True)
        assert b"Nothing was changed." in answer.content
    thief.post("/account/second-factor/remove/", {"code": code()})
    assert SecondFactor.objects.get().attempts == 10, "ten were checked, and the correct one after them was not"
    refusals = AuditEvent.objects.filter(allowed=False).order_by("id").values_list("act", "actor")
    assert list(refusals) == [("login.second_factor", "sign-in"), ("second_factor.check", "ann")] * 5
    client.post("/account/second-factor/remove/", {"code": recovery[1]})
    assert not SecondFactor.objects.exists() and is_in(client) and not is_in(thief)


def test_of_ten_thousand_codes_from_ever_new_sessions_and_addresses_a_hundred_are_checked(client, ann):
    give_factor(ann)
    now, results = timezone.now(), []
    for n in range(125):
        if results[-1:] in ([Result.LOCKED], [Result.BLOCKED]):
            now += second_factor.LOCKED_FOR  # as patient as one can be
        results.append(second_factor.check(ann, f"{n:06}", now=now + timedelta(seconds=1)))
    assert results.count(Result.WRONG) == second_factor.BLOCKED_AFTER
    assert results[10] is Result.LOCKED and set(results[-10:]) == {Result.BLOCKED}
    # Of an account that is blocked, the right code lets no one in either, wherever it comes from.
    log_in(client, REMOTE_ADDR="198.51.100.1")
    answer = client.post("/login/code/", {"code": code()}, REMOTE_ADDR="198.51.100.2")
    assert answer.status_code == 422 and b"ask an admin for a reset" in answer.content and not is_in(client)
    refusals = AuditEvent.objects.filter(act="login.second_factor", allowed=False)
    assert refusals.count() == second_factor.BLOCKED_AFTER and "blocked until" in refusals.latest("id").reason


def test_a_lock_ends_after_a_quarter_of_an_hour_and_a_right_code_begins_the_count_again(ann):
    give_factor(ann)
    now = timezone.now()
    for _ in range(second_factor.LOCKED_AFTER):
        second_factor.check(ann, "x", now=now)
    assert second_factor.check(ann, code(now=now), now=now) is Result.LOCKED
    later = now + second_factor.LOCKED_FOR
    assert second_factor.check(ann, code(now=later), now=later) is Result.ACCEPTED
    assert SecondFactor.objects.values_list("attempts", "retry_at").get() == (0, None)


def test_clocks_may_differ_by_one_step_and_not_by_two_and_a_code_counts_once(ann):
    give_factor(ann)
    now = timezone.now()
    for steps, expected in ((-2, "wrong"), (2, "wrong"), (-1, "accepted"), (-1, "wrong"), (0, "accepted"),
                            (1, "accepted"), (1, "wrong"), (0, "wrong")):  # fmt: skip
        assert second_factor.check(ann, code(steps, now=now), now=now).value == expected, steps


def test_a_code_that_was_used_opens_no_second_session(client, ann):
    give_factor(ann)
    used, other = code(), Client()
    for browser in (client, other):
        log_in(browser)
        browser.post("/login/code/", {"code": used})
    assert is_in(client) and not is_in(other)


def test_of_two_requests_that_read_before_either_wrote_one_counts(ann):
    recovery = give_factor(ann)[0].replace("-", "")
    for use, one in ((second_factor._use_code, code()), (second_factor._use_recovery_code, recovery)):
        both = [SecondFactor.objects.get(user=ann) for _ in range(2)]
        assert [use(factor, one, timezone.now()) for factor in both] == [True, False]


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_of_one_code_sent_twice_at_once_one_counts(keys):
    user = User.objects.create_user("ann", password=PASSWORD)
    recovery, results = give_factor(user)[0], []
    for one in (code(), recovery):
        together = threading.Barrier(2)

        def send(one=one, together=together):
            together.wait()
            results.append(second_factor.check(user, one))
            connection.close()

        threads = [threading.Thread(target=send) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert sorted(result.value for result in results) == ["accepted", "recovered", "wrong", "wrong"]


def test_a_recovery_code_counts_once_and_the_person_is_warned_of_the_last_three(client, ann):
    codes = give_factor(ann)
    assert len(set(codes)) == 10 and all(re.fullmatch(r"(\w{4}-){3}\w{4}", one) for one in codes)
    stored = str(list(SecondFactor.objects.values()) + list(ann.redrive_second_factor.recovery_codes.values()))
    assert KEY not in stored and not any(one.replace("-", "") in stored for one in codes)
    for one in codes[:6]:
        assert second_factor.check(ann, one.upper().replace("-", " ")) is Result.RECOVERED
        assert second_factor.check(ann, one) is Result.WRONG
    log_in(client)
    client.post("/login/code/", {"code": codes[6]})
    page = client.get("/account/").content.decode()
    assert "You have 3 recovery codes left." in page and "3 recovery codes left." in page
    assert ("second_factor.recover", "user:ann", True) in acts()


def test_a_sign_in_between_the_steps_ends_with_the_password_the_account_and_ten_minutes(client, ann):
    give_factor(ann)
    for spoil in (lambda: ann.set_password("another horse battery"), lambda: setattr(ann, "is_active", False)):
        assert log_in(client)["Location"] == "/login/code/" and client.get("/login/code/").status_code == 200
        spoil()
        ann.save()
        assert client.post("/login/code/", {"code": code()})["Location"] == "/login/" and not is_in(client)
        ann.is_active = True
        ann.set_password(PASSWORD)
        ann.save()
    log_in(client)
    assert client.get("/login/code/").status_code == 200
    session = client.session
    session[second_step._STARTED] |= {"at": session[second_step._STARTED]["at"] - second_step.WITHIN_S - 1}
    session.save()
    assert client.get("/login/code/")["Location"] == "/login/"


def test_whose_role_requires_it_sets_it_up_before_anything_else(client, ann, keys):
    log_in(client)
    assert is_in(client)
    keys.REDRIVE = keys.REDRIVE | {"SECOND_FACTOR_FOR": ["operator"]}
    identity.forget()  # which a restart with this setting does
    assert not is_in(client)
    assert log_in(client)["Location"] == "/login/set-up/"
    page = client.get("/login/set-up/").content.decode()
    key = re.search(r'class="key">([A-Z2-7 ]+)<', page)[1].replace(" ", "")
    assert f"secret={key}" in page and "<svg" in page and not is_in(client)
    assert client.get("/login/code/")["Location"] == "/login/"
    assert client.post("/login/set-up/", {"code": "000000"}).status_code == 422 and not is_in(client)
    codes = client.post("/login/set-up/", {"code": code(key=key)})
    assert codes["Cache-Control"].count("no-store") and is_in(client)
    shown = re.findall(r"(?:\w{4}-){3}\w{4}", codes.content.decode())
    assert len(shown) == 10 and 'href="/groups/"' in codes.content.decode()
    refused = client.post("/account/second-factor/remove/", {"code": shown[0]}, follow=True)
    assert b"Your role requires a second factor. Nothing was changed." in refused.content
    assert acts() == [("second_factor.enrol", "user:ann", True)]


def test_a_session_is_valid_only_with_the_steps_that_the_person_has(client, ann):
    log_in(client)
    assert is_in(client)
    give_factor(ann)
    identity.forget()
    assert not is_in(client), "opened by the password alone"
    log_in(client)
    client.post("/login/code/", {"code": code()})
    assert is_in(client)
    SecondFactor.objects.all().delete()  # as in a restored database
    identity.forget()
    assert not is_in(client), "opened by a second factor that is gone"


def test_of_two_set_ups_at_the_sign_in_the_second_replaces_nothing(client, ann, keys):
    keys.REDRIVE = keys.REDRIVE | {"SECOND_FACTOR_FOR": ["operator"]}
    thief = Client()
    set_up = []
    for browser in (client, thief):
        log_in(browser)
        set_up.append(browser.session[second_step._STARTED]["key"])
    own, other = (second_factor.open_key(one) for one in set_up)
    client.post("/login/set-up/", {"code": code(key=own)})
    assert is_in(client)
    assert thief.post("/login/set-up/", {"code": code(key=other)})["Location"] == "/login/" and not is_in(thief)
    # Also where both requests read before either wrote.
    assert second_factor.enrol(ann, set_up[1], code(key=other), replaces=False) == []
    assert second_factor.open_key(SecondFactor.objects.get().sealed) == own and is_in(client)


def test_a_sign_in_continued_in_another_tab_is_of_the_person_who_began_it_last(client, ann):
    give_factor(ann)
    bob = User.objects.create_user("bob", password=PASSWORD)
    give_factor(bob)
    for name in ("ann", "bob"):  # two tabs of one browser
        log_in(client, name)
    assert b"Logging in as bob" in client.get("/login/code/").content
    client.post("/login/code/", {"code": code()})
    assert client.session["_auth_user_id"] == str(bob.pk)
    # The form of the first tab is of a sign-in that no longer exists.
    assert client.post("/login/code/", {"code": code(1)})["Location"] == "/login/"
    assert client.session["_auth_user_id"] == str(bob.pk) and SecondFactor.objects.get(user=ann).last_step == 0


def test_a_set_up_from_the_account_page_ends_after_ten_minutes(client, ann):
    log_in(client)
    client.post("/account/second-factor/start/", {"password": PASSWORD})
    assert client.get("/account/second-factor/").status_code == 200
    session = client.session
    session["second_factor_at"] -= second_step.WITHIN_S + 1
    session.save()
    identity.forget()
    key = second_factor.open_key(session["second_factor_key"])
    assert client.post("/account/second-factor/", {"code": code(key=key)})["Location"] == "/account/"
    assert not SecondFactor.objects.exists()


def test_superusers_and_staff_count_as_admins_and_the_setting_names_roles(keys, db):
    keys.REDRIVE = keys.REDRIVE | {"SECOND_FACTOR_FOR": ["admin"]}
    root, staff = User.objects.create_superuser("root"), User.objects.create_user("staff", is_staff=True)
    viewer = User.objects.create_user("viewer")
    Role.objects.create(user=viewer, source="shop", role="operator")
    assert [second_factor.is_required(one) for one in (root, staff, viewer)] == [True, True, False]
    keys.REDRIVE = keys.REDRIVE | {"SECOND_FACTOR_FOR": "owner"}
    with pytest.raises(config.BadConfiguration, match="'owner' is not a role; known: viewer, auditor, operator, admin"):
        second_factor.is_required(root)


def test_doctor_names_the_accounts_that_need_a_second_factor_and_have_none(keys, ann):
    bob, eve, gone = (User.objects.create_user(name, password=PASSWORD) for name in ("bob", "eve", "gone"))
    for user in (bob, gone, User.objects.create_user("of-the-provider")):  # the last has no password
        Role.objects.create(user=user, source="shop", role="operator")
    User.objects.filter(pk=gone.pk).update(is_active=False)
    assert checkup.check_logins().findings == []
    keys.REDRIVE = keys.REDRIVE | {"SECOND_FACTOR_FOR": ["operator"]}
    give_factor(bob)
    (found,) = checkup.check_logins().findings
    assert found.text.startswith("1 account has no second factor") and ": ann. " in found.text
    Role.objects.create(user=eve, source="*", role="operator")
    SecondFactor.objects.all().delete()
    (found,) = checkup.check_logins().findings
    assert found.text.startswith("3 accounts have no second factor") and ": ann, bob, eve. " in found.text
    keys.REDRIVE = keys.REDRIVE | {"OIDC_ONLY": True, "OIDC_ISSUER": "https://id.example.com"}
    assert not config.takes_passwords() and checkup.check_logins().findings == []


def test_the_admin_has_no_login_of_its_own(client, ann):
    give_factor(ann)
    User.objects.filter(pk=ann.pk).update(is_staff=True)
    answer = client.post("/admin/login/?next=/admin/", {"username": "ann", "password": PASSWORD})
    assert answer["Location"].startswith("/login/") and "_auth_user_id" not in client.session
    log_in(client)
    client.post("/login/code/", {"code": code()})
    assert client.get("/admin/login/")["Location"] == "/admin/" and client.get("/admin/").status_code == 200


def test_one_sets_it_up_replaces_and_removes_it_and_other_sessions_end(client, ann):
    other = Client()
    for browser in (client, other):
        log_in(browser)
    assert (
        b"Wrong password. Nothing was changed."
        in client.post("/account/second-factor/start/", {"password": "wrong"}, follow=True).content
    )
    assert client.get("/account/second-factor/")["Location"] == "/account/"
    client.post("/account/second-factor/start/", {"password": PASSWORD})
    before = client.session.session_key
    key = second_factor.open_key(client.session["second_factor_key"])
    page = client.post("/account/second-factor/", {"code": code(key=key)}).content.decode()
    codes = re.findall(r"(?:\w{4}-){3}\w{4}", page)
    assert 'data-copy-text="#codes"' in page and "js/channels" in page
    assert is_in(client) and not is_in(other) and client.session.session_key != before
    renewed = client.post("/account/recovery-codes/", {"code": codes[0]}).content.decode()
    codes, ended = re.findall(r"(?:\w{4}-){3}\w{4}", renewed), codes[1]
    refused = client.post("/account/second-factor/start/", {"code": ended}, follow=True).content.decode()
    assert "This code is wrong" in refused and "second_factor_key" not in client.session
    client.post("/account/second-factor/start/", {"code": codes[0]})
    assert client.get("/account/second-factor/").status_code == 200
    client.post("/account/second-factor/remove/", {"code": codes[1]})
    assert is_in(client) and not SecondFactor.objects.exists()
    assert [act for act, _, allowed in acts() if allowed] == [
        "second_factor.enrol", "second_factor.recover", "second_factor.renew_recovery_codes", "second_factor.recover",
        "second_factor.recover", "second_factor.remove",
    ]  # fmt: skip


def test_a_session_that_a_change_of_the_factor_ended_does_not_count_again_with_the_next(client, ann):
    def set_up(**proof):
        client.post("/account/second-factor/start/", proof)
        key = second_factor.open_key(client.session["second_factor_key"])
        page = client.post("/account/second-factor/", {"code": code(key=key)}).content.decode()
        return re.findall(r"(?:\w{4}-){3}\w{4}", page)

    def steal(recovery=None):
        thief = Client()
        log_in(thief)
        if recovery:
            thief.post("/login/code/", {"code": recovery})
        assert is_in(thief)
        return thief

    thief = steal()
    log_in(client)
    codes = set_up(password=PASSWORD)
    client.post("/account/second-factor/remove/", {"code": codes[0]})
    assert is_in(client) and not is_in(thief)
    codes = set_up(password=PASSWORD)
    thief = steal(codes[0])
    codes = set_up(code=codes[1])
    assert is_in(client) and not is_in(thief)
    thief = steal(codes[0])
    call_command("second_factor", "reset", "ann", stderr=StringIO())
    assert not sign_ins.list_open(ann).exists(), "deleted, not only refused"
    log_in(client)
    set_up(password=PASSWORD)
    assert is_in(client) and not is_in(thief)


def test_of_an_account_that_is_locked_or_blocked_a_recovery_code_counts(ann):
    codes = give_factor(ann)
    for attempts, expected in ((10, Result.LOCKED), (100, Result.BLOCKED)):
        until = timezone.now() + second_factor.LOCKED_FOR
        SecondFactor.objects.update(attempts=attempts, retry_at=until)
        assert second_factor.check(ann, code()) is expected
        assert second_factor.check(ann, codes.pop()) is Result.RECOVERED
        assert SecondFactor.objects.values_list("attempts", "retry_at").get() == (0, None)


def test_after_a_rotation_of_keys_codes_count_without_the_old_key(ann, keys):
    give_factor(ann)
    [old], new = keys.REDRIVE["PAYLOAD_KEYS"], Fernet.generate_key().decode()

    def use(*given):
        keys.REDRIVE = keys.REDRIVE | {"PAYLOAD_KEYS": list(given)}
        config.payload_keys.cache_clear()

    use(new)
    assert second_factor.check(ann, code()) is Result.UNREADABLE
    use(new, old)
    while key_rotation.step():
        pass
    use(new)
    assert second_factor.check(ann, code()) is Result.ACCEPTED


def test_a_person_sees_and_ends_their_sessions_and_no_one_elses(client, ann, keys):
    here, phone, stranger = client, Client(), Client()
    log_in(here, headers={"User-Agent": FIREFOX})
    log_in(phone, REMOTE_ADDR="203.0.113.9")
    User.objects.create_user("bob", password=PASSWORD)
    log_in(stranger, "bob", headers={"User-Agent": "curl/8.1"})
    page = here.get("/account/").content.decode()
    assert (
        "Firefox on Linux" in page and "203.0.113.9" in page and page.count("This session") == 1 and "curl" not in page
    )
    theirs, phones = SignIn.objects.get(user__username="bob").pk, SignIn.objects.get(address="203.0.113.9").pk
    own = SignIn.objects.get(session_key=here.session.session_key).pk
    for pk in (theirs, own, "x", 10**12):
        answer = here.post("/account/sessions/end/", {"session": pk}, follow=True)
        assert b"No such session is open." in answer.content
    assert is_in(here) and is_in(phone) and is_in(stranger)
    here.post("/account/sessions/end/", {"session": phones})
    assert not is_in(phone)
    log_in(phone)
    here.post("/account/sessions/end/", {"session": "others"})
    assert is_in(here) and is_in(stranger) and not is_in(phone)
    assert acts() == [("session.end", "user:ann", True)] * 2


def test_a_person_changes_their_password_and_stays_logged_in_here_only(client, ann, keys):
    here, phone = client, Client()
    log_in(here), log_in(phone)
    new = "four green bottles"
    given = {"password": PASSWORD, "new_password": new, "repeated": new}
    for wrong, why in (
        ({"password": "x"}, "Wrong password."),
        ({"repeated": "four"}, "The two new passwords differ."),
        ({"new_password": "short", "repeated": "short"}, "This password is too short."),
    ):
        answer = here.post("/account/password/", given | wrong, follow=True)
        assert why in answer.content.decode() and "Nothing was changed." in answer.content.decode()
        assert User.objects.get(username="ann").check_password(PASSWORD) and acts() == []
    page = here.post("/account/password/", given, follow=True).content.decode()
    assert "Your password is changed." in page and page.count("This session") == 1
    assert User.objects.get(username="ann").check_password(new)
    assert is_in(here) and not is_in(phone) and acts() == [("user.password", "user:ann", True)]
    assert SignIn.objects.count() == 1


def test_a_session_that_got_another_key_is_listed_again_and_ended_ones_go(client, ann):
    log_in(client)
    session = client.session
    session.cycle_key()  # as a change of one's own password does
    client.cookies["sessionid"] = session.session_key
    page = client.get("/account/").content.decode()
    assert page.count("This session") == 1 and SignIn.objects.count() == 1


@pytest.fixture
def file_database(tmp_path, django_db_blocker):
    """A desk's tables in an SQLite file, with the waiting time that a desk has."""
    migrated.into(tmp_path)
    usual = connections["default"]
    with django_db_blocker.unblock():
        connections["default"] = usual.copy()
        connections["default"].settings_dict |= env.database(f"sqlite:///{tmp_path / 'redrive.sqlite3'}")
        identity.forget()
        try:
            yield tmp_path / "redrive.sqlite3"
        finally:
            connections["default"].close()
            connections["default"] = usual
            identity.forget()


@pytest.mark.sqlite
@pytest.mark.parametrize("hindrance", ["locked", "not writable"])
def test_pages_of_a_database_that_cannot_be_written_answer_without_waiting_for_it(file_database, client, hindrance):
    user = User.objects.create_superuser("ann", password=PASSWORD)
    client.force_login(user)
    SignIn.objects.all().delete()
    waits = []

    def watch(execute, sql, params, many, context):
        try:
            return execute(sql, params, many, context)
        except OperationalError:
            waits.append(connection.connection.execute("PRAGMA busy_timeout").fetchone()[0])
            raise

    with closing(sqlite3.connect(file_database, isolation_level=None)) as other, connection.execute_wrapper(watch):
        if hindrance == "locked":
            other.execute("BEGIN IMMEDIATE")
        else:
            connection.cursor().execute("PRAGMA query_only = ON")
        for address in ("/account/", "/groups/"):
            web_sign_ins._seen.clear()
            assert client.get(address).status_code == 200
    assert waits == [200, 200], "each page tried once, with a short wait"
    assert connection.cursor().execute("PRAGMA busy_timeout").fetchone()[0] == 20_000
    connection.cursor().execute("PRAGMA query_only = OFF")
    web_sign_ins._seen.clear()
    assert b"This session" in client.get("/account/").content and SignIn.objects.count() == 1


def test_a_read_only_desk_records_logins_only(client, ann, keys):
    keys.REDRIVE = keys.REDRIVE | {"READ_ONLY": True}
    log_in(client)
    assert b"This session" in client.get("/account/").content
    SignIn.objects.all().delete()
    web_sign_ins._seen.clear()
    assert is_in(client) and not SignIn.objects.exists()


def test_a_session_without_a_record_is_ended_with_the_others(client, ann):
    old, stranger, bob = Client(), Client(), User.objects.create_user("bob", password=PASSWORD)
    for browser, user in ((client, ann), (old, ann), (stranger, bob)):
        browser.force_login(user)
    SignIn.objects.all().delete()  # as those of the release before the records
    client.post("/account/sessions/end/", {"session": "others"})
    assert is_in(client) and is_in(stranger) and not is_in(old)
    old.force_login(ann)
    SignIn.objects.all().delete()
    assert sign_ins.end(viewer_of(bob), ann) == 2 and is_in(stranger) and not is_in(client) and not is_in(old)


def test_a_login_after_a_sign_in_that_stopped_at_the_code_has_the_usual_expiry(client, ann):
    give_factor(ann)
    log_in(client)
    User.objects.create_user("bob", password=PASSWORD)
    log_in(client, "bob")
    assert client.session.get_expiry_age() > 23 * 3600 and second_step._STARTED not in client.session


def test_an_admin_resets_a_second_factor_and_ends_sessions_of_those_with_no_more_rights(as_, ann):
    give_factor(ann)
    root, phone = as_(), Client()
    boss = User.objects.create_superuser("boss", password=PASSWORD)
    give_factor(boss)
    for act in ("end_sessions", "reset_second_factor"):
        log_in(phone)
        phone.post("/login/code/", {"code": second_factor.renew_recovery_codes(ann)[0]})
        assert is_in(phone)
        root.post("/admin/auth/user/", {"action": act, "_selected_action": ann.pk})
        assert not is_in(phone)
    assert ("second_factor.reset", "user:ann", True) in acts() and not SecondFactor.objects.filter(user=ann).exists()
    assert acts().count(("session.end", "user:ann", True)) == 2
    assert log_in(phone)["Location"] == "/groups/"
    helper = User.objects.create_user("helper", is_staff=True)
    helper.user_permissions.set(Permission.objects.filter(codename__in=["change_user", "view_user"]))
    root.force_login(helper)
    root.post("/admin/auth/user/", {"action": "reset_second_factor", "_selected_action": boss.pk})
    assert SecondFactor.objects.filter(user=boss).exists()
    call_command("second_factor", "reset", "boss", stderr=StringIO())
    with pytest.raises(CommandError, match="boss has no second factor"):
        call_command("second_factor", "reset", "boss")


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (FIREFOX, "Firefox on Linux"), ("curl/8.1", "curl"), ("", "unknown"), ("<b>x</b>/1", "bx"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605 Version/18 Safari/604", "Safari on iOS"),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
    ],
)  # fmt: skip
def test_a_browser_is_named_as_people_do(agent, name):
    assert browser_name(agent) == name
