"""Keys with which the workers of a source sign their reports: created, listed, revoked. Every act is audited."""

from __future__ import annotations

import secrets
from datetime import datetime

from django.db import transaction

from jobs_admin import trust
from jobs_admin.core.keys import valid_source
from jobs_admin.core.refused import NotFound
from jobs_admin.core.report_signature import SECRET_BYTES, BadSourceKey, SigningKey
from jobs_admin.db import audit
from jobs_admin.models import SourceKey
from jobs_admin.models.access import Viewer

VARIABLE = "REDRIVE_SOURCE_KEY"


def create(viewer: Viewer, source: str) -> SigningKey:
    """Create an additional key of the source. Raises ValueError for an invalid name of a source.

    The key is shown only once: the table stores it encrypted.
    """
    if not valid_source(source):
        raise ValueError(f"{source!r} cannot name a source: use a-z, 0-9, - and _. Nothing was changed.")
    key = SigningKey(source, secrets.token_hex(6), secrets.token_bytes(SECRET_BYTES))
    with transaction.atomic():
        SourceKey.objects.create(source=source, key_id=key.id, sealed=trust.seal(key), created_by=viewer.name[:150])
        audit.record(viewer, "source_key.create", f"source_key:{key.id}", source=source)
    trust.forget()
    return key


def revoke(viewer: Viewer, key_id: str, now: datetime) -> SourceKey:
    """Revoke a key: reports signed with it are refused, including those in transit. Raises NotFound."""
    with transaction.atomic():
        key = SourceKey.objects.filter(key_id=key_id, revoked_at=None).first()
        if key is None or not SourceKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=now):
            raise NotFound(f"No key {key_id} is in force. Nothing was changed.")
        audit.record(viewer, "source_key.revoke", f"source_key:{key_id}", source=key.source)
    trust.forget()
    return key


def is_in_force(text: str) -> bool:
    """Return whether reports signed with the key in this text are accepted."""
    try:
        key = SigningKey.parse(text)
    except BadSourceKey:
        return False
    known = trust.read().keys.get(key.id)
    return known is not None and known.revoked_at is None and known.key == key
