from __future__ import annotations

import hashlib
import io
import json
import re
from datetime import UTC, datetime

import pytest
from django.core.management import CommandError, call_command

from dashboard.web.access import viewer_of_token
from jobs_admin import config
from jobs_admin.models import ApiToken, AuditEvent, Failure, Role
from tests.kit.sources import forget_configuration

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 2, 14, tzinfo=UTC)


def run(*words):
    out, err = io.StringIO(), io.StringIO()
    call_command(*words, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


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
    assert viewer_of_token(own.strip()).person_id == ann.pk and viewer_of_token(free.strip()).person_id is None
    run("token", "give", "ci", "ann")
    assert viewer_of_token(free.strip()).person_id == ann.pk
    assert [line.split()[-1] for line in run("token", "list")[0].splitlines()] == ["OWNER", "ann", "ann"]
    ann.is_active = False
    ann.save()
    assert viewer_of_token(own.strip()) is None is viewer_of_token(free.strip())


@pytest.mark.parametrize(
    ("source", "theirs", "may"),
    [
        ("*", {"shop": "viewer", "billing": "admin"}, {"shop": "viewer", "billing": "operator"}),
        ("*", {"*": "viewer", "shop": "admin"}, {"*": "viewer", "shop": "operator"}),
        ("shop", {"*": "viewer"}, {"shop": "viewer"}),
        ("shop", {"billing": "admin"}, {}),
        ("*", {}, {}),
    ],
)
def test_a_token_of_a_person_may_nowhere_do_more_than_they(source, theirs, may, django_user_model):
    ann = django_user_model.objects.create_user("ann")
    for name, role in theirs.items():
        Role.objects.create(user=ann, source=name, role=role)
    own, _ = run("token", "create", "anns", "--role", "operator", "--source", source, "--owner", "ann")
    assert viewer_of_token(own.strip()).roles == may


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
    assert re.split("  +", heading) == ["NAME", "ROLE", "SOURCE", "CREATED (UTC)", "REVOKED (UTC)", "OWNER"]
    assert ci.split()[:3] == ["ci", "operator", "shop"] and ci.split()[-2:] == ["-", "-"]
    assert "\x1b" not in old and old.split()[-2] != "-"
    assert key.strip() not in out and ApiToken.objects.get(name="ci").sha256 not in out
