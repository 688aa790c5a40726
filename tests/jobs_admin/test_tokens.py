from __future__ import annotations

import hashlib
import io
import json
from datetime import UTC, datetime

import pytest
from django.core.management import CommandError, call_command

from jobs_admin.models import ApiToken, AuditEvent, Failure

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 2, 14, tzinfo=UTC)


def run(*words):
    out, err = io.StringIO(), io.StringIO()
    call_command(*words, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_a_token_is_printed_once_and_only_its_hash_is_kept():
    out, _ = run("token", "create", "ci", "--role", "operator", "--source", "shop")
    kept = ApiToken.objects.get()
    assert kept.sha256 == hashlib.sha256(out.strip().encode()).hexdigest()
    assert (kept.role, kept.source) == ("operator", "shop")
    assert out.strip() not in json.dumps(list(AuditEvent.objects.values("object", "after")))


def test_a_token_is_revoked_by_name_once():
    run("token", "create", "ci", "--role", "viewer")
    run("token", "revoke", "ci")
    assert ApiToken.objects.get().revoked_at is not None
    with pytest.raises(CommandError, match="No token 'ci' is in force"):
        run("token", "revoke", "ci")
    assert list(AuditEvent.objects.order_by("id").values_list("act", flat=True)) == ["token.create", "token.revoke"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ci", "--role", "viewer"), "already"),
        (("x", "--role", "viewer", "--source", "NOT VALID"), "cannot name a source"),
        (("x", "--role", "god"), "invalid choice"),
        ((" ", "--role", "viewer"), "1 to 100 characters"),
    ],
)
def test_a_token_that_cannot_be_is_refused_in_a_sentence(words, said):
    run("token", "create", "ci", "--role", "viewer")
    with pytest.raises(CommandError, match=said):
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


def test_what_a_job_says_cannot_move_the_cursor():
    bury(message="\x1b[2Jgone\x07\u202eevil", task="a\x1b]0;x\x07")
    out, _ = run("failures")
    assert "\x1b" not in out and "\u202e" not in out and "\\x1b[2Jgone" in out


def test_json_is_one_object_of_as_many_pages_as_asked_for():
    bury(7)
    out, _ = run("failures", "", "--json", "--limit", "1000")
    assert len(json.loads(out)["items"]) == json.loads(out)["count"] == 7
