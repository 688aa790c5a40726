"""The story of a played incident, kept in the demo's broker: /demo/ asks for one and shows it, `demo.play` plays it.

One is played at a time: `TICKET` is its requester, until its end. The measurements stay until the next.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field
from typing import Any

import redis

from demo.control import BadWish, DemoUnreachable

TICKET = "demo:incident"
STORY = "demo:incident:story"
STOP = "demo:incident:stop"  # the id of the one that is to stop
PLAYER = "demo:incident:player"  # a sign of life that forgets itself

ACTS = ("outage", "group", "condition", "at_once", "careful", "held")
SIDES = ("at_once", "careful", "held")
TENANT = "lighthouse"  # a customer that the shop has for this alone
JOBS = 300
THRESHOLD = 100  # dead jobs: the condition


@dataclass(frozen=True, slots=True)
class Ticket:
    id: str
    user_id: int
    name: str


@dataclass(slots=True)
class Second:
    """One second at the partner, as it counted it."""

    requests: int
    refused: int
    capacity: float | None  # requests/s that it could carry; None: it was down, or carried any
    left: int | None  # jobs that had not come back yet


@dataclass(slots=True)
class Side:
    """Requests at the partner in an outage, or after it. Times in seconds after `began`, which is on the partner's clock."""

    began: float
    falls_before: int  # the partner counts them since it runs, like the next
    served_before: int = 0
    replay: int | None = None
    seconds: list[Second | None] = field(default_factory=list)  # None: nobody looked
    falls: list[float] = field(default_factory=list)
    jobs: int = 0  # that it was to bring back
    ended: float | None = None  # when the last of its jobs was settled
    state: str = ""  # of the replay, or of the breaker
    said: str = ""  # why it is held
    succeeded: int = 0
    failed_again: int = 0
    on_hold: int = 0  # jobs that the breaker has put aside

    @property
    def peak(self) -> int:
        """The most requests in a second."""
        return max((second.requests for second in self.seconds if second), default=0)

    @property
    def while_down(self) -> int:
        """Requests that it did not answer."""
        return sum(second.refused for second in self.seconds if second)


@dataclass(slots=True)
class Story:
    id: str
    by: str
    user_id: int
    began_at: float  # seconds since 1970
    jobs: int
    after: int  # the highest failure before it
    act: str = ACTS[0]
    published: int = 0
    dead: int = 0
    left: int = 0  # jobs that have not come back
    broken_at: float | None = None  # since 1970, like the next three
    failed_at: float | None = None  # the first failure was on the desk
    reached_at: float | None = None  # dead jobs reached the threshold
    all_dead_at: float | None = None
    broken_again_at: float | None = None  # the second outage began
    groups: list[dict[str, str]] = field(default_factory=list)  # fingerprint, title, state
    outages: dict[str, Side] = field(default_factory=dict)  # "dead": without the breaker; "held": with it
    sides: dict[str, Side] = field(default_factory=dict)
    most_per_s: float = 0.0  # requests that the worker managed in the outage
    scale: float = 1.0  # of what the warehouse carries once it is back: less where the worker is slow
    tidying_since: float | None = None
    outcome: str = ""  # played, stopped, failed; empty until it is known
    why: str = ""  # it failed
    ended_at: float | None = None

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None


@dataclass(frozen=True, slots=True)
class Seen:
    ticket: Ticket | None  # of the one that is played or waits to be
    story: Story | None  # of that one, or of the last one
    has_player: bool

    @property
    def is_playing(self) -> bool:
        return self.ticket is not None


def request(broker: redis.Redis, user_id: int, name: str) -> Ticket:
    """Request an incident. Raises BadWish while one is played, DemoUnreachable if no player runs."""
    ticket = Ticket(secrets.token_hex(4), user_id, name)
    try:
        if not broker.exists(PLAYER):
            raise DemoUnreachable(
                "The demo's player is not running. Nothing was changed. It starts with up; its log is "
                "log/play.log in the data folder."
            )
        is_accepted = broker.set(TICKET, json.dumps(asdict(ticket)), nx=True)
    except redis.RedisError as error:
        raise _away(error) from error
    if not is_accepted:
        raise BadWish("An incident demo is running already. Nothing was changed. Wait until it ends, or stop it.")
    return ticket


def stop(broker: redis.Redis) -> None:
    """Let the one that is played end now. Raises BadWish when there is none."""
    ticket = read(broker).ticket
    if ticket is None:
        raise BadWish("No incident demo is running. Nothing was changed.")
    try:
        broker.set(STOP, ticket.id, ex=600)
    except redis.RedisError as error:
        raise _away(error) from error


def read(broker: redis.Redis) -> Seen:
    """Raises DemoUnreachable."""
    try:
        ticket, story, player = broker.mget(TICKET, STORY, PLAYER)
    except redis.RedisError as error:
        raise _away(error) from error
    requested = Ticket(**json.loads(ticket)) if ticket else None
    state = _story(json.loads(story)) if story else None
    if requested and state and state.id != requested.id:
        state = None  # of the last one; this one has not begun
    return Seen(requested, state, player is not None)


def _story(fields: dict[str, Any]) -> Story:
    parts = {part: {name: _side(side) for name, side in fields.pop(part, {}).items()} for part in ("outages", "sides")}
    return Story(**fields, **parts)


def _side(fields: dict[str, Any]) -> Side:
    seconds = [Second(**second) if second else None for second in fields.pop("seconds")]
    return Side(**fields, seconds=seconds)


def _away(error: redis.RedisError) -> DemoUnreachable:
    return DemoUnreachable(f"The demo's broker does not answer ({type(error).__name__}). Nothing was changed.")


# --- the player's side ------------------------------------------------------------------------------------------


def alive(broker: redis.Redis) -> None:
    broker.set(PLAYER, 1, ex=15)


def write(broker: redis.Redis, story: Story) -> None:
    broker.set(STORY, json.dumps(asdict(story), separators=(",", ":")))


def is_to_stop(broker: redis.Redis, story: Story) -> bool:
    return broker.get(STOP) == story.id.encode()


def close(broker: redis.Redis, story: Story) -> None:
    """End the story and allow the next: both or neither."""
    with broker.pipeline(transaction=True) as pipe:
        pipe.set(STORY, json.dumps(asdict(story), separators=(",", ":")))
        pipe.delete(TICKET, STOP)
        pipe.execute()
