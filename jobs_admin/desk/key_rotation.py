"""Columns encrypted with the payload keys: re-encryption with the first key, and keys that may be removed.

Rows are encrypted outside the transaction that writes them, and written only if unchanged since they were read. Any
number of processes may do this concurrently and be killed at any point: each body has the id of its key, so the
remaining rows are found again.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import redis
from cryptography.fernet import InvalidToken
from django.db import connection, models, transaction
from django.db.models import Count

from jobs_admin import config
from jobs_admin.core.envelope import UNOPENABLE, is_payload_key_id
from jobs_admin.db import audit, turns
from jobs_admin.fleet import heartbeats
from jobs_admin.fleet.worker_store import Named
from jobs_admin.models import Channel, Payload, SecondFactor, SourceKey, Unfiled
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.queues import liveness
from jobs_admin.trust import unsealing

UNKNOWN = "unknown"  # key id if no key of this desk decrypts the row
NOT_DETERMINED = ""  # key id if an earlier version wrote the row, and no key was tried yet
_SEALED_REPORTS = "worker-encrypted reports"

# Advice if only workers still need a key.
OVERRULE = (
    "This is not verified: heartbeats are not signed. If no worker uses the key, remove it: reports encrypted for "
    "the key are then stored raw, and filed when the key is added again."
)

_AIM_S = 0.05  # target duration of a transaction, which determines the number of rows in the next one
_MOST_ROWS, _MOST_BYTES = 1_000, 4 * 2**20  # per transaction; a larger row has its own
_NAMED = 3  # workers of a source in a sentence
_MOST_CLAIMED = 3  # per source: unknown key ids that it claims; others count as UNKNOWN


@dataclass(slots=True)
class ManyRows:
    """A column of large values with their key ids: re-encrypted in short transactions."""

    model: type[models.Model]
    label: str
    fields: tuple[str, ...] = ("body",)
    renew: Callable[[bytes], bytes] = bytes  # an additional change to each re-encrypted value
    _at_once: int = 20
    _tried: int = 0  # the highest id that this process tried among rows of unknown keys

    def counts(self) -> dict[str, int]:
        """Return the number of values per key id."""
        found = self.model._default_manager.order_by().values_list("payload_key").annotate(n=Count("pk"))
        return {key or NOT_DETERMINED: count for key, count in found}

    def begin_again(self) -> None:
        self._tried = 0

    def step(self, first: str, older: tuple[str, ...]) -> int | None:
        """Re-encrypt the next rows and return their number; None if no row is left."""
        for key in (None, *older, UNKNOWN):
            if not (rows := self._next(key)):
                continue
            if key == UNKNOWN:
                self._tried = rows[-1][0]
            changed = [(*_with_first_key(body, first, self.renew), pk, body) for pk, body in rows]
            began = time.monotonic()
            self._write(changed, key)
            self._pace(time.monotonic() - began)
            return sum(new is not old for new, _, _, old in changed)
        return None

    def _next(self, key: str | None) -> list[tuple[int, bytes]]:
        """Return (id, body) of the next rows with this key id."""
        rows = self.model._default_manager.order_by("pk")
        rows = rows.filter(payload_key__isnull=True) if key is None else rows.filter(payload_key=key)
        if key == UNKNOWN:
            rows = rows.filter(pk__gt=self._tried)
        some: list[int] = []
        left = _MOST_BYTES
        for pk, size in rows.values_list("pk", "size")[: self._at_once]:
            left -= size
            if some and left < 0:
                break
            some.append(pk)
        return [(pk, bytes(body)) for pk, body in rows.filter(pk__in=some).values_list("pk", "body")]

    def _write(self, changed: list[tuple[bytes, str, int, bytes]], key: str | None) -> None:
        """Write (body, key, id, original body) for rows that are unchanged, under this key."""
        table = connection.ops.quote_name(self.model._meta.db_table)
        under = "payload_key IS NULL" if key is None else "payload_key = %s"
        with turns.turn(), transaction.atomic():
            if connection.features.has_select_for_update_skip_locked:
                # Skips locked rows: waiting for another process's rows in a different order could deadlock.
                rows = self.model._default_manager.filter(pk__in=[pk for _, _, pk, _ in changed])
                free = set(rows.select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True))
                changed = [row for row in changed if row[2] in free]
            with connection.cursor() as cursor:
                cursor.executemany(
                    f"UPDATE {table} SET body = %s, payload_key = %s WHERE id = %s AND body = %s AND {under}",
                    [row if key is None else (*row, key) for row in changed],
                )

    def _pace(self, took_s: float) -> None:
        self._at_once = max(1, min(_MOST_ROWS, self._at_once * 2, round(self._at_once * _AIM_S / max(took_s, 1e-3))))


@dataclass(frozen=True, slots=True)
class FewRows:
    """A column of short tokens in a small table: each is tried, and all are re-encrypted in one transaction."""

    model: type[models.Model]
    label: str
    fields: tuple[str, ...]

    def counts(self) -> dict[str, int]:
        """Return the number of tokens per key id."""
        values = self.model._default_manager.values_list(*self.fields)
        return Counter(key_of(token.encode()) for row in values for value in row for token in _tokens(value))

    def begin_again(self) -> None:
        """Do nothing: all are tried each time."""

    def step(self, first: str, older: tuple[str, ...]) -> int | None:
        """Re-encrypt every token under an older key and return the number of changed rows; None if there are none."""
        if not self.counts().keys() & set(older):
            return None
        changed = 0
        with turns.turn(), transaction.atomic():
            for row in self.model._default_manager.select_for_update().order_by("pk"):
                before = [getattr(row, name) for name in self.fields]
                for name in self.fields:
                    setattr(row, name, _renewed(getattr(row, name), first))
                if before != [getattr(row, name) for name in self.fields]:
                    row.save(update_fields=self.fields)
                    changed += 1
        return changed


COLUMNS: tuple[ManyRows | FewRows, ...] = (
    ManyRows(Payload, "messages"),
    ManyRows(Unfiled, "unfiled reports", renew=unsealing.with_message_key),
    FewRows(Channel, "channel secrets", ("secrets",)),
    FewRows(SourceKey, "source keys", ("sealed",)),
    FewRows(SecondFactor, "second factors", ("sealed",)),
)

# Label -> rows that this process has re-encrypted and not yet recorded in the audit.
_unrecorded: Counter[str] = Counter()


def begin_again() -> None:
    """Try the rows with unknown keys again, like a process that has just started."""
    _unrecorded.clear()
    for column in COLUMNS:
        column.begin_again()


def step(viewer: Viewer = ENGINE) -> bool:
    """Re-encrypt the next rows with the first key. Return True while there are more.

    When none is left, record the rotation.
    """
    if config.is_read_only():
        return False
    first, *older = unsealing.key_ids()
    for column in COLUMNS:
        done = column.step(first, tuple(older))
        if done is not None:
            _unrecorded[column.label] += done
            return True
    after = {label: rows for label, rows in _unrecorded.items() if rows}
    if after:
        with transaction.atomic():
            audit.record(viewer, "payload_keys.rotate", first, after=after)
    _unrecorded.clear()
    return False


def key_of(body: bytes) -> str:
    """Return the id of the payload key that decrypts a Fernet token; UNKNOWN if none does."""
    return _opened(body)[0]


def _opened(body: bytes) -> tuple[str, bytes]:
    for key, cipher in unsealing.ciphers().items():
        try:
            return key, cipher.decrypt(body)
        except InvalidToken:
            continue
    return UNKNOWN, b""


def _with_first_key(body: bytes, first: str, renew: Callable[[bytes], bytes] = bytes) -> tuple[bytes, str]:
    """Return the value under the first key and its key id; unchanged if it already is, or if no key decrypts it."""
    key, document = _opened(body)
    if key in (first, UNKNOWN):
        return body, key
    return unsealing.ciphers()[first].encrypt(renew(document)), first


def _tokens(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _renewed(value: Any, first: str) -> Any:
    if isinstance(value, str):
        return _with_first_key(value.encode(), first)[0].decode()
    return [_renewed(one, first) for one in value]


# -- use of each key --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """Use of one key: the values encrypted with it and the workers that encrypt with it."""

    id: str  # UNKNOWN and NOT_DETERMINED represent keys without a known id
    place: int  # in REDRIVE_PAYLOAD_KEYS, from 1, which encrypts; 0: not in the setting
    rows: Mapping[str, int]  # label of a column -> values encrypted with it
    workers: tuple[Named, ...] = ()  # live workers that report using it

    @property
    def count(self) -> int:
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class Rotation:
    """Use of each payload key: those of REDRIVE_PAYLOAD_KEYS in order, then the others."""

    uses: tuple[Use, ...]
    is_store_known: bool = True  # False: the store does not answer, so workers are unknown
    silent: tuple[Named, ...] = ()  # live workers with a guard that does not report its key
    spooling: tuple[Named, ...] = ()  # live workers that may encrypt, with reports on their disk
    late: tuple[str, ...] = ()  # sources with old reports in the store, as sentences

    @property
    def first(self) -> Use:
        return self.uses[0]

    @property
    def older(self) -> list[Use]:
        """The keys after the first, to be removed."""
        return [use for use in self.uses if use.place > 1]

    @property
    def missing(self) -> list[Use]:
        """The needed keys that are not in REDRIVE_PAYLOAD_KEYS."""
        return [use for use in self.uses if not use.place and use.id != NOT_DETERMINED]

    @property
    def not_determined(self) -> Mapping[str, int]:
        return next((use.rows for use in self.uses if use.id == NOT_DETERMINED), {})

    @property
    def remaining(self) -> int:
        """Values to be re-encrypted, or whose key is not determined."""
        return sum(use.count for use in self.older) + sum(self.not_determined.values())

    def must_stay(self, use: Use) -> list[str]:
        """Return why an older key may not be removed yet, as sentences; empty if nothing known to the desk needs it."""
        return list(self._reasons(use))

    def _reasons(self, use: Use) -> Iterator[str]:
        if use.rows:
            yield f"Still encrypted with the key: {in_words(use.rows)}."
        if self.not_determined:
            yield f"Not checked yet: {in_words(self.not_determined)}."
        if not self.is_store_known:
            yield "The store does not answer, so workers that encrypt for the key are unknown."

    def reported(self, use: Use) -> list[str]:
        """Return what workers report about an older key, as sentences. Unverified: a source can keep reporting it."""
        return list(self._reports(use))

    def _reports(self, use: Use) -> Iterator[str]:
        if use.workers:
            yield f"Workers that still encrypt for the key (REDRIVE_PUBLIC_KEY): {names(use.workers)}."
        if self.silent:
            yield f"Workers with an older guard do not report which key they encrypt for: {names(self.silent)}."
        if self.spooling:
            yield f"Workers with reports on disk, which may be encrypted for the key: {names(self.spooling)}."
        for sentence in self.late:
            yield f"{sentence} The report may be encrypted for the key."


def rotation(now: datetime) -> Rotation:
    """Return the present use of each payload key."""
    rows: dict[str, dict[str, int]] = defaultdict(dict)
    for column in COLUMNS:
        for key, count in column.counts().items():
            rows[key][column.label] = count
    ids = unsealing.key_ids()
    for key, count in _sealed_reports(ids).items():
        rows[key][_SEALED_REPORTS] = count
    is_store_known, late, reports = True, {}, []
    try:
        reports = heartbeats.worker_reports(now)
        late = liveness.late_sources(now)
    except (redis.RedisError, config.BadConfiguration):
        is_store_known = False
    workers: dict[str, list[Named]] = defaultdict(list)
    which = _bounded(Counter((one.source, one.seals_for) for one in reports if one.seals_for), ids)
    for worker in reports:
        if worker.seals_for:
            workers[which[worker.source, worker.seals_for]].append((worker.source, worker.name))
    others = sorted(key for key in {*rows, *workers} - {*ids})
    return Rotation(
        tuple(
            Use(key, place, rows.get(key, {}), tuple(workers.get(key, ())))
            for place, key in [*enumerate(ids, 1), *((0, key) for key in others)]
        ),
        is_store_known,
        tuple((worker.source, worker.name) for worker in reports if worker.seals_for is None),
        tuple((worker.source, worker.name) for worker in reports if worker.spooled and worker.seals_for != ""),
        tuple(late.values()),
    )


def _bounded(counts: Mapping[tuple[str, str], int], known: Iterable[str]) -> dict[tuple[str, str], str]:
    """Return a key id for each (source, id).

    Of the ids that the desk does not have, all but the _MOST_CLAIMED most frequent of a source become UNKNOWN.
    """
    found: dict[tuple[str, str], str] = {}
    claimed: Counter[str] = Counter()
    for source, key in sorted(counts, key=lambda one: (-counts[one], one)):
        claimed[source] += key not in known
        found[source, key] = key if key in known or claimed[source] <= _MOST_CLAIMED else UNKNOWN
    return found


def in_words(rows: Mapping[str, int]) -> str:
    """Return counts by label as text: `5 messages, 1 source key`."""
    return ", ".join(f"{count:,} {label.removesuffix('s') if count == 1 else label}" for label, count in rows.items())


def _sealed_reports(known: Iterable[str]) -> Counter[str]:
    """Count the stored reports whose message a worker encrypted with a key that this desk did not have, by key id."""
    begins = f"{UNOPENABLE}for key "
    reasons = Unfiled.objects.filter(why__startswith=begins).order_by().values_list("source", "why")
    of_source: Counter[tuple[str, str]] = Counter()
    for source, why, count in reasons.annotate(n=Count("pk")):
        key = why.removeprefix(begins).partition(",")[0]
        if is_payload_key_id(key):
            of_source[source, key] += count
    found: Counter[str] = Counter()
    for place, key in _bounded(of_source, known).items():
        found[key] += of_source[place]
    return found


def names(workers: Iterable[Named]) -> str:
    """Return workers as `shop/w1, shop/w2`: the first few of each source, and the number of others."""
    of_source: dict[str, list[str]] = defaultdict(list)
    for source, name in workers:
        of_source[source].append(f"{source}/{name}")
    return ", ".join(
        ", ".join(theirs[:_NAMED]) + (f" and {len(theirs) - _NAMED:,} more of {source}" if theirs[_NAMED:] else "")
        for source, theirs in of_source.items()
    )
