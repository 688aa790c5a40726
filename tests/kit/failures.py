"""Jobs of the source `shop` (in memory) that died with their messages kept: what pages of acts are tested on."""

from __future__ import annotations

import hashlib
import json

from jobs_admin import config
from jobs_admin.models import Failure, Payload
from jobs_admin.models.failure import Caveat
from tests.dashboard.conftest import bury

ARGS, KWARGS = [42, "EUR"], {"customer": {"id": 7, "name": "Ann"}, "token": "[redacted]"}


def dead(n: int = 1, *, whole: bool = True, **changes) -> list[int]:
    """`n` dead jobs with their messages; the ids, oldest first."""
    shown = {"args": json.dumps(ARGS), "kwargs": json.dumps(KWARGS), "redacted": 1}
    bury(n, **shown | {"caveats": None if whole else Caveat.TRUNCATED} | changes)
    ids = sorted(Failure.objects.order_by("-pk").values_list("pk", flat=True)[:n])
    raw = json.dumps({"args": ARGS, "kwargs": KWARGS | {"token": "s3cret"}}).encode()
    body, digest = config.payload_keys().encrypt(raw), hashlib.sha256(raw).hexdigest()
    Payload.objects.bulk_create(
        Payload(failure_id=pk, run=1, body=body, size=len(raw), sha256=digest, is_whole=whole) for pk in ids
    )
    return ids
