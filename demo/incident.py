"""The played incident: a warehouse goes down, real jobs die of it, and are brought back twice.

All at once first, which knocks it over again as it recovers; then with care. In the last act it goes down for as long, and a
breaker puts the jobs aside instead. Nothing of it is acted: the jobs are the
shop's, run by its worker against its partner, the replays are those of the person who pressed the button, audited.
`step` looks at the world and at the story, does what is next, and writes it down; whoever goes on after a crash finds
there how far it got. Needs Django: see `demo.play`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import datetime

import redis
from django.contrib.auth import get_user_model
from django.db.models import Count, Max, Sum

from demo import control, first_start, story
from demo.partner import PLAYED
from demo.shop import SOURCE, app
from demo.story import JOBS, TENANT, Second, Side, Story, Ticket
from demo.temper import COLD_RATE, STRAIN, STRAIN_S, WARM_RATE, WARMING_S
from jobs_admin import config, policies, replays
from jobs_admin.core import keys, matching
from jobs_admin.core.breaker import CLOSED, Breaker
from jobs_admin.core.policy import ENFORCE
from jobs_admin.core.refused import Refused
from jobs_admin.failures import triage
from jobs_admin.groups import group_changes
from jobs_admin.models import Alert, Failure, Group, QueueCounter, Replay, Rule
from jobs_admin.models.access import Viewer, viewer_of
from jobs_admin.models.alert import AlertState
from jobs_admin.models.counter import HOUR
from jobs_admin.models.failure import FailureState
from jobs_admin.models.replay import ReplayState
from jobs_admin.queues import liveness

QUEUE = "webhooks"
QUERY = f"source:{SOURCE} tenant:{TENANT} state:dead"
PUBLISHED_PER_S = 60.0
# The warehouse carries at first so little that the worker, as fast as it was in the outage, sends this much too much.
_TOO_MUCH = 3.0
_SMALLEST_SCALE = 0.05
REASONS = {"at_once": "Incident demo: everything at once", "careful": "Incident demo: careful"}

# An act in which nothing moves for so long has gone wrong; how long one takes is the machine's affair.
_QUIET_S = 90.0
_MOST_PER_CHECK_S = 2.0  # of the time between two looks: what the player itself was held up is not the jobs' fault
_JUDGED_ROUNDS = 3  # of the alert rules, after which nobody waits for an alert any more
_CLEAN_S = 2.0  # the last requests of the outage are in no second that is measured
_LAST_NEWS_S = 3.0  # what failed before the warehouse was mended is on the desk by then
_TIDIED_QUIET_S = 15.0  # jobs on their way of which nothing was heard for so long are left as they are
_OVER = (ReplayState.DONE, ReplayState.STOPPED, ReplayState.CANCELLED)


class Failed(Exception):
    """The incident cannot go on. The text says why."""


def begin(ticket: Ticket, now: float) -> Story:
    """The story that this ticket asks for, before anything has happened."""
    highest = Failure.objects.aggregate(highest=Max("pk"))["highest"] or 0
    return Story(id=ticket.id, by=ticket.name, user_id=ticket.user_id, began_at=now, jobs=JOBS, after=highest)


class Incident:
    def __init__(self, state: Story, broker: redis.Redis, broker_url: str, partner_url: str) -> None:
        self.story = state
        self.broker = broker
        self.warehouse = partner_url + PLAYED
        self._moved: object = None  # what `_track_progress` saw last
        self._quiet_s = 0.0
        self._looked_at: float | None = None
        self._judged: set[datetime] = set()  # rounds of the alert rules since all were dead
        self._connection = app.connection_for_write(broker_url)
        # Its own connection: the environment may name another broker, whose jobs are none of ours.
        self._producer = app.amqp.Producer(self._connection)

    def step(self) -> None:
        """A moment of it. Raises DemoUnreachable, and the errors of Redis and the database: then step again."""
        now = time.time()
        if self.story.tidying_since is None and story.is_to_stop(self.broker, self.story):
            self._leave("stopped", now)
        if self.story.tidying_since is None:
            try:
                self._play(now)
            except (Failed, Refused) as error:
                self._leave("failed", now, str(error))
        if self.story.tidying_since is not None:
            self._tidy(now)
        if not self.story.is_over:
            story.write(self.broker, self.story)

    def give_up(self, why: str) -> None:
        """End after an unexpected error: fix the warehouse, and allow the next incident."""
        self._leave("failed", time.time(), why)
        try:
            control.set_mode(self.warehouse, "well")
        finally:
            self._close(time.time())

    def close(self) -> None:
        self._connection.release()

    # Acts ---------------------------------------------------------------------------------------------------------

    def _play(self, now: float) -> None:
        seen = control.partner(self.warehouse)
        self._track_progress(seen, self._count(), now)
        if self.story.act in ("outage", "group", "condition"):
            self._break(seen, now)
        elif self.story.act == "at_once":
            self._all_at_once(seen, now)
        elif self.story.act == "careful":
            self._with_care(seen)
        elif "held" not in self.story.sides:
            self._hold(seen, now)
        else:
            self._release(seen, now)

    def _break(self, seen: dict, now: float) -> None:
        state = self.story
        if state.broken_at is None:
            self._require_own_retries("order_pickup")
        if seen["mode"] != "outage":
            seen = control.set_mode(self.warehouse, "outage")
            state.broken_at = state.broken_at or now
        assert state.broken_at is not None
        self._measure_outage("dead", seen)
        state.most_per_s = max(state.most_per_s, most_per_s(seen))
        self._publish("order_pickup", now - state.broken_at)
        if groups := self._groups():
            state.groups = groups
            state.failed_at = state.failed_at or now
            self._next("group")
        if state.dead >= story.THRESHOLD:
            state.reached_at = state.reached_at or now
            self._next("condition")
        if state.dead >= state.jobs:
            state.all_dead_at = state.all_dead_at or now
            if self._is_alert_settled(now):
                state.act = "at_once"
        elif self._quiet_s > _QUIET_S:
            raise Failed(f"Only {state.dead} of {state.jobs} jobs were dead, without progress for {_QUIET_S:.0f} s.")

    def _require_own_retries(self, name: str) -> None:
        """Raise Failed if a policy retries or holds jobs of this task: they are to die as its own code has it."""
        chosen = matching.chosen(policies.active(), SOURCE, QUEUE, f"shop.hooks.{name}")
        if chosen is not None and chosen.mode == ENFORCE and (chosen.retries or chosen.breaker):
            raise Failed(
                f"The policy {chosen.name} is enforced for shop.hooks.{name}, so its jobs would not all die. "
                "Set it to observe, then run the incident again."
            )

    def _is_alert_settled(self, now: float) -> bool:
        """Return whether the rule's alert fired, or will not: the rule is gone, or was evaluated often enough since."""
        rules = Rule.objects.filter(name=first_start.RULE["name"], enabled=True, deleted_at=None)
        fired = Alert.objects.filter(rule__in=rules).exclude(state__in=(AlertState.PENDING, AlertState.RESOLVED))
        if fired.exists() or not rules.exists():
            return True
        due = (self.story.all_dead_at or now) + first_start.RULE["for_s"]
        judged = liveness.steps().get("judge")
        if judged is not None and judged.timestamp() > due:
            self._judged.add(judged)
        return len(self._judged) > _JUDGED_ROUNDS

    def _track_progress(self, seen: dict, states: dict[str, int], now: float) -> None:
        """Add to `_quiet_s`, or reset it if the jobs, the replay, the warehouse or the shop's worker moved."""
        last_request = max((seen["now"] - p["ago_s"] for p in seen["series"] if p["requests"]), default=None)
        replay = Replay.objects.filter(idempotency_key__startswith=f"incident-{self.story.id}-").order_by("-pk")
        moved = (
            self.story.act,
            self.story.published,
            sorted(states.items()),
            self._failures().aggregate(last=Max("failed_at"))["last"],
            replay.values_list("pk", "state", "sent", "succeeded", "failed_again").first(),
            last_request and int(last_request),
            seen["falls"],
            self._started() if self.broker.llen(QUEUE) else None,
            self._breaker().on_hold,
        )
        passed_s = now - self._looked_at if self._looked_at is not None else 0.0
        self._quiet_s = 0.0 if moved != self._moved else self._quiet_s + min(max(passed_s, 0.0), _MOST_PER_CHECK_S)
        self._moved, self._looked_at = moved, now

    def _started(self) -> int | None:
        """Jobs that the shop's worker started: while some wait on the queue, others may be ahead of ours."""
        return QueueCounter.objects.filter(source=SOURCE, step=HOUR).aggregate(n=Sum("started"))["n"]

    def _publish(self, name: str, passed_s: float) -> None:
        """Publish the jobs whose turn has come since the outage began."""
        task = app.tasks[f"shop.hooks.{name}"]
        until = min(self.story.jobs, 1 + int(passed_s * PUBLISHED_PER_S))
        while self.story.published < until:
            n = self.story.published + 1
            kwargs = {"tenant": TENANT, "order": f"L-{n:05}", "endpoint": f"{PLAYED}/hook"}
            # Published again after a crash it is the same job.
            task.apply_async(kwargs=kwargs, task_id=f"{self.story.id}-{name}-{n}", producer=self._producer)
            self.story.published = n

    def _measure_outage(self, name: str, seen: dict, until: float = math.inf) -> None:
        # From the second in which it began to the one in which it ended: what was refused in them is of the outage.
        side = Side(began=math.floor(seen["now"] - seen["for_s"]), falls_before=seen["falls"], jobs=self.story.jobs)
        measure(self.story.outages.setdefault(name, side), seen, self.story.left, until)

    def _pace(self, name: str) -> dict:
        # A fresh demo has no last hour in which one could have seen what the queue manages: so the ramp says where it ends.
        ramp = {"to": round(WARM_RATE * self.story.scale, 1)}
        return {"style": "at_once"} if name == "at_once" else {"style": "careful", "ramp": ramp}

    def _fit_to_machine(self) -> None:
        """On a machine that is busy the worker is slower than the partner: then nothing would knock it over."""
        enough = _TOO_MUCH * STRAIN * COLD_RATE
        self.story.scale = round(min(1.0, max(_SMALLEST_SCALE, self.story.most_per_s / enough)), 3)

    def _all_at_once(self, seen: dict, now: float) -> None:
        if "at_once" not in self.story.sides:
            self._measure_outage("dead", seen)
            if now - (self.story.all_dead_at or now) < _CLEAN_S:
                return
            self._fit_to_machine()
            seen = control.set_mode(self.warehouse, "warming", scale=self.story.scale)
        side = self._replay("at_once", seen)
        is_up_again = bool(side.falls) and not seen["fell_over"]
        if side.ended is None or (side.falls and not is_up_again):
            self._watch_the_time(f"Replay #{side.replay}", side, seen)
        elif is_up_again:
            self.story.act = "careful"
        else:
            raise Failed("Everything at once did not overload the partner: the worker of this machine is too slow.")

    def _with_care(self, seen: dict) -> None:
        side = self._replay("careful", seen)
        # One second more, so that the last of it is in the picture.
        if side.ended is None or seen["now"] - side.began < side.ended + 1.5:
            self._watch_the_time(f"Replay #{side.replay}", side, seen)
        else:
            self.story.act, self.story.published = "held", 0

    def _hold(self, seen: dict, now: float) -> None:
        """The same outage again, as long as the first, and until all its jobs are on hold or dead."""
        state = self.story
        if seen["mode"] != "outage":
            seen = control.set_mode(self.warehouse, "outage")
            state.broken_again_at = state.broken_again_at or now
        assert state.broken_again_at is not None
        self._measure_outage("held", seen)
        self._publish("reserve_stock", now - state.broken_again_at)
        breaker, outage = self._breaker(), state.outages["held"]
        outage.on_hold, outage.failed_again = breaker.on_hold, self._dead_of_hold()
        lasted_s = (state.all_dead_at or 0.0) - (state.broken_at or 0.0)
        is_put_aside = state.published >= state.jobs and outage.on_hold + outage.failed_again >= state.jobs
        if is_put_aside and now - state.broken_again_at >= lasted_s:
            # Counted before it is back: a probe may succeed at once.
            served = seen["served"]
            # Not fitted to the machine: a breaker begins its release at five a second on any, and more arrive at once
            # from a worker that was held up.
            seen = control.set_mode(self.warehouse, "warming")
            began = round(seen["now"] - seen["for_s"], 3)
            state.sides["held"] = Side(began, seen["falls"], served, jobs=outage.on_hold)
        elif self._quiet_s > _QUIET_S:
            raise Failed(
                f"Only {outage.on_hold} of {state.jobs} jobs were on hold ({breaker.state}), without progress for "
                f"{_QUIET_S:.0f} s. The policy {first_start.WAREHOUSE} must be enforced."
            )

    def _release(self, seen: dict, now: float) -> None:
        state = self.story
        side = state.sides["held"]
        self._only_we_changed_it(side, seen)
        breaker = self._breaker()
        side.state, side.on_hold, side.failed_again = breaker.state, breaker.on_hold, self._dead_of_hold()
        # Not of the measured seconds: they begin with a whole one, and nobody may have looked at some.
        side.succeeded = seen["served"] - side.served_before
        measure(side, seen, max(0, side.jobs - side.succeeded))
        died = side.failed_again - state.outages["held"].failed_again
        if side.ended is None and side.succeeded + died >= side.jobs:
            side.ended = float(len(side.seconds))
        if side.ended is None or breaker.state != CLOSED:
            self._watch_the_time("The release", side, seen)
        else:
            self._leave("played", now)

    def _breaker(self) -> Breaker:
        return Breaker.parse(first_start.WAREHOUSE, config.store().hget(keys.breakers(SOURCE), first_start.WAREHOUSE))

    def _dead_of_hold(self) -> int:
        return self._failures().filter(task="shop.hooks.reserve_stock", state=FailureState.DEAD).count()

    def _replay(self, name: str, seen: dict) -> Side:
        """The side of this replay, started if it is not, and measured until now."""
        side = self.story.sides.get(name)
        if side is None:
            # The warehouse is back since that moment, and as cold as it was: both replays begin there.
            side = Side(began=round(seen["now"] - seen["for_s"], 3), falls_before=seen["falls"], jobs=self.story.dead)
            self.story.sides[name] = side
            story.write(self.broker, self.story)
        if side.replay is None:
            side.replay = replays.launch(
                self._viewer(),
                query=QUERY,
                pace=self._pace(name),
                reason=REASONS[name],
                # All that is dead, whatever just failed: the warehouse is back.
                options=replays.Options(without_groups=()),
                idempotency_key=f"incident-{self.story.id}-{name}",
            ).pk
            story.write(self.broker, self.story)
        self._only_we_changed_it(side, seen)
        measure(side, seen, self.story.left)
        self._follow_replay(side, seen)
        return side

    def _only_we_changed_it(self, side: Side, seen: dict) -> None:
        is_warm = seen["mode"] == "well" and seen["now"] - side.began > WARMING_S - 1
        if not (seen["mode"] == "warming" or seen["fell_over"] or is_warm):
            raise Failed("The partner was restarted, or its warehouse was changed, during the measurement.")

    def _follow_replay(self, side: Side, seen: dict) -> None:
        replay = Replay.objects.get(pk=side.replay)
        side.state, side.said = replay.state, replay.held_because
        side.succeeded, side.failed_again = replay.succeeded, replay.failed_again
        if replay.state in (ReplayState.CANCELLED, ReplayState.STOPPED):
            raise Failed(f"Replay #{replay.pk} was cancelled by an operator.")
        if side.ended is None and replay.state == ReplayState.DONE:
            side.ended = round(seen["now"] - side.began, 1)

    def _watch_the_time(self, what: str, side: Side, seen: dict) -> None:
        if self._quiet_s > _QUIET_S:
            passed_s = seen["now"] - side.began
            raise Failed(
                f"{what} was not done after {passed_s:.0f} s ({side.state}), without progress for {_QUIET_S:.0f} s."
            )

    def _next(self, act: str) -> None:
        if story.ACTS.index(act) > story.ACTS.index(self.story.act):
            self.story.act = act

    # What is on the desk ------------------------------------------------------------------------------------------

    def _failures(self):
        return Failure.objects.filter(source=SOURCE, tenant=TENANT, pk__gt=self.story.after).order_by()

    def _count(self) -> dict[str, int]:
        states = dict(self._failures().values_list("state").annotate(n=Count("pk")))
        self.story.dead = states.get(FailureState.DEAD, 0)
        self.story.left = self.story.jobs - states.get(FailureState.RECOVERED, 0)
        return states

    def _groups(self) -> list[dict[str, str]]:
        known = {group["fingerprint"] for group in self.story.groups}
        fresh = Group.objects.filter(pk__in=self._failures().values("group")).order_by("pk")
        return self.story.groups + [
            {"fingerprint": group.name, "title": group.title, "state": group.state}
            for group in fresh
            if group.name not in known
        ]

    def _viewer(self) -> Viewer:
        user = get_user_model().objects.filter(pk=self.story.user_id).first()
        if user is None:
            raise Failed(f"The account {self.story.by} does not exist any more.")
        return viewer_of(user)

    # The end ------------------------------------------------------------------------------------------------------

    def _leave(self, outcome: str, now: float, why: str = "") -> None:
        self.story.outcome, self.story.why, self.story.tidying_since = outcome, why, now

    def _tidy(self, now: float) -> None:
        """The desk as it was: warehouse well, no replay open, nothing dead, groups resolved."""
        if control.partner(self.warehouse)["mode"] != "well":
            control.set_mode(self.warehouse, "well")
        try:
            self._cancel_what_runs()
            states = self._count()
            assert self.story.tidying_since is not None
            on_their_way = states.get(FailureState.RETRYING, 0) + states.get(FailureState.REPLAYING, 0)
            self._track_progress(control.partner(self.warehouse), states, now)
            passed_s = now - self.story.tidying_since
            if (self.story.left and passed_s < _LAST_NEWS_S) or (on_their_way and self._quiet_s < _TIDIED_QUIET_S):
                return
            if self.story.dead:
                triage.discard(self._viewer(), query=QUERY, reason="Incident demo ended")
            self._resolve([group["fingerprint"] for group in self._groups()])
        except (Failed, Refused) as error:
            self.story.why = f"{self.story.why} It could not be tidied up: {error}".strip()
        self._close(now)

    def _cancel_what_runs(self) -> None:
        mine = Replay.objects.filter(idempotency_key__startswith=f"incident-{self.story.id}-").exclude(state__in=_OVER)
        for replay in mine:
            replays.cancel(self._viewer(), replay, reason="Incident demo ended")

    def _resolve(self, fingerprints: Sequence[str]) -> None:
        if fingerprints:
            group_changes.change_many(self._viewer(), fingerprints, {"state": "resolved"}, reason="Incident demo ended")

    def _close(self, now: float) -> None:
        self.story.ended_at = now
        story.close(self.broker, self.story)


def most_per_s(seen: dict) -> float:
    """The most requests a second that the partner counted in STRAIN_S."""
    counts, width = [point["requests"] for point in seen["series"]], int(STRAIN_S)
    return max(sum(counts[n : n + width]) for n in range(len(counts) - width + 1)) / width


def measure(side: Side, seen: dict, left: int, until: float = math.inf) -> None:
    """Write down the whole seconds that are over, up to the one of `until`: what the partner counted in them; how it
    stands, for the last one.
    """
    # From the first whole one: in the second in which it came back, what came before is the other side's.
    first, now = math.ceil(side.began), int(seen["now"])
    counted = {now - point["ago_s"]: point for point in seen["series"]}
    for n in range(int(min(now, until + 1)) - first):
        if n == len(side.seconds):
            side.seconds.append(None)
        if side.seconds[n] is not None or first + n not in counted:
            continue
        point = counted[first + n]
        is_last = first + n == now - 1
        side.seconds[n] = Second(
            requests=point["requests"],
            refused=point["requests"] - point["by_status"].get("200", 0),
            capacity=seen["capacity"] if is_last else None,
            left=left if is_last else None,
        )
    if seen["falls"] - side.falls_before > len(side.falls):
        fell_at = seen["now"] - seen["for_s"] if seen["fell_over"] else seen["now"]
        side.falls.append(round(fell_at - side.began, 1))
