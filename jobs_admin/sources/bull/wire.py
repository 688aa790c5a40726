"""Bull's keys in one Redis (Bull 3.29 and 4.16, measured): BullMQ's without `events`, `marker` and `prioritized`, and with
nothing but a pause in `meta`.

A queue is found by its counter `id`. Nothing in it states a version, and Bull 3 and 4 write the same. Up to Bull 2,
`failed` is a set without times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import redis
from redis.exceptions import NoPermissionError

from jobs_admin.sources.bullmq.wire import BULL, BULLMQ_KEYS, RIGHTS, Events, JobEvent, Version, Wire, number, text

_PROBE = RIGHTS + "local why = why_no_right(KEYS[1])\nreturn why and redis.error_reply(why) or 'OK'"


class BullWire(Wire):
    system = "Bull"
    majors = (BULL,)
    known = "Bull 3 and 4"
    marks = ("id", "string")
    has_dead_letter_queues = False
    has_events = False

    def find_others(self) -> bool:
        return self._left_out

    def versions_of(self, queues: Sequence[str]) -> dict[str, Version]:
        pipe = self.client.pipeline(transaction=False)
        for queue in queues:
            pipe.exists(*(self.key(queue, name) for name in BULLMQ_KEYS))
            pipe.hlen(self.key(queue, "meta"))
            pipe.hexists(self.key(queue, "meta"), "paused")
            pipe.type(self.key(queue, "failed"))
            pipe.exists(self.key(queue, "meta-paused"))
        answers = iter(pipe.execute(raise_on_error=False))
        return {queue: _version(*(next(answers) for _ in range(5))) for queue in queues}

    def events(self, begins: Mapping[str, str], count: int) -> tuple[dict[str, Events], dict[str, str]]:
        return {}, {}  # Bull publishes its events, and stores none

    def events_from(self, queue: str, ids: Sequence[str], begin: str) -> tuple[dict[str, list[JobEvent]], str]:
        return {}, begin

    def why_read_only(self) -> str:
        """Return why writing is not possible; "" if it is, by all commands that a send needs, in the first queue."""
        if why := super().why_read_only():
            return why
        try:
            self.client.eval(_PROBE, 1, self.base((self.queues() or ["redrive"])[0]))
        except redis.ResponseError as error:
            if "NOPERM" in str(error) or isinstance(error, NoPermissionError):
                return f"This user may not run all commands that a send needs in {self.where}: {error}."[:300]
            # Else it is full or cannot save: jobs can be read, and it refuses a send itself.
        return ""


def _version(keys: object, settings: object, has_pause: object, failed: object, is_paused: object) -> Version:
    # Bull notes a pause in `meta`, and nothing else.
    if number(keys) or number(settings) > int(has_pause is True):
        return Version("BullMQ, not Bull", backend="bullmq")
    if text(failed if isinstance(failed, bytes | str) else b"") not in {"none", "zset"}:
        return Version("a version before Bull 3")
    return Version("Bull 3 or 4", is_paused == 1, BULL)
