"""Messages that the configured keys do not open, told from samples: a key is changed seldom, and was lost at one moment.

Nobody decrypts a million messages to count those that stay shut. Some, evenly over the ids, are tried; between one that
opens and one that does not, the border is looked for by halves. What lies between two that stay shut is taken to be shut
too. Should that be wrong of one: the sender opens each before it goes, and says so of the one that it cannot open.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from cryptography.fernet import InvalidToken
from django.db import connection
from django.db.models import Max, Min

from jobs_admin import config
from jobs_admin.models import Payload

_TRIED = 16  # evenly over the ids
_LARGEST = 64 * 1024  # bytes of a message that is worth opening for this


def ranges() -> list[tuple[int, int]]:
    """(first, last) ids of failures between which no message can be opened; none where all can."""
    # One by one: asked for both at once, SQLite walks through the index from end to end.
    first = Payload.objects.aggregate(first=Min("failure_id"))["first"]
    last = Payload.objects.aggregate(last=Max("failure_id"))["last"]
    if first is None or last is None:
        return []
    step = max(1, (last - first) // (_TRIED - 1))
    tried = _tried([*range(first, last, step), last])
    found: list[tuple[int, int]] = []
    begin = None if not tried or tried[0][1] else first
    for (before, was_open), (after, is_open) in pairwise(tried):
        if was_open == is_open:
            continue
        border = _border(before, after, is_open)
        if is_open and begin is not None:
            found.append((begin, border - 1))
            begin = None
        else:
            begin = border
    # What comes in later is sealed with a key that is there.
    return found if begin is None else [*found, (begin, last)]


def _border(low: int, high: int, is_open: bool) -> int:
    """The first id that is as `high` is, not as `low`."""
    while high - low > 1:
        middle = (low + high) // 2
        met = _tried([middle])
        if not met or met[0][0] >= high or met[0][1] == is_open:
            high = middle
        else:
            low = met[0][0]
    return high


def _tried(places: Iterable[int]) -> list[tuple[int, bool]]:
    """Of each place the first failure from that id on with a message of ordinary size, and whether that opens."""
    table = Payload._meta.db_table
    first = f"SELECT k.id FROM {table} k WHERE k.failure_id >= v.column1 AND k.is_whole AND k.size <= {_LARGEST} "
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT p.failure_id, p.body FROM (VALUES {', '.join(f'({int(place)})' for place in places)}) AS v "
            f"JOIN {table} p ON p.id = ({first} ORDER BY k.failure_id LIMIT 1)"
        )
        return [(pk, _opens(body)) for pk, body in sorted({row[0]: row[1] for row in cursor.fetchall()}.items())]


def _opens(body: bytes) -> bool:
    try:
        config.payload_keys().decrypt(bytes(body))
    except InvalidToken:
        return False
    return True
