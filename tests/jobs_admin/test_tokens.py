from __future__ import annotations

import hashlib
import io
import json
import re
from datetime import UTC, datetime, timedelta
from inspect import Parameter, signature
from ipaddress import ip_network

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from dashboard.web import access
from dashboard.web.access import viewer_of_header, viewer_of_token
from dashboard.web.middleware.identity import holder
from jobs_admin import config
from jobs_admin.models import ApiToken, AuditEvent, Failure, Role
from tests.kit.sources import forget_configuration

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 2, 14, tzinfo=UTC)


def run(*words):
    out, err = io.StringIO(), io.StringIO()
    call_command(*words, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def viewer(token, address="203.0.113.9"):
    return viewer_of_token(token.strip(), meta={"REMOTE_ADDR": address})


def test_a_token_is_printed_once_and_only_its_hash_is_stored():
    out, _ = run("token", "create", "ci", "--role", "operator", "--source", "shop")
    stored = ApiToken.objects.get()
    assert stored.sha256 == hashlib.sha256(out.strip().encode()).hexdigest()
    assert (stored.role, stored.source) == ("operator", "shop")
    assert out.strip() not in json.dumps(list(AuditEvent.objects.values("object", "after")))


def test_a_token_is_revoked_by_name_once():
    run("token", "create", "ci", "--role", "viewer")
    run("token", "revoke", "ci")
    assert ApiToken.objects.get().revoked_at is not None
    with pytest.raises(CommandError, match="No active token 'ci'"):
        run("token", "revoke", "ci")
    assert list(AuditEvent.objects.order_by("id").values_list("act", flat=True)) == ["token.create", "token.revoke"]


def test_a_token_may_belong_to_a_person_and_ends_with_their_account(django_user_model):
    ann = django_user_model.objects.create_user("ann")
    own, _ = run("token", "create", "anns", "--role", "operator", "--owner", "ann")
    free, _ = run("token", "create", "ci", "--role", "viewer")
    assert viewer(own).person_id == ann.pk and viewer(free).person_id is None
    run("token", "give", "ci", "ann")
    assert viewer(free).person_id == ann.pk
    assert [line.split()[-1] for line in run("token", "list")[0].splitlines()] == ["OWNER", "ann", "ann"]
    ann.is_active = False
    ann.save()
    assert viewer(own) is None is viewer(free)


def test_an_auditors_token_reads_the_audit_only_where_its_owner_may(django_user_model):
    ann = django_user_model.objects.create_user("ann")
    for name, role in {"*": "auditor", "shop": "operator", "bank": "viewer"}.items():
        Role.objects.create(user=ann, source=name, role=role)
    of_all, _ = run("token", "create", "all", "--role", "auditor", "--owner", "ann")
    of_shop, _ = run("token", "create", "shop", "--role", "auditor", "--source", "shop", "--owner", "ann")
    assert viewer(of_all).sources("auditor") is None and viewer(of_shop).sources("auditor") == ["shop"]
    assert not viewer(of_all).may_anywhere("operator") and not viewer(of_shop).may_anywhere("operator")
    Role.objects.filter(user=ann, source="*").delete()
    assert viewer(of_all).sources("auditor") == [] == viewer(of_shop).sources("auditor")


@pytest.mark.parametrize(
    ("source", "theirs", "may"),
    [
        ("*", {"shop": "viewer", "billing": "admin"}, {"shop": "viewer", "billing": "operator"}),
        ("*", {"*": "viewer", "shop": "admin"}, {"*": "viewer", "shop": "operator"}),
        ("shop", {"*": "viewer"}, {"shop": "viewer"}),
        ("shop", {"billing": "admin"}, {}),
        ("*", {"*": "auditor", "shop": "admin"}, {"*": "viewer", "shop": "operator"}),
        ("shop", {"*": "auditor", "shop": "viewer"}, {"shop": "viewer"}),
        ("*", {}, {}),
    ],
)
def test_a_token_of_a_person_may_nowhere_do_more_than_they(source, theirs, may, django_user_model):
    ann = django_user_model.objects.create_user("ann")
    for name, role in theirs.items():
        Role.objects.create(user=ann, source=name, role=role)
    own, _ = run("token", "create", "anns", "--role", "operator", "--source", source, "--owner", "ann")
    assert viewer(own).roles == may


def status(client, token, address="203.0.113.9", forwarded=None):
    headers = {"Authorization": f"Bearer {token.strip()}"} | ({"X-Forwarded-For": forwarded} if forwarded else {})
    return client.get("/api/queues", headers=headers, REMOTE_ADDR=address).status_code


def test_a_token_that_expired_is_none(client, store):
    token, _ = run("token", "create", "ci", "--role", "viewer", "--for", "8h")
    assert status(client, token) == 200
    assert timedelta() <= timezone.now() + timedelta(hours=8) - ApiToken.objects.get().expires_at < timedelta(minutes=5)
    ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert status(client, token) == 401 and viewer(token) is None
    assert AuditEvent.objects.get(act="token.create").after["expires_at"]


def test_a_token_is_accepted_from_its_networks_alone_whatever_the_client_writes(client, store, settings):
    proxy = [ip_network("10.2.0.0/16")]
    settings.REDRIVE = settings.REDRIVE | {"TRUSTED_PROXIES": proxy}
    limits = ("--network", "203.0.113.0/24", "--network", "2001:db8::/32")
    token, _ = run("token", "create", "ci", "--role", "viewer", *limits)
    free, _ = run("token", "create", "free", "--role", "viewer")
    for address, forwarded, expected in (
        ("203.0.113.9", None, 200),
        ("2001:db8::7", None, 200),
        ("::ffff:203.0.113.9", None, 200),
        ("198.51.100.7", None, 401),
        ("198.51.100.7", "203.0.113.9", 401),  # written by the client
        ("203.0.113.9", "198.51.100.7", 401),  # by a proxy that is not trusted: its clients are unknown
        ("10.2.0.1", "203.0.113.9", 200),
        ("10.2.0.1", "203.0.113.9, 198.51.100.7", 401),  # the first was written by the client
        ("10.2.0.1", None, 401),
        ("", None, 401),
    ):
        assert status(client, token, address, forwarded) == expected, (address, forwarded)
        assert status(client, free, address, forwarded) == 200


def test_a_token_limited_to_calls_makes_no_other(client, store):
    token, _ = run("token", "create", "ci", "--role", "operator", "--call", "report_release", "--call", "list_*")
    headers = {"Authorization": f"Bearer {token.strip()}"}
    assert client.get("/api/queues", headers=headers).status_code == 200
    answer = client.post("/api/replays", "{}", content_type="application/json", headers=headers)
    assert answer.status_code == 403 and answer.json()["error"]["message"] == (
        "This token may only call report_release, list_*, not start_replay. Nothing was changed."
    )
    refused = AuditEvent.objects.get(allowed=False)
    assert (refused.act, refused.actor) == ("api:start_replay", "token ci")
    assert "report_release,list_*" in run("token", "list")[0]
    assert AuditEvent.objects.get(act="token.create").after["calls"] == "report_release list_*"
    with pytest.raises(CommandError, match=r"is not the name of a call .* Nothing was changed\."):
        run("token", "create", "x", "--role", "viewer", "--call", "GET /api/queues")


def test_your_account_shows_your_own_tokens_in_force(client, django_user_model):
    ann = django_user_model.objects.create_user("ann", password="x")
    django_user_model.objects.create_user("bob")
    for name, owner in (("anns-release", "ann"), ("anns-old", "ann"), ("of-bob", "bob")):
        run(
            "token",
            "create",
            name,
            "--role",
            "operator",
            "--source",
            "shop",
            "--call",
            "report_release",
            "--owner",
            owner,
        )
    run("token", "revoke", "anns-old")
    client.force_login(ann)
    text = client.get("/account/").content.decode()
    assert "anns-release" in text and "report_release" in text and "anns-old" not in text and "of-bob" not in text


def test_the_log_has_why_a_network_was_refused_once_a_minute_for_each_token(caplog):
    access._refusals.clear()
    ci, other = (run("token", "create", name, "--role", "viewer", "--network", "203.0.113.0/24")[0] for name in "ab")
    forwarded = {"REMOTE_ADDR": "10.2.0.1", "HTTP_X_FORWARDED_FOR": "203.0.113.9"}
    assert viewer(ci, "198.51.100.7") is None is viewer(ci, "198.51.100.8")
    assert viewer_of_token(other.strip(), meta=forwarded) is None and viewer(other) is not None
    lines = [record.getMessage() for record in caplog.records if record.name == "dashboard.web.access"]
    assert lines == [
        "Token a was refused: address 198.51.100.7 is outside its networks.",
        "Token b was refused: 10.2.0.1 sent X-Forwarded-For and is not in REDRIVE_TRUSTED_PROXIES.",
    ]
    access._refusals[ApiToken.objects.get(name="a").pk] -= 60
    run("token", "revoke", "b")
    assert viewer(ci, "198.51.100.9") is None is viewer(other, "198.51.100.9")
    assert "198.51.100.9" in caplog.messages[-1] and "Token a" in caplog.messages[-1]


def test_the_holder_of_a_token_depends_on_the_address_which_no_caller_can_leave_out():
    token, _ = run("token", "create", "ci", "--role", "viewer", "--network", "203.0.113.0/24")
    header = f"Bearer {token.strip()}"
    assert viewer(token).token_id and viewer(token, "198.51.100.7") is None
    assert holder("token", header, meta={"REMOTE_ADDR": "203.0.113.9"}).startswith("token ")
    assert holder("token", header, meta={"REMOTE_ADDR": "198.51.100.7"}) == holder("token", header, meta={}) == ""
    for build in (viewer_of_token, viewer_of_header, holder):
        assert signature(build).parameters["meta"].default is Parameter.empty, build


@pytest.mark.parametrize("network", ["10.0.0.1/8", "shop", "", "1.2.3.4/33"])
def test_what_is_no_network_is_refused(network):
    with pytest.raises(CommandError, match=r"is not a network such as 10\.0\.0\.0/8 .* Nothing was changed\."):
        run("token", "create", "ci", "--role", "viewer", "--network", network)
    assert not ApiToken.objects.exists()


@pytest.mark.parametrize(
    "words", [("create", "x", "--role", "viewer", "--owner", "eve"), ("give", "ci", "eve"), ("give", "none", "ann")]
)
def test_a_token_is_given_to_no_one_who_is_not_there(words, django_user_model):
    django_user_model.objects.create_user("ann")
    django_user_model.objects.create_user("eve", is_active=False)
    run("token", "create", "ci", "--role", "viewer")
    with pytest.raises(CommandError, match="Nothing was changed"):
        run("token", *words)
    assert ApiToken.objects.get().owner is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ci", "--role", "viewer"), "already"),
        (("x", "--role", "viewer", "--source", "NOT VALID"), "cannot name a source"),
        (("x", "--role", "god"), "invalid choice"),
        ((" ", "--role", "viewer"), "1 to 100 characters"),
    ],
)
def test_a_token_that_cannot_be_is_refused_in_a_sentence(words, message):
    run("token", "create", "ci", "--role", "viewer")
    with pytest.raises(CommandError, match=message):
        run("token", "create", *words)
    assert ApiToken.objects.count() == 1


def bury(n=1, **changes):
    values = {"source": "shop", "queue": "emails", "task": "t", "state": "dead", "kind": "exception"}
    values |= {"error_type": "E", "first_failed_at": NOW, "failed_at": NOW, "received_at": NOW} | changes
    start = Failure.objects.count()
    ids = [f"j{start + i}" for i in range(n)]
    return Failure.objects.bulk_create(Failure(**values, first_job_id=i, job_id=i) for i in ids)


def test_the_terminal_shows_what_matches_and_how_it_was_read():
    bury(3), bury(queue="webhooks")
    out, err = run("failures", "queue:emails", "--limit", "2")
    assert out.count("shop/emails") == 2 and "webhooks" not in out
    assert "queue emails · state dead" in err and "2 of 3" in err


def test_what_a_job_reports_cannot_move_the_cursor():
    bury(message="\x1b[2Jgone\x07\u202eevil", task="a\x1b]0;x\x07")
    out, _ = run("failures")
    assert "\x1b" not in out and "\u202e" not in out and "\\x1b[2Jgone" in out


def test_json_is_one_object_of_as_many_pages_as_requested():
    bury(7)
    out, _ = run("failures", "", "--json", "--limit", "1000")
    assert len(json.loads(out)["items"]) == json.loads(out)["count"] == 7


def test_several_words_of_a_search_need_no_quotes_and_hints_are_reported(store):
    bury(1)
    out, err = run("failures", "queue:emails", "error:none")
    assert "error:none" in err.lower() or "none" in err.lower()
    assert "“foo” is not a state" in run("failures", "state:foo")[1]
    out, err = run("replay", "queue:emails", "state:foo", "--dry-run")
    assert "“foo” is not a state" in err and "match" in out


def test_a_replay_of_everything_has_to_be_meant():
    with pytest.raises(CommandError, match="required: QUERY"):
        run("replay", "--reason", "x")


def test_a_source_that_no_one_configured_is_warned_of_with_those_that_are(store, settings):
    settings.REDRIVE = settings.REDRIVE | {"CELERY_BROKER_URL": "redis://127.0.0.1:1/0"}
    forget_configuration(config)
    _, err = run("token", "create", "y", "--role", "viewer", "--source", "nosuch")
    assert "no source 'nosuch' is configured here; known: celery." in err
    assert "Warning" not in run("token", "create", "z", "--role", "viewer", "--source", "celery")[1]
    assert "Warning" not in run("token", "create", "all", "--role", "viewer")[1]


def test_tokens_are_listed_without_their_keys():
    key, _ = run("token", "create", "ci", "--role", "operator", "--source", "shop")
    run("token", "create", "old\x1b[2J", "--role", "viewer")
    run("token", "revoke", "old\x1b[2J")
    out, _ = run("token", "list")
    heading, old, ci = out.splitlines()
    times = ["CREATED (UTC)", "EXPIRES (UTC)", "REVOKED (UTC)"]
    assert re.split("  +", heading) == ["NAME", "ROLE", "SOURCE", *times, "NETWORKS", "CALLS", "OWNER"]
    assert ci.split()[:3] == ["ci", "operator", "shop"] and ci.split()[-3:] == ["-", "-", "-"]
    assert "\x1b" not in old and old.split()[-4] != "-"
    assert key.strip() not in out and ApiToken.objects.get(name="ci").sha256 not in out
