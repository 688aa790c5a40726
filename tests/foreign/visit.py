"""Requests to the project, sent within it: what its own pages and Redrive's answer, as JSON on standard output.

Run by tests/foreign/test_foreign_project.py, by the project's Python and with its settings.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

import django

django.setup()

from django.apps import apps  # noqa: E402
from django.conf import settings  # noqa: E402
from django.contrib.auth.models import Permission  # noqa: E402
from django.test import Client  # noqa: E402
from house.models import Note, Person  # noqa: E402

TOKEN = re.compile(r"name=\"csrfmiddlewaretoken\" value=\"([^\"]+)\"")
OWN = (
    "/",
    "/notes/",
    "/broken/",
    "/nothing/",
    "/enter/",
    "/admin/",
    "/admin/dashboard/person/",
    "/admin/dashboard/note/add/",
)
PREFIX = (settings.FORCE_SCRIPT_NAME or "").rstrip("/")


def log_in(email: str) -> Client:
    """Log in by the project's own page, with its CSRF check."""
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    found = TOKEN.search(client.get("/enter/").content.decode())
    answer = client.post("/enter/?next=/", {"username": email, "password": "pw", "csrfmiddlewaretoken": found[1]})
    assert answer.status_code == 302, answer.content
    return client


def clerk() -> Person:
    """A member of staff, who may see the project's records and nothing of Redrive."""
    person = Person.objects.filter(email="clerk@house.example").first()
    if person is None:
        person = Person.objects.create_user("clerk@house.example", "pw", is_staff=True)
        person.user_permissions.set(Permission.objects.filter(content_type__app_label="dashboard"))
        Note.objects.create(text="a note", at="2026-01-01T00:00:00Z")
    return person


def own_pages() -> dict[str, object]:
    """Status, headers, cookies and body of each page of the project, for a stranger and a member of staff."""
    clients = {"stranger": Client(raise_request_exception=False), "clerk": log_in(clerk().email)}
    found = {}
    for who, client in clients.items():
        for path in OWN:
            answer = client.get(path)
            body = TOKEN.sub("TOKEN", answer.content.decode())
            cookies = sorted((name, morsel["path"], morsel["httponly"]) for name, morsel in answer.cookies.items())
            found[f"{who} {path}"] = [answer.status_code, sorted(answer.headers.items()), cookies, body]
    return {
        key: [status, [h for h in headers if h[0] != "Content-Length"], *rest]
        for key, (status, headers, *rest) in found.items()
    }


def pages_of_redrive() -> dict[str, object]:
    from dashboard.web.rights import addresses
    from jobs_admin.models import ApiToken, AuditEvent, Failure
    from tests.kit import matrix

    desk = matrix.create_desk(settings, Path(settings.FOLDER))
    root = Person.objects.create_superuser("root@house.example", "pw")
    matrix.views_of(desk, root)
    ApiToken.objects.create(name="t", sha256=hashlib.sha256(b"secret").hexdigest(), role="admin", source="*")
    stranger, person = Client(raise_request_exception=False), log_in(root.email)
    asker, caller = matrix.Asker(person), matrix.Asker(Client(), "secret")
    found: dict[str, object] = {"answers": {}, "strangers": {}, "addresses": len(addresses())}
    for address in addresses():
        if "GET" not in address.methods:
            continue
        path = matrix.path_of(address, desk.shop)
        if address.kind == "page":
            answer = asker.request("GET", address, desk.shop)
            found["strangers"][address.name] = [address.right, stranger.get(path).headers.get("Location", ""), path]
        else:
            answer = caller.request("GET", address, desk.shop)
        text = matrix.body_of(answer)
        found["answers"][address.name] = {
            "status": answer.status_code,
            "headers": dict(answer.headers),
            "links": sorted(set(re.findall(r"""\b(?:href|src|action|hx-(?:get|post))=["'](/[^"'#?]*)""", text))),
            "is_invalid": "INVALID" in text,
            "why": text[:300] if answer.status_code >= 500 else "",
        }
    return found | {"acts": acts(desk, log_in(root.email), Failure, AuditEvent)}


def acts(desk, person: Client, Failure, AuditEvent) -> dict[str, object]:
    """A job is discarded from its page; the same without the CSRF token."""
    from django.urls import reverse

    pk = desk.shop.failure.pk
    page, discard = (
        reverse(f"redrive:failure-{name}", args=[pk]).removeprefix(PREFIX) for name in ("detail", "discard")
    )
    shown = person.get(page).content.decode()
    refused = person.post(discard, {"reason": "duplicate"})
    before = Failure.objects.get(pk=pk).state
    done = person.post(discard, {"reason": "duplicate", "csrfmiddlewaretoken": TOKEN.search(shown)[1]})
    event = AuditEvent.objects.filter(object=f"failure:{pk}").latest("pk")
    rows = reverse("admin:jobs_admin_failure_changelist").removeprefix(PREFIX)
    token = TOKEN.search(person.get(rows).content.decode())[1]
    chosen = {"action": "readmit", "_selected_action": [pk], "csrfmiddlewaretoken": token}
    confirmation = person.post(rows, chosen)
    missing = person.get(page.replace(str(pk), "999999"))
    return {
        "without a token": [refused.status_code, before],
        "with it": [done.status_code, Failure.objects.get(pk=pk).state],
        "audit": [event.act, event.actor, str(event.user_id) == str(Person.objects.get(email=event.actor).pk)],
        "in the admin": [confirmation.status_code, "Readmit" in confirmation.content.decode()],
        "missing": [missing.status_code, "nothing in the house" in missing.content.decode()],
        "results": replay_results(person, token, Failure.objects.get(pk=pk)),
    }


def replay_results(person: Client, token: str, failure) -> list[object] | None:
    """Results of Django Tasks are selected in the project's admin: one that Redrive has, and one that it has not."""
    if not apps.is_installed("django_tasks_db"):
        return None
    from django.urls import reverse
    from django_tasks_db.models import DBTaskResult

    from jobs_admin.models import Source

    values = {"args_kwargs": {}, "task_path": "house.notes", "run_after": "2026-01-01T00:00:00Z", "status": "FAILED"}
    known, other = (DBTaskResult.objects.create(**values) for _ in range(2))
    type(failure).objects.filter(pk=failure.pk).update(job_id=known.pk.hex)
    Source.objects.update_or_create(name=failure.source, defaults={"backend": "django_tasks"})
    rows = reverse("admin:django_tasks_database_dbtaskresult_changelist").removeprefix(PREFIX)
    found = []
    for chosen in ([known.pk, other.pk], [other.pk]):
        given = {"action": "replay", "_selected_action": chosen, "csrfmiddlewaretoken": token}
        found.append(person.post(rows, given)["Location"])
    shown = "Redrive has none of the selected results" in person.get(rows).content.decode()
    return [found[0].endswith(f"/replays/new/?selection={failure.pk}"), found[1].endswith(rows), shown]


if __name__ == "__main__":
    what = {"own": own_pages, "redrive": pages_of_redrive}
    print(json.dumps({name: what[name]() for name in sys.argv[1:]}))
