"""Names of all keys that Redrive uses in Redis.

Names that belong to one source contain it in braces. Workers write only to those of their own source, so the store can
deny them all others (`core/worker_acl.py`), and data read there is that source's, whatever its text claims. Source
names are checked when configured (`valid_source`), so no user's text can shape a key.
"""

from __future__ import annotations

import hashlib
import re

PREFIX = "redrive"

# Layout version of a ledger, stored beside each token in it (`sources/celery/send.lua`).
SCHEMA = 1

# Layout versions of data that scripts store under a name, because workers of several versions share one store. Raise
# one with a change that earlier scripts would misread: the version then becomes part of the keys
# (`redrive:{shop}:crash:2`), so neither reads the other's. The first version has no number. Jobs waiting under `due`
# must also be moved from the old name.
LAYOUTS = {"due": 1, "budget": 1, "crash": 1, "limits": 1}

_SOURCE = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}(?:#\d{1,10})?\Z")  # a job's id, and `#2` for its second run


def _versioned(source: str, name: str, prefix: str) -> str:
    """Return the current layout's name for data that scripts store for a source."""
    number = LAYOUTS[name]
    return f"{prefix}:{{{source}}}:{name}" + (f":{number}" if number > 1 else "")


def valid_source(name: str) -> bool:
    """Return whether `name` is a valid source name: lower-case letters, digits, `-` and `_`, at most 63."""
    return _SOURCE.match(name) is not None


def failures(source: str, prefix: str = PREFIX) -> str:
    """Return the stream of reports that a source's workers write and `ingest` reads."""
    return f"{prefix}:{{{source}}}:failures"


def failures_bytes(source: str, prefix: str = PREFIX) -> str:
    """Return the number of bytes in that stream (`core/stream.py`). Meaningless while the stream is empty."""
    return f"{prefix}:{{{source}}}:failures:bytes"


def dropped(source: str, prefix: str = PREFIX) -> str:
    """Return the hash: episode -> number of failures that could not be captured, as last reported (JSON)."""
    return f"{prefix}:{{{source}}}:dropped"


def workers(source: str, prefix: str = PREFIX) -> str:
    """Return the hash: worker name -> its latest heartbeat (JSON)."""
    return f"{prefix}:{{{source}}}:workers"


def tasks(source: str, digest: str, prefix: str = PREFIX) -> str:
    """Return the names of the tasks that some workers registered (JSON list), written once per distinct list."""
    return f"{prefix}:{{{source}}}:tasks:{digest}"


def in_hand(source: str, prefix: str = PREFIX) -> str:
    """Return the hash: life of a worker -> its jobs in hand, fetched and not ended (JSON).

    See `worker/heartbeat.py`.
    """
    return f"{prefix}:{{{source}}}:in-hand"


def configuration(source: str, digest: str, prefix: str = PREFIX) -> str:
    """Return the retry configuration of some workers (`core/lint/configuration.py`), written once per distinct one."""
    return f"{prefix}:{{{source}}}:configuration:{digest}"


def shared(name: str, prefix: str = PREFIX) -> str:
    """Return a key that guards of the previous version write for all sources, named like a source's own: `failures`,
    `workers`, …

    Fields of its hashes, and members of its set `kept`, start with the source and a slash; `dropped` and reports name
    the source in their JSON.
    """
    return f"{prefix}:{name}"


# Pattern for SCAN: keys that each source has once and that a desk reads. `source_of` filters the result.
SOURCES_PATTERN = "{prefix}:{{*}}:[dfkw]*[dst]"
_OF_SOURCE = re.compile(r"\{([^{}]*)\}:(?:failures|workers|dropped|kept)\Z")


def source_of(key: str, prefix: str = PREFIX) -> str | None:
    """Return the source of a key found by that pattern; None for any other key."""
    found = _OF_SOURCE.match(key.removeprefix(f"{prefix}:"))
    return found[1] if found and valid_source(found[1]) else None


def coverage(source: str, prefix: str = PREFIX) -> str:
    """Return the coverage of a source's events (`core/coverage.py`)."""
    return f"{prefix}:{{{source}}}:coverage"


def options(source: str, prefix: str = PREFIX) -> str:
    """Return the retry options of the jobs in a source's queues (`core/lint/options.py`), as last sampled."""
    return f"{prefix}:{{{source}}}:options"


def switch(prefix: str = PREFIX) -> str:
    """Return the switch: the value `off` silences the guard in every worker (`manage.py off`)."""
    return f"{prefix}:switch"


def store_id(prefix: str = PREFIX) -> str:
    """Return the id of this store. A backup contains it, so that a restore can compare the stores."""
    return f"{prefix}:store"


def steps(prefix: str = PREFIX) -> str:
    """Return the hash: step of `watch` -> end of its latest round (JSON)."""
    return f"{prefix}:watch"


def reading(prefix: str = PREFIX) -> str:
    """Return the hash: ingest process -> the entries it is reading now, and how many processes ended while reading
    them.
    """
    return f"{prefix}:reading"


def store_findings(prefix: str = PREFIX) -> str:
    """Return the risks to the data of this store (JSON list), as last sampled."""
    return f"{prefix}:store-findings"


def audit_head(prefix: str = PREFIX) -> str:
    """Return the latest row of the audit that `watch` saw (JSON, signed), which reveals rows cut off at the end."""
    return f"{prefix}:audit-head"


def unjudged_rules(prefix: str = PREFIX) -> str:
    """Return the alert rules that could not be evaluated in the last minute (JSON: name -> why)."""
    return f"{prefix}:unjudged-rules"


def ledger(source: str, replay: str, prefix: str = PREFIX) -> str:
    """Return the hash in the broker's own Redis: tokens of one replay that were sent, and those taken back."""
    return f"{prefix}:{{{source}}}:ledger:{replay}"


def dead_letters(source: str, what: str, queue: str, prefix: str = PREFIX) -> str:
    """Return what is known of copies in one of RabbitMQ's queues, in the store (`sources/rabbitmq/copies.py`)."""
    return f"{prefix}:{{{source}}}:dead-letters:{what}:{short(queue)}"


def short(text: str) -> str:
    """Return a hash of sixteen characters for a name of any characters, such as a queue's."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def once(source: str, token: str, attempt: int, prefix: str = PREFIX) -> str:
    """Return the life of a worker that started this attempt of a replayed job, in the store (`worker/once.py`)."""
    return f"{prefix}:{{{source}}}:once:{_safe_part(token)}:{attempt}"


def removals(source: str, prefix: str = PREFIX) -> str:
    """Return the hash in the broker's own Redis: list -> total number of jobs removed from its middle."""
    return f"{prefix}:{{{source}}}:removals"


def sent(source: str, queue: str, prefix: str = PREFIX) -> str:
    """Return the prefix of a key in the broker's own Redis that marks a job, by the id appended, as sent by Redrive
    (`sources/bullmq/send.lua`).
    """
    return f"{prefix}:{{{source}}}:sent:{queue}:"


def whole_since(source: str, prefix: str = PREFIX) -> str:
    """Return the time since which no data was lost, in the broker's own Redis, without expiry (Unix ms); `0` if
    none ever was. The key is missing after a loss.
    """
    return f"{prefix}:{{{source}}}:whole-since"


def copies(source: str, prefix: str = PREFIX) -> str:
    """Return the hash in BullMQ's own Redis: queue and id of a job -> positions of its copies in dead-letter queues.

    Beside it, `…:places`: dead-letter queue -> position up to which it was read.
    """
    return f"{prefix}:{{{source}}}:copies"


def policies(prefix: str = PREFIX) -> str:
    """Return the hash: name of a policy -> its version in force (JSON: name, version, policy)."""
    return f"{prefix}:policies"


def policies_version(prefix: str = PREFIX) -> str:
    """Return a number that changes with the hash of policies; workers poll it every second."""
    return f"{prefix}:policies:version"


def pauses(source: str, prefix: str = PREFIX) -> str:
    """Return the paused queues and tasks of a source, which its workers read every second (JSON, `core/pauses.py`)."""
    return f"{prefix}:{{{source}}}:pauses"


def older_desk(source: str, prefix: str = PREFIX) -> str:
    """Return the key set for a minute when the desk overwrote pauses published by an older desk."""
    return f"{prefix}:{{{source}}}:older-desk"


def breakers(source: str, prefix: str = PREFIX) -> str:
    """Return the hash: name of a breaker -> its number and document (`NUMBER JSON`, `core/breaker.py`).

    Workers and the desk change a breaker by compare-and-set on its number.
    """
    return f"{prefix}:{{{source}}}:breakers"


def due(source: str, prefix: str = PREFIX) -> str:
    """Return the sorted set: delayed job -> due time (Unix ms by the server's clock).

    In the broker's own Redis if the broker is Redis, else in the store.
    """
    return _versioned(source, "due", prefix)


def due_jobs(source: str, prefix: str = PREFIX) -> str:
    """Return the hash beside `due`: delayed job -> its message and destination."""
    return f"{_versioned(source, 'due', prefix)}:jobs"


def due_claims(source: str, prefix: str = PREFIX) -> str:
    """Return the hash beside `due`: claimed job -> its claim, valid until its due time."""
    return f"{_versioned(source, 'due', prefix)}:claims"


def due_gone(source: str, prefix: str = PREFIX) -> str:
    """Return the sorted set beside `due`: idempotency key of a delayed job (`worker/delays.py`) -> time it left for
    its queue (ms).
    """
    return f"{_versioned(source, 'due', prefix)}:gone"


def holds(source: str, breaker: str, prefix: str = PREFIX) -> str:
    """Return the sorted set beside `due`: delayed job that a breaker holds -> its place in the release.

    Beside it, `…:places`: latest place of each priority and tenant.
    """
    return f"{holding_breakers(source, prefix)}:{short(breaker)}"


def on_hold(source: str, prefix: str = PREFIX) -> str:
    """Return the number of jobs that each breaker of a source holds, as last sampled, in the store (JSON,
    `retries/promoting.py`).
    """
    return f"{prefix}:{{{source}}}:on-hold"


def holding_breakers(source: str, prefix: str = PREFIX) -> str:
    """Return the set beside `due`: breakers that hold jobs."""
    return f"{_versioned(source, 'due', prefix)}:held"


def budget(source: str, prefix: str = PREFIX) -> str:
    """Return the hash: budget -> time when it is full again, and its parameters at the last use
    (`worker/budget.lua`).
    """
    return _versioned(source, "budget", prefix)


def crash(source: str, job: str, prefix: str = PREFIX) -> str:
    """Return the hash of one job's starts without an orderly end.

    Missing for a job that never crashed and does not run.
    """
    return f"{_versioned(source, 'crash', prefix)}:job:{_safe_part(job)}"


def boots(source: str, prefix: str = PREFIX) -> str:
    """Return the sorted set: life of a worker -> its latest beat (Unix ms). See `boot` for one of them."""
    return f"{_versioned(source, 'crash', prefix)}:boots"


# A worker beats every 5 s; after this time without a beat it is dead.
SILENT_MS = 15_000


def boot(source: str, boot: str, prefix: str = PREFIX) -> str:
    """Return the hash of one life of a worker: its identity, its end, and the stream's limit for what it stores.

    Beside it, `…:running`: counted jobs that run in it; `…:held`: slots (`leases`) that its jobs hold.
    """
    return f"{_versioned(source, 'crash', prefix)}:boot:{boot}"


def kept_boots(source: str, prefix: str = PREFIX) -> str:
    """Return the set of lives of workers that store, or stored, their running jobs (`kept`)."""
    return f"{prefix}:{{{source}}}:kept"


def kept(source: str, boot: str, prefix: str = PREFIX) -> str:
    """Return the hash: job running in this life of a worker -> the report that files it as lost if the worker dies.

    Beside it, `…:lost`: the set of jobs filed that way.
    """
    return f"{prefix}:{{{source}}}:kept:{boot}"


def bullmq_kept(source: str, prefix: str = PREFIX) -> str:
    """Return the sorted set in BullMQ's own Redis: `queue:job` of failed jobs that BullMQ may remove -> time, Unix
    seconds.

    Beside it, `…:queue:job`: the job's hash; and `…-bytes`: the size of these hashes (`clients/node/lua/keep.lua`).
    """
    return f"{prefix}:{{{source}}}:bullmq:kept"


def leases(source: str, policy: str, value: str, prefix: str = PREFIX) -> str:
    """Return the sorted set: holder of a policy's slot for this value of its key -> expiry of the slot (Unix ms).

    Beside it, `…:line`: jobs that wait for a slot -> time at which they began to wait.
    """
    return f"{_versioned(source, 'limits', prefix)}:leases:{policy}:{_safe_part(value)}"


def starts(source: str, policy: str, prefix: str = PREFIX) -> str:
    """Return the list of start times of a policy's latest jobs (Unix µs), latest first.

    Beside it, `…:line`: jobs that wait for their turn -> time of that turn.
    """
    return f"{_versioned(source, 'limits', prefix)}:starts:{policy}"


def _safe_part(text: str) -> str:
    """Return the text if short and plain, else a digest: a job's data must not shape a key."""
    return text if _PLAIN.match(text) else "x" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
