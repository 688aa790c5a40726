"""`/.well-known/security.txt`: whoever finds a vulnerability of a desk finds to whom to write, where its operator says so."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from dashboard.setup import environment

PATH = "/.well-known/security.txt"


def test_it_names_the_contacts_and_queries_no_database(client, settings, django_assert_num_queries):
    settings.REDRIVE = settings.REDRIVE | {
        "SECURITY_CONTACT": ["mailto:security@example.com", "https://example.com/report"]
    }
    settings.REDRIVE = settings.REDRIVE | {"URL": "https://ops.example.com"}
    answer = client.get(PATH)
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/plain; charset=utf-8")
    lines = answer.content.decode().splitlines()
    assert lines[:2] == ["Contact: mailto:security@example.com", "Contact: https://example.com/report"]
    expires = datetime.strptime(lines[2], "Expires: %Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert timedelta(days=28) < expires - datetime.now(UTC) <= timedelta(days=30)
    assert lines[3] == f"Canonical: https://ops.example.com{PATH}"


@pytest.mark.django_db
def test_without_a_contact_there_is_no_such_page(client, settings):
    settings.REDRIVE = settings.REDRIVE | {"SECURITY_CONTACT": []}
    assert client.get(PATH).status_code == 404


@pytest.mark.parametrize(
    ("given", "contacts"),
    [
        ("", []),
        ("security@example.com", ["mailto:security@example.com"]),
        ("mailto:s@example.com, https://example.com/r", ["mailto:s@example.com", "https://example.com/r"]),
        ("tel:+1-201-555-0123", ["tel:+1-201-555-0123"]),
    ],
)
def test_contacts_are_addresses_of_mail_pages_and_telephones(monkeypatch, given, contacts):
    monkeypatch.setenv("REDRIVE_SECURITY_CONTACT", given)
    assert environment.redrive()["SECURITY_CONTACT"] == contacts


@pytest.mark.parametrize(
    "given", ["security", "http://example.com", "mailto:", "https://", "javascript:x", "a@b\nContact: c@d", "a b@c"]
)
def test_what_is_no_contact_ends_the_start(monkeypatch, given):
    monkeypatch.setenv("REDRIVE_SECURITY_CONTACT", given)
    with pytest.raises(environment.Misconfigured, match=re.escape("REDRIVE_SECURITY_CONTACT: ")):
        environment.redrive()
