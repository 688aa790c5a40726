"""Constraints of the database on a policy that is written into it by hand, past every service; and what a worker refuses still.

Run on SQLite, and on PostgreSQL with the engine's other tests.
"""

from __future__ import annotations

import json

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from jobs_admin.core import keys
from jobs_admin.core.policy import document, parse
from jobs_admin.models import PolicyVersion
from jobs_admin.policies import pushing
from jobs_admin.worker.policies import Policies

pytestmark = [pytest.mark.django_db, pytest.mark.databases]

NORMAL = document(
    parse({"name": "emails", "match": {"source": "shop", "task": "shop.mail"}, "max_attempts": 4, "cap_s": 60})
)


def insert(text: str, version: int = 1) -> None:
    """As in a terminal of the database: nothing of ours looks at it."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {PolicyVersion._meta.db_table} "
            "(document, version, is_published, published_at, published_by, reason) VALUES (%s, %s, %s, %s, 'hand', '')",
            [text, version, True, timezone.now()],
        )


def policy_json(**changes: object) -> str:
    """JSON of the policy with these fields; a text between < and > stands as it is, for what JSON does not have."""
    text = json.dumps(NORMAL | changes)
    return text.replace('"<', "").replace('>"', "")


def backoff(**fields: object) -> dict[str, object]:
    return {"backoff": {"kind": "exponential", "first_delay_s": 2, "factor": 2} | fields}


def test_what_is_in_order_can_be_written():
    insert(policy_json())
    assert PolicyVersion.objects.get().policy.max_attempts == 4


ABSURD = {
    "negative attempts": {"max_attempts": -1},
    "no attempt": {"max_attempts": 0},
    "1e9 attempts": {"max_attempts": 10**9},
    "half an attempt": {"max_attempts": 1.5},
    "attempts in words": {"max_attempts": "four"},
    "attempts as a list": {"max_attempts": [4]},
    "a negative cap": {"cap_s": -1},
    "no cap": {"cap_s": 0},
    "a cap of NaN": {"cap_s": "<NaN>"},
    "a cap of Infinity": {"cap_s": "<Infinity>"},
    "a cap of 1e308": {"cap_s": 1e308},
    "a cap of 1e999": {"cap_s": "<1e999>"},
    "a cap below the first delay": {"cap_s": 1, **backoff()},
    "a cap below a table's first": {"cap_s": 1, **backoff(kind="table", delays_s=[5, 10])},
    "a cap below a polynomial's first": {"cap_s": 1, **backoff(kind="polynomial", first_delay_s=0.5, plus_s=2)},
    "a negative delay": backoff(first_delay_s=-5),
    "a delay of NaN": backoff(first_delay_s="<NaN>"),
    "a delay of 1e308": backoff(first_delay_s=1e308) | {"cap_s": None},
    "a factor of 0": backoff(factor=0),
    "a factor of 1e308": backoff(factor=1e308),
    "a power of 1e308": backoff(kind="polynomial", power=1e308),
    "an unknown backoff": backoff(kind="fibonacci"),
    "a backoff without a kind": {"backoff": {"first_delay_s": 2}},
    "a negative delay in a table": backoff(kind="table", delays_s=[1, -1]),
    "a table of 101 delays": backoff(kind="table", delays_s=[1] * 101),
    "an unknown mode": {"mode": "destroy"},
    "no mode": {"mode": None},
    "an unknown jitter": {"jitter": {"kind": "wild"}},
    "more than all as jitter": {"jitter": {"kind": "plus_minus", "fraction": 1.5}},
    "a jitter of 1e308 s": {"jitter": {"kind": "additive", "seconds": 1e308}},
    "an unknown class": {"classes": [{"error": "E", "as": "hopeless"}]},
    "51 classes": {"classes": [{"error": f"E{n}", "as": "permanent"} for n in range(51)]},
    "a negative budget": {"budget": {"per_minute": -1, "burst": 1}},
    "a budget of 1e-308": {"budget": {"per_minute": 1e-308, "burst": 1}},
    "a budget of a retry in two weeks": {"budget": {"per_minute": 0.00005, "burst": 1}},
    "a budget of 1e308": {"budget": {"per_minute": 1e308, "burst": 1}},
    "a burst of 1e9": {"budget": {"per_minute": 1, "burst": 10**9}},
    "no crash": {"poison": {"crashes": 0, "window_s": 300}},
    "1e9 crashes": {"poison": {"crashes": 10**9, "window_s": 300}},
    "an endless window": {"poison": {"crashes": 3, "window_s": 1e308}},
    "no place at all": {"concurrency": {"key": "tenant", "limit": 0}},
    "no start at all": {"rate_limit": {"max": 0, "per_s": 1}},
    "a rate of NaN": {"rate_limit": {"max": 1, "per_s": "<NaN>"}},
    "an unknown end": {"exhausted": "panic"},
    "unknown native retries": {"native": "both"},
    "no name": {"name": ""},
    "a number as a name": {"name": 7},
    "no task": {"match": {"source": "shop", "queue": "*"}},
}


@pytest.mark.parametrize("changes", ABSURD.values(), ids=ABSURD)
def test_an_absurd_document_is_not_taken_by_the_database_itself(changes):
    with pytest.raises(DatabaseError):
        insert(policy_json(**changes))
    assert not PolicyVersion.objects.exists()


@pytest.mark.parametrize("text", ["", "no json", "[]", "7", "null", '{"name": "emails"'])
def test_what_is_no_document_is_not_taken(text):
    with pytest.raises(DatabaseError):
        insert(text)


def test_a_policy_without_a_backoff_is_taken_only_where_it_leaves_retries_to_the_task():
    limit = {"name": "limit", "mode": "enforce", "match": NORMAL["match"], "concurrency": {"limit": 3}}
    for retries in ({}, {"retries": True}, {"retries": None}):
        with pytest.raises(DatabaseError):
            insert(json.dumps(limit | retries))
    insert(json.dumps(limit | {"retries": False}))


def test_a_document_cannot_be_made_absurd_later_either():
    insert(policy_json())
    with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE {PolicyVersion._meta.db_table} SET document = %s", [policy_json(max_attempts=10**9)])


def test_an_equal_match_is_not_taken_and_neither_is_a_second_version_in_force():
    insert(policy_json())
    for other, version in (
        (policy_json(name="others"), 1),
        (policy_json(match={**NORMAL["match"], "task": "else"}), 2),
    ):
        with pytest.raises(DatabaseError):
            insert(other, version)


# What no constraint says: texts, lists of texts, and what fields mean together.
UNSAID = {
    "an error that is no text": {"classes": [{"error": 7, "as": "permanent"}]},
    "a key that leads nowhere": {"concurrency": {"key": "kwargs[0]", "limit": 3}},
    "a name of a page": {"name": "preview", "match": {**NORMAL["match"], "task": "other"}},
    "an end that is no time": {"expires_at": "tomorrow"},
    "a jitter on what is drawn": {"backoff": {"kind": "decorrelated", "first_delay_s": 2}, "jitter": {"kind": "full"}},
    "a policy as a text": {"retry_after": "soon"},
    "an endless note": {"note": "n" * 3_000},
}


# To SQLite true is 1; PostgreSQL refuses it.
TRUE = pytest.param({"max_attempts": True}, marks=pytest.mark.sqlite, id="true attempts")


@pytest.mark.server
@pytest.mark.parametrize("changes", [*(pytest.param(one, id=name) for name, one in UNSAID.items()), TRUE])
def test_what_the_database_cannot_refuse_a_worker_does_and_keeps_the_last_good_one(store, tmp_path, changes):
    worker = Policies("shop", "enforce", tmp_path)
    insert(policy_json())
    assert polled(worker, store) and worker.versions == {"emails": 1}
    PolicyVersion.objects.update(is_published=False, ended_at=timezone.now())
    insert(policy_json(**changes), 2)
    polled(worker, store)
    name = changes.get("name", "emails")
    assert worker.refused[name].endswith("The version before stays in force.")
    assert worker.versions == ({"emails": 1} if name == "emails" else {})


def polled(worker: Policies, store) -> bool:
    pushing.push()
    return worker.poll(store, store.get(keys.policies_version()))
