"""Reports with a signature, and such as forge one."""

from __future__ import annotations

from django.utils import timezone

from jobs_admin import ingest, trust
from jobs_admin.core.envelope import encode
from jobs_admin.core.report_signature import SigningKey, sign
from jobs_admin.ingest import refiling
from jobs_admin.models import Source, UnsignedReports
from jobs_admin.models.access import ENGINE
from jobs_admin.trust import source_keys
from tests.kit.reports import _ids, report


def entry(job_id="j1", source="shop", key: SigningKey | None = None, **more):
    fields = encode(report(job_id, source=source, **more))
    return f"{next(_ids)}-0".encode(), fields if key is None else sign(fields, key)


def file(*entries, now=None):
    trust.forget()
    return ingest.file(entries, now or timezone.now())


def create_sources(*names):
    for name in names:
        Source.objects.create(name=name)


def end_unsigned(at=None):
    UnsignedReports.objects.update(until=at or timezone.now())


def refile():
    while refiling.step():
        pass


def forged(key):
    """Reports of the shop that no one with a key of the shop has signed so, and the words that say it."""
    bank = source_keys.create(ENGINE, "bank")
    revoked = source_keys.create(ENGINE, "shop")
    source_keys.revoke(ENGINE, revoked.id, timezone.now())
    changed = entry(key=key)
    changed[1][b"meta"] = changed[1][b"meta"].replace(b'"emails"', b'"orders"')
    return {
        "its signature is wrong": changed,
        "a key that is not known here": entry(key=SigningKey("shop", "f" * 12, bytes(32))),
        "a key of another source": entry(key=bank),
        "signature is wrong (": entry(key=SigningKey("shop", key.id, bytes(32))),
        "was revoked on": entry(key=revoked),
        "signed with a key": (b"9-9", sign(encode(report()), SigningKey("", "desk", bytes(32)))),
    }
