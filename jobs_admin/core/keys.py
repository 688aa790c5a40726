"""Every name that Redrive uses in Redis, in one place.

Names that belong to one source carry it between braces. Workers write only to those of their own source, so that the store
itself can keep them from all others (`core/worker_acl.py`); and what is read there is that source's, whatever its text says.
A source's name is checked when it is configured (`valid_source`), so no user's text can shape a key.
"""

from __future__ import annotations

import hashlib
import re

PREFIX = "redrive"

# The layout of a ledger, which stands beside each token in it (`sources/celery/send.lua`).
SCHEMA = 1

# The layout of what scripts keep under a name, of which workers of several versions share one store. It is raised with a
# change that the scripts before would misread; then it stands in the keys (`redrive:{shop}:crash:2`), so that neither
# reads the other's. The first has no number. What waits under `due` has to be emptied from the old name as well.
LAYOUTS = {"due": 1, "budget": 1, "crash": 1, "limits": 1}

_SOURCE = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}(?:#\d{1,10})?\Z")  # a job's id, and `#2` for its second run


def _versioned(source: str, name: str, prefix: str) -> str:
    """The name of something that scripts keep for a source, of today's layout."""
    number = LAYOUTS[name]
    return f"{prefix}:{{{source}}}:{name}" + (f":{number}" if number > 1 else "")


def valid_source(name: str) -> bool:
    """Return whether `name` may name a source: lower-case letters, digits, `-` and `_`, at most 63."""
    return _SOURCE.match(name) is not None


def failures(source: str, prefix: str = PREFIX) -> str:
    """The stream of reports that a source's workers write and `ingest` reads."""
    return f"{prefix}:{{{source}}}:failures"


def failures_bytes(source: str, prefix: str = PREFIX) -> str:
    """Return the key of the number of bytes in that stream (`core/stream.py`). Means nothing while the stream is empty."""
    return f"{prefix}:{{{source}}}:failures:bytes"


def dropped(source: str, prefix: str = PREFIX) -> str:
    """A hash: episode -> how many failures could not be captured in it, as last reported (JSON)."""
    return f"{prefix}:{{{source}}}:dropped"


def workers(source: str, prefix: str = PREFIX) -> str:
    """A hash: worker name -> its latest heartbeat (JSON)."""
    return f"{prefix}:{{{source}}}:workers"


def tasks(source: str, digest: str, prefix: str = PREFIX) -> str:
    """The names of the tasks that some workers know (JSON list), written once for all that know the same."""
    return f"{prefix}:{{{source}}}:tasks:{digest}"


def in_hand(source: str, prefix: str = PREFIX) -> str:
    """A hash: life of a worker -> the jobs that it has fetched and not ended (JSON). See `worker/heartbeat.py`."""
    return f"{prefix}:{{{source}}}:in-hand"


def configuration(source: str, digest: str, prefix: str = PREFIX) -> str:
    """Return the key of the retry configuration of some workers (`core/lint/configuration.py`), written once for all that have the same."""
    return f"{prefix}:{{{source}}}:configuration:{digest}"


def shared(name: str, prefix: str = PREFIX) -> str:
    """A key in which guards of the version before write for all sources, named as a source's own: `failures`, `workers`, …

    A field of its hashes, and a member of its set `kept`, begins with the source and a slash; those of `dropped` name it in
    their JSON, and reports in theirs.
    """
    return f"{prefix}:{name}"


# For SCAN: keys of which each source has one that a desk has something to read of. `source_of` tells which of those found
# are meant.
SOURCES_PATTERN = "{prefix}:{{*}}:[dfkw]*[dst]"
_OF_SOURCE = re.compile(r"\{([^{}]*)\}:(?:failures|workers|dropped|kept)\Z")


def source_of(key: str, prefix: str = PREFIX) -> str | None:
    """The source of a key that is found by that pattern; None for any other key."""
    found = _OF_SOURCE.match(key.removeprefix(f"{prefix}:"))
    return found[1] if found and valid_source(found[1]) else None


def coverage(source: str, prefix: str = PREFIX) -> str:
    """Return the key of what was seen and missed of a source's events (`core/coverage.py`)."""
    return f"{prefix}:{{{source}}}:coverage"


def options(source: str, prefix: str = PREFIX) -> str:
    """Return the key of the retry options of the jobs in a source's queues (`core/lint/options.py`), as `sample` found it last."""
    return f"{prefix}:{{{source}}}:options"


def switch(prefix: str = PREFIX) -> str:
    """`off` here silences the guard in every worker (`manage.py off`)."""
    return f"{prefix}:switch"


def store_id(prefix: str = PREFIX) -> str:
    """The id of this store: a backup names it, so that a restore knows whether the store is the one of the backup."""
    return f"{prefix}:store"


def steps(prefix: str = PREFIX) -> str:
    """A hash: step of `watch` -> when it last finished a round (JSON)."""
    return f"{prefix}:watch"


def reading(prefix: str = PREFIX) -> str:
    """A hash: ingest process -> the entries it is reading just now, and how many processes ended while reading them."""
    return f"{prefix}:reading"


def store_findings(prefix: str = PREFIX) -> str:
    """Return the key of the dangers to the data of this store (JSON list), as `sample` found it in the last minutes."""
    return f"{prefix}:store-findings"


def audit_head(prefix: str = PREFIX) -> str:
    """The latest row of the audit that `watch` saw (JSON, signed), so that rows cut off at the end are noticed."""
    return f"{prefix}:audit-head"


def unjudged_rules(prefix: str = PREFIX) -> str:
    """Rules of alerts that could not be judged in the last minute (JSON: name -> why)."""
    return f"{prefix}:unjudged-rules"


def ledger(source: str, replay: str, prefix: str = PREFIX) -> str:
    """A hash in the broker's own Redis: which tokens of one replay were sent, and which of them taken back."""
    return f"{prefix}:{{{source}}}:ledger:{replay}"


def dead_letters(source: str, what: str, queue: str, prefix: str = PREFIX) -> str:
    """In the store: what is known of copies in one of RabbitMQ's queues (`sources/rabbitmq/copies.py`)."""
    return f"{prefix}:{{{source}}}:dead-letters:{what}:{short(queue)}"


def short(text: str) -> str:
    """A name of any characters, such as a queue's, as sixteen."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def once(source: str, token: str, attempt: int, prefix: str = PREFIX) -> str:
    """In the store: which life of a worker began this attempt of what a replay sent (`worker/once.py`)."""
    return f"{prefix}:{{{source}}}:once:{_safe_part(token)}:{attempt}"


def removals(source: str, prefix: str = PREFIX) -> str:
    """A hash in the broker's own Redis: list -> how many jobs were ever taken out of its middle."""
    return f"{prefix}:{{{source}}}:removals"


def sent(source: str, queue: str, prefix: str = PREFIX) -> str:
    """The prefix of a key in the broker's own Redis: with a job's id behind it, it marks the job as sent by Redrive
    (`sources/bullmq/send.lua`).
    """
    return f"{prefix}:{{{source}}}:sent:{queue}:"


def whole_since(source: str, prefix: str = PREFIX) -> str:
    """A time in the broker's own Redis, without a time to live: since then no data was lost (ms since 1970), `0` where
    none ever was. The key is missing where data was lost.
    """
    return f"{prefix}:{{{source}}}:whole-since"


def copies(source: str, prefix: str = PREFIX) -> str:
    """A hash in BullMQ's own Redis: queue and id of a job -> the places of its copies in dead-letter queues. Beside it,
    `…:places`: dead-letter queue -> the place up to which it was read.
    """
    return f"{prefix}:{{{source}}}:copies"


def policies(prefix: str = PREFIX) -> str:
    """A hash: name of a policy -> the version of it that is in force (JSON: name, version, policy)."""
    return f"{prefix}:policies"


def policies_version(prefix: str = PREFIX) -> str:
    """A number, another one whenever the hash of policies is: what workers ask for every second."""
    return f"{prefix}:policies:version"


def pauses(source: str, prefix: str = PREFIX) -> str:
    """The paused queues and tasks of a source, as its workers read them each second (JSON, `core/pauses.py`)."""
    return f"{prefix}:{{{source}}}:pauses"


def due(source: str, prefix: str = PREFIX) -> str:
    """A sorted set: delayed job -> when it is due (ms since 1970 by the server's clock). In the broker's own Redis, where
    the broker is one, else in the store."""
    return _versioned(source, "due", prefix)


def due_jobs(source: str, prefix: str = PREFIX) -> str:
    """A hash beside `due`: delayed job -> its message, and where it goes."""
    return f"{_versioned(source, 'due', prefix)}:jobs"


def due_claims(source: str, prefix: str = PREFIX) -> str:
    """A hash beside `due`: delayed job that was claimed for a while -> its claimant, until `due` says that it is due."""
    return f"{_versioned(source, 'due', prefix)}:claims"


def budget(source: str, prefix: str = PREFIX) -> str:
    """A hash: budget -> when it will be full again, and what it was like when last spent from (`worker/budget.lua`)."""
    return _versioned(source, "budget", prefix)


def crash(source: str, job: str, prefix: str = PREFIX) -> str:
    """A hash: the starts of one job that have not ended in order. Not there for a job that never crashed and does not run."""
    return f"{_versioned(source, 'crash', prefix)}:job:{_safe_part(job)}"


def boots(source: str, prefix: str = PREFIX) -> str:
    """A sorted set: each life of a worker -> when it last gave a sign (ms since 1970). See `boot` for one of them."""
    return f"{_versioned(source, 'crash', prefix)}:boots"


# A worker gives a sign every five seconds; one that has not for so long is dead.
SILENT_MS = 15_000


def boot(source: str, boot: str, prefix: str = PREFIX) -> str:
    """A hash: who this life of a worker is, how it ended, and how many bytes the stream may hold for what it keeps. Beside
    it, `…:running`: the jobs that are counted and run in it, and `…:held`: the places (`leases`) that its jobs hold."""
    return f"{_versioned(source, 'crash', prefix)}:boot:{boot}"


def kept_boots(source: str, prefix: str = PREFIX) -> str:
    """A set: each life of a worker that keeps, or kept, the jobs which run in it (`kept`)."""
    return f"{prefix}:{{{source}}}:kept"


def kept(source: str, boot: str, prefix: str = PREFIX) -> str:
    """A hash: job that runs in this life of a worker -> the report that files it as lost, should the worker die. Beside it,
    `…:lost`: a set of those that were filed so."""
    return f"{prefix}:{{{source}}}:kept:{boot}"


def bullmq_kept(source: str, prefix: str = PREFIX) -> str:
    """A sorted set in BullMQ's own Redis: `queue:job` of the jobs that failed and that it may forget -> when, seconds since 1970.

    Beside it, `…:queue:job`: the job's hash; and `…-bytes`: how many these are (`clients/node/lua/keep.lua`)."""
    return f"{prefix}:{{{source}}}:bullmq:kept"


def leases(source: str, policy: str, value: str, prefix: str = PREFIX) -> str:
    """A sorted set: holder of one of a policy's places for this value of its key -> expiry of the place (ms since
    1970).

    Beside it, `…:line`: the jobs that wait for a place -> time at which they began to wait.
    """
    return f"{_versioned(source, 'limits', prefix)}:leases:{policy}:{_safe_part(value)}"


def starts(source: str, policy: str, prefix: str = PREFIX) -> str:
    """A list: start times of a policy's last jobs (µs since 1970), latest first. Beside it, `…:line`: the jobs that
    wait for their turn -> time of that turn.
    """
    return f"{_versioned(source, 'limits', prefix)}:starts:{policy}"


def _safe_part(text: str) -> str:
    """As it is where it is short and plain, else a digest: what a job says must not shape a key."""
    return text if _PLAIN.match(text) else "x" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
