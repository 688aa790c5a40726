"""Reports of workers, and how they are filed."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import connection

from jobs_admin import ingest
from jobs_admin.core.envelope import Envelope, Lineage, encode
from jobs_admin.core.search_terms import stack_document
from jobs_admin.ingest.filing import search_document
from jobs_admin.models import Failure, Traceback
from jobs_admin.models import terms as index
from tests.kit.counts import list_counts, recount

NOW = datetime(2026, 11, 21, 2, 7, 30, tzinfo=UTC)
TRACE = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 88, in charge
    partner.post(order)
shop.Refused: order {} refused
"""


def report(job_id="j1", kind="exception", attempt=1, *, order=17, ago=0.0, **fields):
    values = {
        "source": "shop", "queue": "emails", "task": "shop.send", "job_id": job_id, "kind": kind, "attempt": attempt,
        "at": NOW.timestamp() - ago, "release": "r1", "tenant": "acme",
    }  # fmt: skip
    if kind != "success":
        raw = b"raw of attempt %d" % attempt
        values |= {"error_type": "shop.Refused", "message": f"order {order} refused", "trace": TRACE.format(order)}
        values |= {"raw": raw, "raw_size": len(raw)}
    if kind == "retry":
        values["due_at"] = values["at"] + 60
    return Envelope(**{**values, **fields})


_ids = iter(range(1, 10**9))


def entries(*reports):
    return [(f"{next(_ids)}-0".encode(), encode(r)) for r in reports]


def file(*reports, now=NOW):
    filed = ingest.file(entries(*reports), now)
    assert list_counts() == recount()
    return filed


def misindexed():
    """The failures and stacks of which the search index does not hold what their rows say."""
    wanted = {("failure", f.pk): search_document(vars(f)) for f in Failure.objects.all()}
    wanted |= {("stack", t.pk): stack_document(t.text) for t in Traceback.objects.all()}
    found = {}
    with connection.cursor() as cursor:
        for kind, table in (("failure", index.FAILURES), ("stack", index.STACKS)):
            cursor.execute(f"SELECT {'rowid' if connection.vendor == 'sqlite' else 'id'}, terms FROM {table}")
            found |= {(kind, pk): terms for pk, terms in cursor.fetchall()}
    if connection.vendor == "postgresql":
        found = {key: set(terms.split(" ")) for key, terms in found.items()}
        wanted = {key: set(index.as_tsvector(document).split(" ")) for key, document in wanted.items()}
    return [key for key in wanted.keys() | found.keys() if sorted(wanted.get(key, "")) != sorted(found.get(key, ""))]


def of_run(n, job_id="j1", kind="exception", attempt=1, item=None, of="j1", **fields):
    home = Lineage(queue="emails", job_id=of, run=n, item=item)
    return report(job_id, kind, attempt, lineage=home, **fields)


def drain(consumer="c1"):
    rounds = 0
    while ingest.step(consumer, NOW, wait_s=0.01) or rounds < 2:
        rounds += 1
        assert rounds < 100
