"""Live workers, as the desk hears of them."""

from __future__ import annotations

import json

from django.utils import timezone

from jobs_admin.core import keys
from jobs_admin.core.lint.configuration import Configuration, Task, document
from jobs_admin.fleet import heartbeats


def reports(store, *signatures: str | None) -> None:
    """A live worker for each of these, that has the task `shop.send` with such arguments."""
    now = timezone.now()
    for n, signature in enumerate(signatures):
        text = document(Configuration("shop", tasks=(Task("shop.send", signature=signature),)))
        digest = f"{n:032x}"
        store.set(keys.configuration("shop", digest), text)
        fields = {"source": "shop", "name": f"w{n}", "boot": "b", "at": now.timestamp(), "configuration": digest}
        store.hset(keys.workers("shop"), f"w{n}", json.dumps(fields))
    heartbeats.count_heartbeats(now)
