"""A small desk whose every failure is known, and what a search should find in it, decided without a database."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from jobs_admin.core import query as language
from jobs_admin.core import search_terms
from jobs_admin.core.priority import REDIS, level
from jobs_admin.core.query import Age, All, Any, Match, Numbers, Text, Time
from jobs_admin.ingest import indexing
from jobs_admin.models import Failure, Group, GroupSource, Traceback

NOW = datetime(2026, 11, 21, 2, 14, tzinfo=UTC)

ERRORS = [
    ("requests.exceptions.ReadTimeout", "HTTPSConnectionPool(host='api.example.com', port=443): Read timed out."),
    ("socket.gaierror", "[Errno -2] Name or service not known"),
    ("KeyError", "'order-4711'"),
    (
        "psycopg.OperationalError",
        'connection to server at "10.0.0.5", port 5432 failed: FATAL:  sorry, too many clients',
    ),
    ("shop.errors.PaymentRefused", "amount 10.00 OR currency EUR refused (code: -17) 100% of a_b"),
    ("botocore.exceptions.S3UploadFailedError", "Failed to upload /tmp/x.csv to bucket-é: ÄRGER mit ReadTimeoutError"),
    ("MemoryError", ""),
    ("Error", "connect ECONNREFUSED 127.0.0.1:6379; token=[redacted]"),
    ("", "job 9s6XKzkNRiz lost: worker_lost & gone"),
]
STACKS = [
    '  File "/srv/shop/billing.py", line 7, in charge\n    gateway.pay(order)\n',
    '  File "/srv/shop/mail.py", line 9, in send\n    smtp.sendMail(to)\n',
]
# (group, source) -> the dependency; a group may have another one, or none, at another source.
DEPENDENCIES = {
    ("v1-0", "shop"): "api.example.com",
    ("v1-0", "bank"): "api.example.com",
    ("v1-1", "shop"): "api.example.com",
    ("v1-3", "shop"): "10.0.0.5:5432",
    ("v1-3", "bank"): "postgresql",
    ("v1-5", "shop"): "",
    ("v1-5", "bank"): "aws",
    ("v1-7", "bank"): "127.0.0.1:6379",
}
# Ids in other tools: of a trace, of a Sentry event. The first begins like a word of an error.
TRACE, EVENT = "10" + "4a" * 15, "cafe" * 8
HEADERS = ["", f'{{"traceparent": "00-{TRACE}-00f067aa0ba902b7-01"}}']
ARGUMENTS = [
    ("[]", '{"customer": {"id": 42}, "email": "ann@example.org"}'),
    ('[{"tenant": "Acme"}, 42]', "{}"),
    ('["x y", true]', '{"password": "[redacted]", "email": "Bob@example.org"}'),
    ("", '{"cut": {"id": 42}, "tail": "abc'),
]


def make(seed: int = 1, n: int = 60) -> list[Failure]:
    """The failures of this world, written and indexed; the same seed gives the same."""
    rand = random.Random(seed)
    groups = [
        Group.objects.create(fingerprint=f"v1-{i}", error_type=t, message=m[:100], first_seen=NOW, last_seen=NOW)
        for i, (t, m) in enumerate(ERRORS)
    ]
    GroupSource.objects.bulk_create(
        GroupSource(
            group=next(one for one in groups if one.fingerprint == group), source=source, error_type="x", first_seen=NOW,
            last_seen=NOW, dependency=name,
        )
        for (group, source), name in DEPENDENCIES.items()
    )  # fmt: skip
    stacks = [Traceback.objects.create(sha256=f"{i}" * 64, text=text) for i, text in enumerate(STACKS)]
    rows = []
    for i in range(n):
        error = rand.randrange(len(ERRORS))
        args, kwargs = rand.choice(ARGUMENTS)
        at = NOW - timedelta(minutes=rand.randrange(10_000))
        rows.append(
            Failure(
                source=rand.choice(["shop", "shop", "bank"]),
                queue=rand.choice(["emails", "web hooks", "emails.low"]),
                first_job_id=f"job-{i}",
                job_id=rand.choice([f"job-{i}", f"again-{i}"]),
                run=1,
                state=rand.choice([*language.STATES, "dead", "dead"]),
                task=rand.choice(["mail.send", "shop.Charge", "shop.refund"]),
                group=groups[error],
                error_type=ERRORS[error][0],
                message=ERRORS[error][1],
                traceback=rand.choice([*stacks, None]),
                kind=rand.choice(["exception", "hard_limit", "lost"]),
                attempts=rand.randrange(1, 6),
                priority=rand.choice([None, 0, 5]),
                first_failed_at=at,
                failed_at=at,
                received_at=NOW,
                worker=rand.choice(["", "celery@web-3", "celery@WEB-3"]),
                host=rand.choice(["", "web-3", "db%1"]),
                release=rand.choice(["", "2026.11"]),
                tenant=rand.choice(["", "Acme", "A, B"]),
                args=args,
                kwargs=kwargs,
                headers=rand.choice(HEADERS),
                event_id=rand.choice([None, EVENT]),
            )
        )
    made = Failure.objects.bulk_create(rows)
    indexing.index(made)
    return made


def expected(query: language.Query, failures: list[Failure]) -> list[int]:
    """The ids that the query finds, latest first."""
    states = None if query.names_state else language.DEFAULT_STATES
    found = [f.pk for f in failures if (states is None or f.state in states) and all(holds(t, f) for t in query.terms)]
    return sorted(found, reverse=True)


def holds(term: language.Term, failure: Failure) -> bool:
    if isinstance(term, Any):
        return any(holds(one, failure) for one in term.of)
    if isinstance(term, All):
        return all(holds(one, failure) for one in term.of)
    return _leaf(term, failure) != term.negated


def _leaf(term: Text | Match | Numbers | Age | Time, failure: Failure) -> bool:
    if isinstance(term, Text):
        is_id = not term.glob and language.may_be_job_id(term) and term.value in (failure.job_id, failure.first_job_id)
        is_id = is_id or (not term.glob and _is_known_as(term.value, failure))
        return is_id or _has(term.value, term.glob, failure.error_type, failure.message)
    if isinstance(term, Age):
        moment = NOW - timedelta(seconds=term.seconds)
        return failure.failed_at >= moment if term.younger else failure.failed_at <= moment
    if isinstance(term, Time):
        moment = term.at or NOW - timedelta(seconds=term.ago or 0)
        return failure.failed_at >= moment if term.field == "since" else failure.failed_at <= moment
    if isinstance(term, Numbers):
        number = getattr(failure, term.field) if term.field != "replay" else None
        return number is not None and any(
            (low is None or number >= low) and (high is None or number <= high) for low, high in term.ranges
        )
    return any(_value(term.field, value, failure) for value in term.values)


def _is_known_as(text: str, failure: Failure) -> bool:
    ids = {EVENT} if failure.event_id else set()
    ids |= {TRACE, f"{TRACE}-00f067aa0ba902b7-1", f"00-{TRACE}-00f067aa0ba902b7-01"} if failure.headers else set()
    return text.lower() in ids


def _value(field: str, value: language.Value, failure: Failure) -> bool:
    if field == "error":
        if value.exact:
            return failure.error_type == value.text
        return _has(value.text, value.glob, failure.error_type, failure.message)
    if field == "message":
        return failure.message == value.text if value.exact else _has(value.text, value.glob, "", failure.message)
    if field == "trace":
        stack = failure.traceback.text if failure.traceback else ""
        return _is_known_as(value.text, failure) or (bool(stack) and _has(value.text, value.glob, "", stack))
    if field == "state":
        return failure.state in language.expand_states((value,))
    if language.is_argument(field):
        return _argument(field, value, failure)
    if field == "policy":
        return False
    if field == "priority":
        return failure.priority is not None and level(failure.priority, REDIS) == value.text
    if field == "dependency":
        name = DEPENDENCIES.get((failure.group.fingerprint, failure.source), "")
        return bool(name) and (_fits(value.text.lower(), name) if value.glob else name == value.text.lower())
    name = failure.group.fingerprint if field == "group" else getattr(failure, field)
    return _fits(value.text, name) if value.glob else name == value.text


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), text, re.S) is not None


def _contains(pattern: str, text: str) -> bool:
    """Without regard to the case of ASCII letters."""
    parts = [re.escape(_lower(part)) for part in pattern.split("*")]
    return re.search(".*".join(parts), _lower(text), re.S) is not None


def _lower(text: str) -> str:
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in text)


def _has(text: str, glob: bool, error_type: str, message: str) -> bool:
    """The sub-words of the text follow each other in type and message, or are one of their joined identifiers."""
    full = f"{error_type}: {message}" if error_type else message
    head = text.partition("*")[0] if glob else text
    wanted = _sub_words(head)
    if not wanted:
        return _contains(text, full) if glob else _contains(re.sub(r"\*", "\0", text), full.replace("*", "\0"))
    begins = glob and head[-1:].isalnum()
    words = _sub_words(error_type) + _sub_words(message)
    places = range(len(words) - len(wanted) + 1)
    found = any(_same(words[at : at + len(wanted)], wanted, begins) for at in places)
    if len(re.findall(r"[^\W_]+", head)) == 1:
        runs = _joined(error_type) | _joined(message)
        found = found or any(_same([run], ["".join(wanted)], begins) for run in runs)
    is_all = not glob or not text.partition("*")[2].strip("*")
    return found and (is_all or _contains(text, full))


def _same(words: list[str], wanted: list[str], begins: bool) -> bool:
    return words[:-1] == wanted[:-1] and (words[-1].startswith(wanted[-1]) if begins else words[-1] == wanted[-1])


@lru_cache(maxsize=10_000)
def _sub_words(text: str) -> list[str]:
    words = search_terms.document(error_type="", message=text, job_ids=[], names={}, args="", kwargs="")
    return words.partition(search_terms.TAIL)[0].split()


@lru_cache(maxsize=10_000)
def _joined(text: str) -> set[str]:
    found = set()
    for run in re.findall(r"[A-Za-z0-9]+", text):
        parts = _sub_words(run)
        found |= {"".join(parts[i:k]) for i in range(len(parts)) for k in range(i + 1, min(i + 5, len(parts) + 1))}
        found.add("".join(parts))
    return found


def _argument(field: str, value: language.Value, failure: Failure) -> bool:
    root, _, path = field.casefold().partition(".")
    copy = getattr(failure, root)
    if '"cut"' in copy:  # cut off: its first value can be read
        copy = '{"cut": {"id": 42}}'
    leaves = _leaves("", json.loads(copy)) if copy else []
    values = [shown for at, shown in leaves if path in (at, re.sub(r"(^|\.)\d+(?=\.|$)", "", at).strip("."))]
    wanted = value.text.casefold()
    return any(_is_equal(wanted, one, value.glob) for one in values)


def _is_equal(wanted: str, text: str, glob: bool) -> bool:
    if "[redacted]" in text:
        return glob and wanted == "*"  # it is there; what it is, nobody knows
    return text.startswith(wanted.partition("*")[0]) if glob else text == wanted


def _leaves(path: str, value: object) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(f"{path}.{key}".strip("."), inner)]
    if isinstance(value, list):
        return [leaf for n, inner in enumerate(value) for leaf in _leaves(f"{path}.{n}".strip("."), inner)]
    return [(path.casefold(), (value if isinstance(value, str) else json.dumps(value)).casefold())]
