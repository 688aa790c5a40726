"""Names and hashes that workers write in the store, by source.

The key determines the source; a source named in a text is ignored. Guards of the previous version write for all sources
in shared keys, where the name of a field starts with the source. All reads are limited, and a key of another type
counts as empty, so that no source can prevent the reading of another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import redis

from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.models import Source

Named = tuple[str, str]  # a source, and a worker's name or one of its boots

MOST_FOUND = 200  # sources only known from the store's keys
_KEYS_A_PAGE = 1_000
_PAGES = 5  # of the store's keys, searched in one call
_EVERY_S = 1.0  # between such calls, if there is more than a page: some per mille of the store's time
_ALL_PAGES = 5_000  # in the first call of a process
_REGISTERED_S = 5.0  # cache time of registered sources
MOST_FIELDS = 20_000  # per hash
_MOST_BYTES = 32 * 2**20
_MOST_TEXT = 2**20
_MOST_MEMBERS = 1_000

_KEY_OF: dict[str, Callable[[str], str]] = {
    "workers": keys.workers,
    "in-hand": keys.in_hand,
    "dropped": keys.dropped,
    "kept": keys.kept_boots,
}


class _Found:
    """Sources found among the store's keys so far by this process, and those that the desk has registered."""

    def __init__(self) -> None:
        self._cursor = 0
        self._before: set[str] = set()  # in the last pass through all keys
        self._names: set[str] = set()  # in the current pass
        self._has_passed = False
        self._pages = 0  # of this pass
        self._is_large = False
        self._searched_at = float("-inf")  # monotonic
        self._registered: tuple[float, set[str]] = float("-inf"), set()

    @property
    def registered(self) -> set[str]:
        if time.monotonic() - self._registered[0] > _REGISTERED_S:
            self._registered = time.monotonic(), set(Source.objects.values_list("name", flat=True))
        return self._registered[1]

    def search(self, store: redis.Redis) -> set[str]:
        if self._is_large and time.monotonic() - self._searched_at < _EVERY_S:
            return self._before | self._names
        self._searched_at = time.monotonic()
        pattern = keys.SOURCES_PATTERN.format(prefix=keys.PREFIX)
        for _ in range(_PAGES if self._has_passed else _ALL_PAGES):
            answer: Any = store.scan(self._cursor, match=pattern, count=_KEYS_A_PAGE)
            self._cursor, page = int(answer[0]), answer[1]
            self._pages += 1
            for source in filter(None, (keys.source_of(key.decode("utf-8", "replace")) for key in page)):
                if len(self._names) < MOST_FOUND:
                    self._names.add(source)
            if not self._cursor:
                self._before, self._names, self._has_passed = self._names, set(), True
                self._is_large, self._pages = self._pages > 2, 0
                break
        return self._before | self._names


_found = _Found()


def restart_search() -> None:
    """Restart the search for sources, like a process that has just started."""
    global _found
    _found = _Found()


def all_sources(store: redis.Redis) -> list[str]:
    """Return configured sources, recently registered ones, and up to MOST_FOUND others found in the store.

    Raises redis.RedisError, and errors of the database.
    """
    return sorted({*_found.search(store), *config.sources(), *_found.registered})


def fields(
    store: redis.Redis, name: str, of: Iterable[str], most: int = MOST_FIELDS, *, all_shared: bool = False
) -> dict[Named, bytes]:
    """Return the fields of the hash `name` (`workers`, `in-hand`, `dropped`) of these sources, at most `most` of each.

    `all_shared`: also those of other sources in the hash shared by guards of the previous version.
    """
    names = sorted(set(of))
    *own, shared = hashes(store, [*map(_KEY_OF[name], names), keys.shared(name)], most)
    found = {}
    for field, text in shared:
        source, slash, rest = field.decode("utf-8", "replace").partition("/")
        if slash and (source in names or (all_shared and keys.valid_source(source))):
            found[source, rest] = text
    for source, pairs in zip(names, own, strict=True):
        found |= {(source, field.decode("utf-8", "replace")): text for field, text in pairs}
    return found


def shared_fields(store: redis.Redis, name: str, most: int = MOST_FIELDS) -> dict[bytes, bytes]:
    """Return the fields of the hash `name` shared by guards of the previous version."""
    return dict(hashes(store, [keys.shared(name)], most)[0])


def forget_fields(store: redis.Redis, name: str, which: Iterable[Named]) -> None:
    """Remove fields from a hash that workers write."""
    pipeline = store.pipeline(transaction=False)
    for source, field in which:
        pipeline.hdel(_KEY_OF[name](source), field)
        pipeline.hdel(keys.shared(name), f"{source}/{field}")
    for answer in pipeline.execute(raise_on_error=False):
        empty_if_wrong_type(None, answer)


def boots_with_jobs(store: redis.Redis, of: Sequence[str]) -> list[Named]:
    """Return the boots of workers with stored jobs, of these sources; at most a thousand of each."""
    pipeline = store.pipeline(transaction=False)
    for source in of:
        pipeline.srandmember(keys.kept_boots(source), _MOST_MEMBERS)
    pipeline.srandmember(keys.shared("kept"), _MOST_MEMBERS)
    *own, shared = (empty_if_wrong_type([], answer) for answer in pipeline.execute(raise_on_error=False))
    found = {(source, boot.decode("utf-8", "replace")) for source, boots in zip(of, own, strict=True) for boot in boots}
    for place in shared:
        source, _, boot = place.decode("utf-8", "replace").partition("/")
        if keys.valid_source(source):
            found.add((source, boot))
    return sorted(found)


def texts(store: redis.Redis, name: str, wanted: Iterable[Named]) -> dict[Named, bytes]:
    """Return the existing texts `tasks` or `configuration` of these sources by digest."""
    wanted = sorted(set(wanted))
    key_of = {"tasks": keys.tasks, "configuration": keys.configuration}[name]
    pipeline = store.pipeline(transaction=False)
    for source, digest in wanted:
        pipeline.getrange(key_of(source, digest), 0, _MOST_TEXT)
        pipeline.getrange(keys.shared(f"{name}:{digest}"), 0, _MOST_TEXT)
    answers = [empty_if_wrong_type(b"", answer) for answer in pipeline.execute(raise_on_error=False)] if wanted else []
    found = zip(wanted, answers[::2], answers[1::2], strict=True)
    return {named: own or shared for named, own, shared in found if own or shared}


def hashes(
    store: redis.Redis, names: Sequence[str], most: int, most_bytes: int = _MOST_BYTES
) -> list[list[tuple[bytes, bytes]]]:
    """Return fields and values of each hash, limited in number and total length; empty for another type."""
    answers: Any = store.register_script(_script())(keys=names, args=[most, most_bytes])
    return [list(zip(pairs[::2], pairs[1::2], strict=True)) for pairs in answers]


@cache
def _script() -> str:
    return Path(__file__).with_suffix(".lua").read_text()


def is_wrong_type(answer: Any) -> bool:
    """Return whether a key has an unexpected type. `answer`: of a pipeline that does not raise."""
    return isinstance(answer, redis.ResponseError) and "WRONGTYPE Operation" in str(answer)


def empty_if_wrong_type(empty: Any, answer: Any) -> Any:
    """Return the answer; `empty` for a key of another type. Raises the store's other errors."""
    if is_wrong_type(answer):
        return empty
    if isinstance(answer, Exception):
        raise answer
    return answer
