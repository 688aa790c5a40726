"""Sign-in by OpenID Connect: who is let in, with which roles; and who is not, whatever a provider or a stranger sends."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.test import Client

from dashboard.setup import checkup, environment
from dashboard.web import sign_on
from dashboard.web.middleware import identity
from jobs_admin.models import ApiToken, AuditEvent, Identity, Role
from jobs_admin.models.access import viewer_of_token
from jobs_admin.rights.sign_on import Person, admit, roles_of
from tests.kit.openid import CLIENT, ROLES, go_to_provider, sign_in

User = get_user_model()
real = pytest.mark.extras  # a real provider


def who(client):
    """The name of the account that is logged in; "" for no one."""
    page = client.get("/failures/")
    return page.wsgi_request.user.get_username() if page.status_code == 200 else ""


def roles(name):
    return dict(Role.objects.filter(user__username=name).values_list("source", "role"))


def login_text(client):
    """The sentences on the login page."""
    return " ".join(client.get("/login/").content.decode().split())


def signed(claims, header, key, **changed):
    from joserfc import jwt

    claims = {name: value for name, value in (claims | changed).items() if value is not None}
    return jwt.encode({"alg": "RS256", **{k: v for k, v in header.items() if k == "kid"}}, claims, key)


def unsigned(header, claims):
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (header, claims))
        + "."
    )


def by_public_key(claims, header, key):
    """HS256 with the provider's public key as the secret, as a verifier would read it that believes the header."""
    content = unsigned({"alg": "HS256"}, claims).rstrip(".")
    mac = hmac.new(key.as_pem(private=False), content.encode(), hashlib.sha256).digest()
    return f"{content}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def by_client_secret(claims, header, key):
    from joserfc import jwt
    from joserfc.jwk import OctKey

    secret = OctKey.import_key("s3cret+/ of the desk".ljust(32))
    return jwt.encode({"alg": "HS256"}, claims, secret, algorithms=["HS256"])


def by_another_key(claims, header, key):
    return signed(claims, header, type(key).generate_key(2048))


def by_a_key_of_the_header(claims, header, key):
    from joserfc import jwt

    own = type(key).generate_key(2048)
    return jwt.encode({"alg": "RS256", "jwk": own.as_dict(private=False)}, claims, own)


NOW = time.time
FORGED = {
    "expired": lambda c, h, k: signed(c, h, k, exp=int(NOW()) - 90, iat=int(NOW()) - 400),
    "without an end": lambda c, h, k: signed(c, h, k, exp=None),
    "of the future": lambda c, h, k: signed(c, h, k, iat=int(NOW()) + 90),
    "not valid yet": lambda c, h, k: signed(c, h, k, nbf=int(NOW()) + 90),
    "another audience": lambda c, h, k: signed(c, h, k, aud="another-desk"),
    "no audience": lambda c, h, k: signed(c, h, k, aud=None),
    "ours among audiences, given to another": lambda c, h, k: signed(c, h, k, aud=[CLIENT, "x"], azp="x"),
    "ours among audiences, given to no one": lambda c, h, k: signed(c, h, k, aud=[CLIENT, "x"], azp=None),
    "another nonce": lambda c, h, k: signed(c, h, k, nonce="another"),
    "no nonce": lambda c, h, k: signed(c, h, k, nonce=None),
    "another issuer": lambda c, h, k: signed(c, h, k, iss="https://id.example.com"),
    "the issuer with a slash": lambda c, h, k: signed(c, h, k, iss=c["iss"] + "/"),
    "no issuer": lambda c, h, k: signed(c, h, k, iss=None),
    "no subject": lambda c, h, k: signed(c, h, k, sub=None),
    "a number as subject": lambda c, h, k: signed(c, h, k, sub=7),
    "an empty subject": lambda c, h, k: signed(c, h, k, sub=""),
    "a long subject": lambda c, h, k: signed(c, h, k, sub="s" * 256),
    "a subject with NUL": lambda c, h, k: signed(c, h, k, sub="a\x00"),
    "of another access token": lambda c, h, k: signed(c, h, k, at_hash="AAAAAAAAAAAAAAAAAAAAAA"),
    "another key": by_another_key,
    "a key of its own header": by_a_key_of_the_header,
    "algorithm none": lambda c, h, k: unsigned({"alg": "none"}, c),
    "HS256 by the public key": by_public_key,
    "HS256 by the secret": by_client_secret,
    "a changed claim": lambda c, h, k: signed(c, h, k).replace(".", "." + unsigned({"a": 1}, c).split(".")[1] + ".", 1),
    "no signature": lambda c, h, k: signed(c, h, k).rsplit(".", 1)[0] + ".",
    "no token": lambda c, h, k: "",
    "a number": lambda c, h, k: 7,
    "a list": lambda c, h, k: [],
}


@real
@pytest.mark.parametrize("forgery", FORGED)
def test_a_token_that_is_not_the_providers_for_this_sign_in_lets_no_one_in(client, provider, forgery):
    provider.put_person("ann", groups=["platform"])
    provider.tamper = FORGED[forgery]
    answer = sign_in(client)
    assert (answer.status_code, answer["Location"]) == (302, "/login/")
    assert who(client) == "" and not User.objects.exists() and not Identity.objects.exists()
    assert "The provider’s answer was refused. You were not logged in." in login_text(client)
    [event] = AuditEvent.objects.all()
    assert (event.actor, event.act, event.allowed) == ("sign-on", "login.sign_on", False)
    assert event.reason.startswith("the ID token")
    provider.tamper = None  # the same person comes in once the provider is itself again
    assert sign_in(client).status_code == 302 and who(client) == "ann"


@real
def test_a_person_is_let_in_with_the_roles_of_their_groups(client, provider):
    provider.put_person(
        "ann", groups=["staff", "oncall", "unknown"], preferred_username="ann.b", email="ann@example.com"
    )
    page = " ".join(client.get("/login/?next=/groups/").content.decode().split())
    assert 'href="/login/sign-on/?next=%2Fgroups%2F">Sign in with Acme ID</a>' in page and 'name="password"' in page
    answer = sign_in(client, after="/groups/?q=x")
    assert (answer["Location"], answer["Cache-Control"]) == ("/groups/?q=x", "no-store")
    assert who(client) == "ann.b" and roles("ann.b") == {"shop": "operator", "bank": "viewer"}
    user = User.objects.get()
    assert not user.has_usable_password() and not user.is_staff and not user.is_superuser
    [event] = AuditEvent.objects.all()
    assert (event.actor, event.object, event.allowed) == ("ann.b", "user:ann.b", True)
    assert event.after["roles"] == {"shop": "operator", "bank": "viewer"} and event.after["subject"] == "ann"
    assert 0 < client.session.get_expiry_age() <= 24 * 3600 and client.session.get_expiry_age() > 23 * 3600
    assert client.post("/logout/")["Location"] == "/login/" and who(client) == ""


@real
def test_a_changed_group_changes_the_role_and_a_lost_one_takes_all_rights(client, provider):
    provider.put_person("ann", groups=["platform"])
    sign_in(client)
    user = User.objects.get()
    assert roles("ann") == {"*": "admin"} and user.is_staff
    token = ApiToken.objects.create(name="t", sha256="0" * 64, role="admin", owner=user)
    Role.objects.create(user=user, source="elsewhere", role="admin")  # given in Django's admin
    User.objects.filter(pk=user.pk).update(is_superuser=True)
    provider.put_person("ann", groups=["staff"], preferred_username="renamed")
    again = Client()
    sign_in(again)
    user.refresh_from_db()
    assert (User.objects.count(), user.username, user.is_staff, user.is_superuser) == (1, "ann", False, False)
    assert roles("ann") == {"shop": "viewer", "bank": "viewer"} == viewer_of_token(token).roles
    provider.put_person("ann", groups=["unknown"])
    third = Client()
    assert sign_in(third)["Location"] == "/login/" and who(third) == ""
    assert "None of your groups has a role on this desk. You were not logged in. Ask an admin" in login_text(third)
    assert roles("ann") == {} and not viewer_of_token(token).roles
    assert client.get("/failures/").status_code == again.get("/failures/").status_code == 403  # the open sessions, too
    assert [event.allowed for event in AuditEvent.objects.order_by("id") if event.act == "login.sign_on"] == [
        True,
        True,
        False,
    ]


@real
@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        (["unknown"], "None of your groups"),
        (None, "reported no groups (claim “groups”)"),
        (7, "reported no groups"),
        ([["platform"], {}], "reported no groups"),
    ],
)
def test_a_person_without_a_mapped_group_has_no_account(client, provider, groups, sentence):
    provider.put_person("ann", **({} if groups is None else {"groups": groups}))
    assert sign_in(client)["Location"] == "/login/"
    assert who(client) == "" and sentence in login_text(client) and not User.objects.exists()
    assert AuditEvent.objects.get().actor == "sign-on ann" and not AuditEvent.objects.get().allowed


@real
def test_groups_may_be_in_the_userinfo_alone_and_only_of_the_same_subject(client, provider):
    provider.put_person("ann", groups=["platform"])
    provider.tamper = lambda c, h, k: signed(c, h, k, groups=None)
    provider.answers["/userinfo"] = 200, {"sub": "bob", "groups": ["platform"]}
    sign_in(client)
    assert who(client) == "" and not User.objects.exists()
    del provider.answers["/userinfo"]
    sign_in(client)
    assert who(client) == "ann" and roles("ann") == {"*": "admin"}


@real
def test_the_account_is_of_issuer_and_subject_and_never_of_a_name_or_a_mail(client, provider):
    local = User.objects.create_user("ann", email="ann@example.com", password="correct horse battery")
    provider.put_person("42", groups=["staff"], preferred_username="ANN", email="ann@example.com", email_verified=True)
    sign_in(client, subject="42")
    assert who(client) == "ANN-2" and not Role.objects.filter(user=local).exists()
    provider.put_person("43", groups=["staff"], preferred_username="ann", email="ann@example.com")
    sign_in(other := Client(), subject="43")
    assert who(other) == "ann-3"
    for subject, name in (("44", "redrive"), ("45", "Controller"), ("46", "token x\u202e"), ("47", "up")):
        provider.put_person(subject, groups=["staff"], preferred_username=name)
        sign_in(one := Client(), subject=subject)
        assert who(one) == {"44": "redrive-2", "45": "Controller-2", "46": "token-x-", "47": "up-2"}[subject]
    assert Identity.objects.count() == 6


@real
def test_a_deactivated_account_stays_out(client, provider):
    provider.put_person("ann", groups=["platform"])
    sign_in(client)
    User.objects.update(is_active=False)
    sign_in(other := Client())
    assert who(other) == who(client) == "" and "Your account on this desk is deactivated." in login_text(other)


@real
def test_state_and_code_count_once_and_in_the_browser_that_started(client, provider):
    provider.put_person("ann", groups=["platform"])
    answer = go_to_provider(client)
    for stranger in (Client(), client_with_a_start()):  # the answer is handed to another browser
        assert stranger.get(answer)["Location"] == "/login/" and who(stranger) == ""
    query = parse_qs(urlsplit(answer).query)
    assert client.get(answer.replace(query["state"][0], "x" * 48))["Location"] == "/login/" and who(client) == ""
    assert client.get(answer)["Location"] == "/login/" and who(client) == ""  # that was its one answer
    assert "was not started in this browser, was used already, or took longer than 10 minutes" in login_text(client)
    assert provider.calls.count("/oauth2/token") == 0 and not User.objects.exists()
    used = go_to_provider(client)
    assert client.head(used)["Location"] == "/login/" and who(client) == ""  # a link scanner
    client.get(used)
    assert who(client) == "ann"
    client.post("/logout/")
    assert client.get(used)["Location"] == "/login/" and who(client) == ""
    # A code that was used, under a state of one's own.
    fresh = parse_qs(urlsplit(client.get("/login/sign-on/")["Location"]).query)["state"][0]
    old = parse_qs(urlsplit(used).query)["code"][0]
    assert client.get("/login/sign-on/callback/", {"state": fresh, "code": old})["Location"] == "/login/"
    assert who(client) == ""


def client_with_a_start():
    client = Client()
    assert client.get("/login/sign-on/").status_code == 302
    return client


@real
def test_a_code_of_another_start_fails_pkce(client, provider):
    provider.put_person("ann", groups=["platform"])
    stolen = parse_qs(urlsplit(go_to_provider(Client())).query)["code"][0]
    provider.challenges.clear()
    state = parse_qs(urlsplit(client.get("/login/sign-on/")["Location"]).query)["state"][0]
    client.get("/login/sign-on/callback/", {"state": state, "code": stolen})
    assert who(client) == "" and "/oauth2/token answers 400" in AuditEvent.objects.get().reason


@real
def test_a_late_answer_is_refused(client, provider):
    provider.put_person("ann", groups=["platform"])
    answer = go_to_provider(client)
    session = client.session
    session["sign_on"] = session["sign_on"] | {"at": session["sign_on"]["at"] - sign_on.WITHIN_S - 5}
    session.save()
    client.get(answer)
    assert who(client) == "" and client.session.get_expiry_age() <= sign_on.WITHIN_S  # the row of a stranger ends soon
    User.objects.create_superuser("local", password="correct horse battery")
    client.post("/login/", {"username": "local", "password": "correct horse battery"})
    assert "_auth_user_id" in client.session and client.session.get_expiry_age() > 23 * 3600


@real
def test_an_answer_of_another_issuer_is_refused(client, provider):
    provider.put_person("ann", groups=["platform"])
    client.get(f"{go_to_provider(client)}&iss=https://id.example.com")
    assert who(client) == "" and "of issuer 'https://id.example.com'" in AuditEvent.objects.latest("id").reason
    client.get(f"{go_to_provider(client)}&iss={provider.issuer}")
    assert who(client) == "ann"
    # A provider that names itself in every answer, and does not in this one.
    metadata = httpx.get(f"{provider.issuer}/.well-known/openid-configuration").json()
    provider.answers["/.well-known/openid-configuration"] = (
        200,
        metadata | {"authorization_response_iss_parameter_supported": True},
    )
    sign_on._metadata.clear()
    sign_in(other := Client())
    assert who(other) == ""


@real
def test_a_refusal_of_the_provider_is_one_of_the_desk(client, provider):
    state = parse_qs(urlsplit(client.get("/login/sign-on/")["Location"]).query)["state"][0]
    answer = client.get(
        "/login/sign-on/callback/", {"state": state, "error": "access_denied", "error_description": "<b>x"}
    )
    assert answer["Location"] == "/login/" and "<b>x" not in login_text(client) and who(client) == ""
    assert AuditEvent.objects.get().reason == "error 'access_denied'"


@real
def test_keys_are_rotated_without_a_restart_and_an_old_key_ends(client, provider):
    provider.put_person("ann", groups=["platform"])
    sign_in(client)
    assert who(client) == "ann"
    old = provider.rotate_key()
    sign_in(second := Client())
    assert who(second) == "ann"
    provider.tamper = lambda c, h, k: signed(c, {}, old)
    sign_in(third := Client())
    assert who(third) == ""


@real
@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/.well-known/openid-configuration", (500, {})),
        ("/.well-known/openid-configuration", (200, b"<html>")),
        ("/.well-known/openid-configuration", (200, [])),
        ("/.well-known/openid-configuration", (200, b"[" * 100_000)),
        ("/.well-known/openid-configuration", (200, {"issuer": "https://id.example.com"})),
        ("/.well-known/openid-configuration", (302, {})),
        ("/jwks", (503, {})),
        ("/jwks", (200, {"keys": []})),
        ("/jwks", (200, {"keys": [{"kty": "RSA", "n": 1}]})),
        ("/jwks", (200, {"keys": 7})),
        ("/jwks", (200, b"x" * 1_100_000)),
        ("/oauth2/token", (502, b"bad gateway")),
        ("/oauth2/token", (200, {})),
        ("/oauth2/token", (401, {"error": "invalid_client"})),
    ],
)
def test_a_broken_provider_is_a_sentence_and_passwords_work(client, provider, path, answer):
    provider.put_person("ann", groups=["platform"])
    provider.answers[path] = answer
    started = client.get("/login/sign-on/", {"next": "/groups/"})
    if started["Location"].startswith(provider.issuer):
        started = sign_in(client)
    assert started.status_code == 302 and started["Location"].startswith("/login/")
    assert "You were not logged in." in login_text(client) and who(client) == ""
    User.objects.create_user("local", password="correct horse battery")
    client.post("/login/", {"username": "local", "password": "correct horse battery"})
    assert "_auth_user_id" in client.session and client.session.get_expiry_age() > 23 * 3600


@real
def test_a_slow_provider_leaves_a_thread_free_and_a_broken_one_gets_no_request_at_each_start(client, provider):
    described = "/.well-known/openid-configuration"
    provider.answers[described] = 503, {}
    for _ in range(3):
        assert client.get("/login/sign-on/")["Location"] == "/login/"
    assert provider.calls.count(described) == 1
    provider.answers.clear()
    sign_on._metadata.clear()
    for _ in range(sign_on._AT_ONCE):
        sign_on._requests.acquire()
    try:
        assert client.get("/login/sign-on/")["Location"] == "/login/"
    finally:
        for _ in range(sign_on._AT_ONCE):
            sign_on._requests.release()
    assert "Too many people are signing in. You were not logged in." in login_text(client)
    assert provider.calls.count(described) == 1
    assert client.get("/login/sign-on/")["Location"].startswith(provider.issuer)


@real
def test_a_provider_that_is_down_is_a_sentence_and_doctor_names_it(client, fresh_provider, settings):
    [finding] = checkup.check_sign_on().findings  # the provider answers
    assert finding.text == "REDRIVE_OIDC_ROLES gives roles on sources that are not configured: bank, shop."
    settings.REDRIVE = settings.REDRIVE | {"OIDC_ROLES": "admin=platform"}
    provider = fresh_provider
    assert not checkup.check_sign_on().findings
    provider.close()
    assert client.get("/login/sign-on/", {"next": "/groups/"})["Location"].startswith(
        provider.issuer
    )  # read a moment ago
    sign_on._metadata.clear()
    assert client.get("/login/sign-on/", {"next": "/groups/"})["Location"] == "/login/?next=%2Fgroups%2F"
    assert "The sign-in provider is unreachable or misconfigured. You were not logged in." in login_text(client)
    [finding] = checkup.check_sign_on().findings
    assert finding.severity == "high" and "does not answer (ConnectError)" in finding.text


@real
@pytest.mark.parametrize("endpoint", ["authorization_endpoint", "token_endpoint", "jwks_uri"])
@pytest.mark.parametrize("url", ["http://id.example.com/x", "ftp://127.0.0.1/", "//x", None, "javascript:alert(1)"])
def test_secret_and_tokens_go_only_where_they_cannot_be_read(client, provider, endpoint, url):
    metadata = httpx.get(f"{provider.issuer}/.well-known/openid-configuration").json()
    provider.answers["/.well-known/openid-configuration"] = 200, metadata | {endpoint: url}
    assert client.get("/login/sign-on/")["Location"] == "/login/"
    assert endpoint in AuditEvent.objects.get().reason


@real
@pytest.mark.parametrize(
    "after",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "/login/",
        "/login/sign-on/",
        "/logout/",
        "javascript:x",
        "/nowhere/",
    ],
)
def test_a_sign_in_leads_only_to_pages_of_this_desk(client, provider, after):
    provider.put_person("ann", groups=["platform"])
    assert sign_in(client, after=after)["Location"] == "/"


@real
def test_without_passwords_the_provider_is_the_only_way_in(client, provider, settings):
    User.objects.create_superuser("local", password="correct horse battery")
    inside = Client()
    inside.post("/login/", {"username": "local", "password": "correct horse battery"})
    assert who(inside) == "local"
    settings.REDRIVE = settings.REDRIVE | {"OIDC_ONLY": True}
    settings.AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", sign_on.BACKEND]
    identity.forget()  # which a restart with this setting does
    assert who(inside) == ""  # the session of a password ends
    assert 'name="password"' not in client.get("/login/").content.decode()
    for path in ("/login/", "/admin/login/"):
        client.post(path, {"username": "local", "password": "correct horse battery"})
        assert "_auth_user_id" not in client.session
    provider.put_person("ann", groups=["platform"])
    sign_in(client)
    assert who(client) == "ann"


@real
def test_a_flood_of_refusals_fills_the_log_and_not_the_audit(client, provider, monkeypatch, caplog):
    monkeypatch.setattr(sign_on, "_recorded", sign_on.deque(maxlen=sign_on._RECORDED))
    for _ in range(sign_on._RECORDED + 5):
        client.get("/login/sign-on/callback/?state=x&code=y")
    assert AuditEvent.objects.count() == sign_on._RECORDED and not Session.objects.exists()
    for _ in range(3):
        Client().get("/login/sign-on/")
        assert Session.objects.count() == 1
        Session.objects.update(expire_date="2026-01-01T00:00Z")
    assert caplog.text.count("was refused") == sign_on._RECORDED + 5


@pytest.mark.django_db
def test_a_desk_without_a_provider_shows_and_answers_nothing_of_it(client):
    assert "login/sign-on" not in client.get("/login/").content.decode()
    for path in ("/login/sign-on/", "/login/sign-on/callback/?state=x&code=y"):
        assert client.get(path)["Location"] == "/login/"
    assert not AuditEvent.objects.exists() and "sessionid" not in client.cookies


@pytest.mark.django_db
def test_the_strongest_role_of_all_groups_counts_at_each_source(settings):
    settings.REDRIVE = settings.REDRIVE | {"OIDC_ROLES": f"{ROLES}\nviewer:shop = cn=Ops, ou=x,dc=y\nauditor=audit"}
    assert roles_of({"staff", "oncall"}) == {"shop": "operator", "bank": "viewer"}
    assert roles_of({"cn=Ops, ou=x,dc=y"}) == {"shop": "viewer"} and roles_of({"Staff", "ops"}) == {}
    assert roles_of({"audit", "staff"}) == {"*": "auditor", "shop": "viewer", "bank": "viewer"}
    person = Person("https://id", "1", "x" * 300, frozenset({"staff"}))
    assert len(admit(person).user.username) <= 150 and admit(person).user == User.objects.get()


GIVEN = {
    "REDRIVE_OIDC_ISSUER": "https://id.example.com", "REDRIVE_OIDC_CLIENT_ID": "redrive", "REDRIVE_OIDC_CLIENT_SECRET": "s",
    "REDRIVE_OIDC_ROLES": ROLES,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("ISSUER", "http://id.example.com", "must be https://"), ("ISSUER", "id.example.com", "must be https://"),
        ("ISSUER", "https://u:p@id.example.com", "must be https://"), ("ISSUER", "https://id.example.com?x", "must be https://"),
        ("ISSUER", "", "REDRIVE_OIDC_ONLY needs REDRIVE_OIDC_ISSUER"), ("CLIENT_ID", "", "needs REDRIVE_OIDC_CLIENT_ID too"),
        ("CLIENT_SECRET", "", "needs REDRIVE_OIDC_CLIENT_SECRET too"), ("ROLES", "", "needs REDRIVE_OIDC_ROLES too"),
        ("ROLES", "owner=x", "'owner=x' gives no role to a group"), ("ROLES", "admin:", "gives no role to a group"),
        ("ROLES", "admin:Shop!=x", "gives no role"), ("ONLY", "perhaps", "must be 1 or 0"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used_end_the_start(monkeypatch, name, value, sentence):
    for one, given in (GIVEN | {"REDRIVE_OIDC_ONLY": "1", f"REDRIVE_OIDC_{name}": value}).items():
        monkeypatch.setenv(one, given)
    with pytest.raises(environment.Misconfigured, match=sentence):
        environment.redrive()


def test_a_start_without_the_library_names_the_extra(monkeypatch):
    for one, given in GIVEN.items():
        monkeypatch.setenv(one, given)
    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    with pytest.raises(environment.Misconfigured, match=r"run `pip install 'redrive\[oidc\]'`. Nothing was started."):
        environment.redrive()


def test_the_secret_may_be_in_a_file(monkeypatch, tmp_path):
    (tmp_path / "secret").write_text("from a file\n")
    for one, given in GIVEN.items():
        monkeypatch.setenv(one, given)
    monkeypatch.delenv("REDRIVE_OIDC_CLIENT_SECRET")
    monkeypatch.setenv("REDRIVE_OIDC_CLIENT_SECRET_FILE", str(tmp_path / "secret"))
    monkeypatch.setattr(environment, "find_spec", lambda name: name)
    assert environment.redrive()["OIDC_CLIENT_SECRET"] == "from a file"
