"""Histories of alert rules, alerts, notices and their deliveries, while queues fill and empty, receivers fail and processes die.

The model judges what the queues hold by the rules on its own, as often as the desk does. What was reported is counted where it arrived.
"""

from __future__ import annotations

import json
import random
import socket
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from jobs_admin.core.refused import Refused
from tests.histories.celery_desk import CeleryDesk
from tests.histories.deaths import forget_process
from tests.histories.kit import Divergence, act

SOURCES = ("shop", "web")
MOST_OPEN = 6  # alerts of one rule and source, in these histories
AT_ONCE = 3  # notices of one story that are told at once
_TRIES = (5, 300, 1_800)
_BOUNDS: dict[str, Any] = {
    "alerts.places.MOST_OPEN": MOST_OPEN,
    "alerts.notices.AT_ONCE": AT_ONCE,
    "alerts.notice_body.MOST_ALSO": 2,
    "alerts.judging._AT_ONCE": 2,
    "notices.routing._RULES_AT_ONCE": 2,
    "notices.routing._ROWS_AT_ONCE": 2,
    "notices.delivering._READ_AT_ONCE": 2,
    "notices.delivering._WAIT_S": 0.02,
}
_EVERY_S = 5
_FIRED = ("firing", "acknowledged", "silenced")


@dataclass(slots=True)
class Phase:
    """One queue under one rule, as the model judges it."""

    opened_at: float | None = None
    is_firing: bool = False
    below_since: float | None = None
    judged_at: float = float("-inf")
    fired: int = 0  # episodes


@dataclass
class Receiver:
    """An endpoint on the loopback. `moods` are how it answers next; without one it takes what comes."""

    moods: list[Any] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)  # webhook-id -> how often it was answered with 200
    seen: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # webhook-id -> what it told

    def behave(self, client: socket.socket, request: Any) -> None:
        key = request.headers["webhook-id"]
        data = json.loads(request.body)
        self.seen[key].add(json.dumps([data["type"], data["data"].get("message")]))
        mood = self.moods.pop(0) if self.moods else 200
        if mood == "slow":
            time.sleep(0.03)
            mood = 200
        if mood == "reset":
            client.close()
            return
        if mood == 200:
            self.taken[key] += 1
        more = "Retry-After: 7\r\n" if mood == 503 else ""
        client.sendall(f"HTTP/1.1 {mood} X\r\n{more}Content-Length: 0\r\n\r\n".encode())


class Alerts(CeleryDesk):
    most_acts = 14

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SOURCES, _BOUNDS)
        from django.conf import settings

        from jobs_admin.models.access import ADMIN, OPERATOR, Viewer
        from tests.kit.endpoints import Endpoint

        settings.REDRIVE = settings.REDRIVE | {"WEBHOOK_ALLOW": ["127.0.0.0/8"]}
        self.ann, self.bob = Viewer("ann", {"*": ADMIN}), Viewer("bob", {"*": OPERATOR})
        self.receivers = [Receiver(), Receiver()]
        self._endpoints = []
        for receiver in self.receivers:
            endpoint = Endpoint(lambda client: None)
            endpoint.behave = lambda client, receiver=receiver, endpoint=endpoint: receiver.behave(
                client, self._last(client)
            )
            endpoint.seen = _PerThread()
            self._endpoints.append(endpoint)

    @staticmethod
    def _last(client: socket.socket) -> Any:
        return _PerThread.local.seen

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.close()
        super().close()

    # -- the beginning --------------------------------------------------------------------------------------------

    def begin(self, rng: random.Random) -> None:
        super().begin(rng)
        from jobs_admin import notices
        from jobs_admin.models import Channel, Group, Rule

        Rule.objects.all().delete()
        for receiver in self.receivers:
            receiver.moods, receiver.taken, receiver.seen = [], Counter(), defaultdict(set)
        self.channels = []
        for n, endpoint in enumerate(self._endpoints):
            saved = notices.save_channel(self.ann, {"name": f"c{n}", "kind": "webhook", "url": endpoint.url})
            self.channels.append(Channel.objects.get(pk=saved.channel.pk))
        self.group = Group.objects.create(
            fingerprint="v2-g", error_type="Refused", message="refused", first_seen=_now(), last_seen=_now()
        )
        self.queues = [f"q{n}" for n in range(rng.choice([1, 2, 3, MOST_OPEN - 1, MOST_OPEN, MOST_OPEN + 1, 20]))]
        self.depth: dict[tuple[str, str], int] = {}
        self.phases: dict[int, dict[tuple[str, str], Phase]] = defaultdict(dict)  # rule -> of each queue
        self.is_exact = (
            len(self.queues) <= MOST_OPEN
        )  # beyond the bound the worst have the places: the model does not say which
        self.silences: list[int] = []
        self.taken: dict[int, tuple[str, Any, int, str]] = {}  # alert -> whose acknowledgement, which one it is
        self.undone_at: dict[int, Any] = {}  # alert -> when its last acknowledgement was undone
        self.has_died = self.was_resent = self.was_set_back = False
        for n in range(rng.choice([1, 1, 2])):
            self._save_rule(rng, f"rule {n}")

    def described(self) -> str:
        from jobs_admin.models import Alert, AlertEvent, Delivery, Notice, Rule

        rules = Rule.objects.order_by("pk").values_list(
            "pk",
            "source",
            "queue",
            "threshold",
            "clear",
            "for_s",
            "keep_firing_s",
            "renotify_s",
            "escalate_s",
            "enabled",
        )
        alerts = Alert.objects.order_by("pk").values_list(
            "pk",
            "rule",
            "source",
            "subject",
            "state",
            "value",
            "told_with",
            "opened_at",
            "fired_at",
            "told_at",
            "resolved_at",
        )
        events = AlertEvent.objects.order_by("pk").values_list("alert", "n", "at", "to", "reason", "notice__key")
        notices = Notice.objects.order_by("pk").values_list(
            "key", "type", "body__reason", "body__message", "created_at"
        )
        sent = Delivery.objects.order_by("pk").values_list(
            "notice__key", "channel", "state", "tries", "error", "next_try_at"
        )
        return "\n".join(map(str, [*rules, *alerts, *events, *notices, *sent, *self.phases.items()]))

    def _save_rule(self, rng: random.Random, name: str, pk: int | None = None) -> None:
        from jobs_admin import alerts

        threshold = rng.choice([0, 2, 5])
        fields = {
            "name": name, "metric": "dead", "source": rng.choice(["*", "shop"]), "queue": rng.choice(["*", "*", "q0", "q[0-4]"]),
            "threshold": threshold, "clear": rng.choice([None, max(0, threshold - 2)]), "for_s": rng.choice([0, 5, 30]),
            "keep_firing_s": rng.choice([0, 5, 30]), "renotify_s": rng.choice([None, 300]),
            "escalate_s": rng.choice([None, 600]), "channels": rng.choice([["c0"], ["c0", "c1"], []]),
            "escalate_to": rng.choice([[], ["c1"]]), "severity": rng.choice(["info", "critical"]),
        }  # fmt: skip
        made = alerts.save_rule(self.ann, fields, pk)
        self.phases[made.pk] = {
            key: phase for key, phase in self.phases[made.pk].items() if self._selects(made, *key)
        }  # fmt: skip

    @staticmethod
    def _selects(rule: Any, source: str, queue: str) -> bool:
        from jobs_admin.core.matching import matches

        return matches(rule.source, source) and matches(rule.queue, queue)

    # -- what happens ---------------------------------------------------------------------------------------------

    @act(weight=6)
    def move_depths(self, rng: random.Random) -> None:
        """Jobs die in some queues, or come back."""
        for _ in range(rng.choice([1, 1, 2, 8, len(self.queues)])):
            self._set_depth(rng.choice(SOURCES), rng.choice(self.queues), rng.choice([0, 1, 2, 3, 5, 6, 20]))
        self.clock.step(rng.choice([0, 5]))
        self._judge(rng, 1)

    @act(weight=6)
    def flap(self, rng: random.Random) -> None:
        """One queue goes over a threshold and under it again, round after round."""
        source, queue = rng.choice(SOURCES), rng.choice(self.queues)
        for _ in range(rng.choice([3, 6, 10])):
            self._set_depth(source, queue, rng.choice([0, 0, 2, 3, 6]))
            self.clock.step(rng.choice([5, 5, 10, 30]))
            self._judge(rng, 1)

    def _set_depth(self, source: str, queue: str, depth: int) -> None:
        from jobs_admin.models import Failure

        now, has = _now(), self.depth.get((source, queue), 0)
        if depth > has:
            values = {
                "source": source, "queue": queue, "state": "dead", "kind": "exception", "task": "charge", "group": self.group,
                "first_failed_at": now, "failed_at": now, "received_at": now,
            }  # fmt: skip
            made = range(self.jobs_made, self.jobs_made + depth - has)
            Failure.objects.bulk_create(Failure(first_job_id=f"j{n}", job_id=f"j{n}", **values) for n in made)
            self.jobs_made += depth - has
        elif depth < has:
            dead = Failure.objects.filter(source=source, queue=queue, state="dead").order_by("pk")
            gone = list(dead.values_list("pk", flat=True)[: has - depth])
            Failure.objects.filter(pk__in=gone).update(state="recovered")
        self.depth[source, queue] = depth

    @act(weight=8)
    def pass_time(self, rng: random.Random) -> None:
        for _ in range(rng.choice([1, 2, 6])):
            self.clock.step(rng.choice([1, 5, 5, 30, 61, 300, 601]))
            self._judge(rng, 1)

    @act()
    def judge_twice(self, rng: random.Random) -> None:
        """Two watches judge at the same moment."""
        self._judge(rng, 2)

    @act()
    def set_clock_back(self, rng: random.Random) -> None:
        self.clock.step(rng.choice([-1, -30, -90, -3600]))
        self.was_set_back = True  # from here on only what holds at any time is asked
        self._judge(rng, 1)

    @act(weight=2)
    def change_rule(self, rng: random.Random) -> None:
        from jobs_admin import alerts
        from jobs_admin.models import Rule

        rules = list(Rule.objects.filter(deleted_at=None).order_by("pk"))
        if not rules:
            return
        rule = rng.choice(rules)
        kind = rng.choice(["change", "switch", "delete"])
        if kind == "delete":
            self.dies(rng, 20, lambda: alerts.delete_rule(self.ann, rule.pk))
            if Rule.objects.filter(pk=rule.pk, deleted_at=None).exists():
                return
            self.phases.pop(rule.pk, None)
        elif kind == "switch":
            alerts.save_rule(
                self.ann, alerts.document(alerts.rule(self.ann, rule.pk)) | {"enabled": not rule.enabled}, rule.pk
            )
            self.phases[rule.pk].clear()
        else:
            self._save_rule(rng, rule.name, rule.pk)

    @act(weight=3)
    def acknowledge(self, rng: random.Random) -> None:
        """One alert, or all of its notification: exactly those that fire, and itself if silenced."""
        from jobs_admin import alerts
        from jobs_admin.models import Alert

        found = list(Alert.objects.exclude(state="resolved").order_by("pk"))
        if not found:
            return
        one, who, only_this = rng.choice(found), rng.choice([self.ann, self.bob]), rng.random() < 0.5
        story = one.told_with_id or one.pk
        mine = [one] if only_this else [other for other in found if story in (other.pk, other.told_with_id)]
        calling = [
            other.pk for other in mine if other.state == "firing" or (other.state == "silenced" and other == one)
        ]
        expected = calling if one.pk in calling else []
        got = self._changed(lambda: alerts.acknowledge(who, one.pk, "I look at it", only_this=only_this))
        if got != expected:
            raise Divergence(f"Acknowledging {one.pk} (only this: {only_this}) changed {got}, expected {expected}")
        for row in Alert.objects.filter(pk__in=got):
            self.taken[row.pk] = (who.name, row.acknowledged_at, row.rule_id, row.source)
            self.undone_at.pop(row.pk, None)
        self._compare_taken()

    @act(weight=2)
    def unacknowledge(self, rng: random.Random) -> None:
        """An acknowledgement is undone, perhaps of what is resolved by now, or of another operator's."""
        from jobs_admin import alerts
        from jobs_admin.models import Alert

        found = list(Alert.objects.order_by("-pk").values_list("pk", flat=True)[:8])
        taken = [pk for pk in found if pk in self.taken]
        if not found:
            return
        pk, who = rng.choice(taken or found), rng.choice([self.ann, self.bob])
        same = self.taken.get(pk)
        open_ = set(Alert.objects.exclude(state="resolved").values_list("pk", flat=True))
        expected = []
        if same is not None and same[0] == who.name:
            expected = sorted(other for other, as_ in self.taken.items() if as_ == same and other in open_)
        got = self._changed(lambda: alerts.unacknowledge(who, pk))
        if got != expected:
            raise Divergence(f"{who.name} undid the acknowledgement of {pk}: {got} changed, expected {expected}")
        for one in got:
            del self.taken[one]
            self.undone_at[one] = _now()
        self._compare_taken()
        if rng.random() < 0.5:
            self._judge(rng, 1)

    @staticmethod
    def _changed(do: Any) -> list[int]:
        """The alerts that an act changed; none where it was refused."""
        try:
            return do().changed
        except Refused as refused:
            if refused.code != "wrong_state":
                raise
            return []

    def _compare_taken(self) -> None:
        """Each open alert is acknowledged exactly if an operator acknowledged it and did not undo that."""
        from jobs_admin.models import Alert

        for one in Alert.objects.exclude(state="resolved"):
            if (one.state == "acknowledged") != (one.pk in self.taken):
                raise Divergence(f"Alert {one.pk} is {one.state}; acknowledged, by the model: {self.taken.get(one.pk)}")
            by = self.taken.get(one.pk, ("", None))
            if (one.acknowledged_by, one.acknowledged_at) != by[:2]:
                raise Divergence(f"Alert {one.pk} was acknowledged by {one.acknowledged_by}, expected {by}")

    @act(weight=2)
    def silence(self, rng: random.Random) -> None:
        from jobs_admin import alerts
        from jobs_admin.models import Alert

        matchers: dict[str, Any] = rng.choice(
            [{"queue": "q0"}, {"source": "shop"}, {"queue": "q*"}, {"severity": "info"}]
        )
        alert = Alert.objects.exclude(state="resolved").order_by("pk").first()
        if alert is not None and rng.random() < 0.3:
            matchers = {"alert": alert.pk}
        made = alerts.silence(
            self.bob, matchers, ends_at=_now() + timedelta(seconds=rng.choice([10, 120, 3600])), comment="quiet"
        )
        self.silences.append(made.pk)

    @act()
    def end_silence(self, rng: random.Random) -> None:
        from jobs_admin import alerts

        if self.silences:
            try:
                alerts.end_silence(self.ann, self.silences.pop())
            except Refused as refused:
                if refused.code != "wrong_state":
                    raise
            self._judge(rng, 1)

    @act(weight=5)
    def deliver(self, rng: random.Random) -> None:
        from jobs_admin import notices

        for receiver in self.receivers:
            receiver.moods = rng.choices([200, 200, 500, 503, 429, "reset", "slow", 301], k=rng.choice([0, 0, 2, 6]))
            if rng.random() < 0.05:
                receiver.moods.insert(0, 410)  # it is gone: the channel is disabled
        rounds = rng.choice([1, 3, 30])
        self.has_died |= self.dies(rng, 60, lambda: all(notices.deliver(_now()) for _ in range(rounds)))

    @act()
    def resend(self, rng: random.Random) -> None:
        from jobs_admin import notices
        from jobs_admin.models import Delivery

        found = list(Delivery.objects.order_by("pk").values_list("pk", flat=True))
        if found:
            self.was_resent = True
            try:
                notices.resend(self.ann, rng.choice(found))
            except Refused as refused:
                if refused.code != "wrong_state":
                    raise

    @act()
    def die(self, rng: random.Random) -> None:
        self.has_died = True
        forget_process()

    # -- judging --------------------------------------------------------------------------------------------------

    def _judge(self, rng: random.Random, times: int) -> None:
        """The desk judges, perhaps dies on the way and judges the same moment again; the model judges it once."""
        from jobs_admin import alerts
        from jobs_admin.models import Notice

        now = _now()
        last = Notice.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        for _ in range(times):
            if self.dies(rng, 40, lambda: alerts.judge(now)):
                self.has_died = True  # with it what its lanes had on their way
                alerts.judge(now)
        self._judge_by_model(now.timestamp() // _EVERY_S * _EVERY_S)
        if self.is_exact and not self.was_set_back:
            self._compare_open(now)
        self._compare_notices(now, last)
        self._compare_taken()

    def _judge_by_model(self, at: float) -> None:
        from jobs_admin.models import Rule

        for rule in Rule.objects.filter(enabled=True, deleted_at=None):
            phases = self.phases[rule.pk]
            for key in {*self.depth, *phases}:
                if self._selects(rule, *key):
                    self._step(phases.setdefault(key, Phase()), self.depth.get(key, 0), at, rule)

    @staticmethod
    def _step(phase: Phase, depth: int, at: float, rule: Any) -> None:
        if at <= phase.judged_at:
            return
        clear = rule.threshold if rule.clear is None else rule.clear
        if phase.opened_at is None:
            if depth <= rule.threshold:
                return
            phase.opened_at = at
            phase.judged_at = at
            phase.is_firing = rule.for_s == 0
            phase.fired += phase.is_firing
            return
        phase.judged_at = at
        if not phase.is_firing:
            if depth <= rule.threshold:
                phase.opened_at, phase.judged_at = None, float("-inf")  # what opens again knows no last moment
            elif at - phase.opened_at >= rule.for_s:
                phase.is_firing = True
                phase.fired += 1
        elif depth > clear:
            phase.below_since = None
        else:
            phase.below_since = at if phase.below_since is None else phase.below_since
            if at - phase.below_since >= rule.keep_firing_s:
                phase.opened_at, phase.is_firing, phase.below_since = (
                    None,
                    False,
                    None,
                )  # nothing opens at the same moment

    def _compare_open(self, now: Any) -> None:
        from jobs_admin.models import Alert

        found = {}
        for rule, source, subject, state, opened in Alert.objects.exclude(state="resolved").values_list(
            "rule", "source", "subject", "state", "opened_at"
        ):
            found[rule, source, subject] = (state in _FIRED, opened.timestamp())
        must = {
            (rule, *key): (phase.is_firing, phase.opened_at)
            for rule, phases in self.phases.items() for key, phase in phases.items() if phase.opened_at is not None
        }  # fmt: skip
        if found != must:
            wrong = [
                f"{key}: {found.get(key)}, expected {must.get(key)}"
                for key in sorted(found.keys() | must.keys()) if found.get(key) != must.get(key)
            ]  # fmt: skip
            raise Divergence(f"At {now} these alerts differ (firing, open since):\n" + "\n".join(wrong))

    def _compare_notices(self, now: Any, last: int) -> None:
        """Notices that are due now were created, and no others."""
        from jobs_admin.models import Alert, Notice

        if self.was_set_back:
            return
        alerts = list(Alert.objects.select_related("rule", "told_with"))
        leaders: dict[int, list[Alert]] = defaultdict(list)
        for one in alerts:
            if one.told_with_id or one.told_at:
                leaders[one.told_with_id or one.pk].append(one)
            elif one.state == "firing":
                raise Divergence(f"Alert {one.pk} fires and is in no story")
        by_pk = {one.pk: one for one in alerts}
        fresh = Notice.objects.filter(pk__gt=last).values_list("alert", "body__reason")
        for number, reason in fresh:
            loud = [one for one in leaders[number] if one.state == "firing"]
            if reason in ("reminder", "escalated") and not loud:
                raise Divergence(
                    f"Story {number} was told again at {now} ({reason}), and nothing of it calls for anybody"
                )
            undone = [now - self.undone_at[one.pk] for one in loud if one.pk in self.undone_at]
            if (
                reason == "escalated"
                and len(undone) == len(loud)
                and max(undone).total_seconds() < by_pk[number].rule.escalate_s - 5
            ):
                raise Divergence(
                    f"Story {number} was escalated at {now}, {max(undone)} after its acknowledgement was undone"
                )
        for number, members in leaders.items():
            leader, loud = by_pk[number], [one for one in members if one.state == "firing"]
            every = leader.rule.renotify_s
            if (
                loud
                and every
                and leader.rule.enabled
                and leader.told_at
                and now - leader.told_at > timedelta(seconds=every + 5)
            ):
                raise Divergence(
                    f"Story {number} is to be reminded of every {every} s; at {now} it was told at {leader.told_at}"
                )

    # -- the end --------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        from jobs_admin import notices
        from jobs_admin.models import Channel, Delivery

        quiet = random.Random("lives")
        quiet.random = lambda: 1.0  # type: ignore[method-assign]
        self.clock.step(4000 if self.was_set_back else 5)
        self._judge(quiet, 1)
        self._compare_counts()
        for source, queue in list(self.depth):
            self._set_depth(source, queue, 0)
        for _ in range(6):
            self._judge(quiet, 1)
            self.clock.step(35)
        self._judge(quiet, 1)
        for receiver in self.receivers:
            receiver.moods = []
        for turn in range(40):
            self._deliver_all()
            for channel in Channel.objects.exclude(disabled_at=None):  # also by an answer that was on its way
                notices.enable(self.ann, channel.pk)
            for pk in Delivery.objects.filter(state="parked").values_list("pk", flat=True):
                self.was_resent = True
                notices.resend(self.ann, pk)
            if not Delivery.objects.exclude(state="delivered").exists():
                break
            self.clock.step(90_000 if turn > 2 else 400)

    def _deliver_all(self) -> None:
        from jobs_admin import notices

        ends = time.monotonic() + 120
        while notices.deliver(_now()):
            if time.monotonic() > ends:
                raise Divergence("Deliveries do not come to their end")

    def _compare_counts(self) -> None:
        """Counts of alerts on pages and in the API agree with their links."""
        from jobs_admin import alerts
        from jobs_admin.desk import overview
        from jobs_admin.models import Alert, Rule

        open_ = list(Alert.objects.exclude(state="resolved"))
        page = alerts.listing(self.ann, state="open", limit=200)
        if (page.count, {row.pk for row in page.rows}) != (len(open_), {one.pk for one in open_}):
            raise Divergence(f"The list of open alerts counts {page.count}, there are {len(open_)}")
        firing = {one.pk for one in open_ if one.state in ("firing", "acknowledged")}
        if {one.pk for one in alerts.firing(self.ann, limit=500)} != firing:
            raise Divergence(f"The overview's alerts are not {firing}")
        if self.jobs_made % 5 == 0:  # dear: every figure of the overview
            overview.forget()
            overview.board(self.ann)
        standing = alerts.read_rule_status(self.ann, Rule.objects.filter(deleted_at=None))
        for rule in Rule.objects.filter(deleted_at=None):
            mine = [one for one in open_ if one.rule_id == rule.pk]
            alert = standing.get(rule.pk)
            if (alert.firing if alert else 0) != sum(one.pk in firing for one in mine) or (
                alert.open if alert else 0
            ) != len(mine):
                raise Divergence(f"Rule {rule.pk} says {alert}; open are {mine}")

    def check(self) -> None:
        from jobs_admin.db import audit
        from jobs_admin.models import Alert, AlertEvent, Delivery, Notice

        wrong: list[str] = []
        alerts = list(Alert.objects.order_by("pk"))
        wrong += [f"alert {one.pk} is {one.state} at the end" for one in alerts if one.state != "resolved"]
        fired = AlertEvent.objects.filter(to="firing", notice=None).exclude(reason__startswith="Not acknowledged")
        first = set(fired.values_list("alert", flat=True)) - set(
            Alert.objects.exclude(told_at=None).values_list("pk", flat=True)
        )
        wrong += [f"alert {pk} fired and was never told" for pk in sorted(first)]
        stories: dict[int, list[Notice]] = defaultdict(list)
        for one in Notice.objects.order_by("pk"):
            stories[one.alert_id].append(one)
        for number, story in stories.items():
            keys = [int(one.key.rpartition("-")[2]) for one in story]
            if keys != list(range(1, len(story) + 1)):
                wrong.append(f"story {number} has the notices {[one.key for one in story]}")
            reasons = [one.body["reason"] for one in story]
            if reasons.count("fired") != 1 or reasons[0] != "fired":
                wrong.append(f"story {number} did not begin once: {reasons}")
            if reasons.count("resolved") != 1 or reasons[-1] != "resolved":
                wrong.append(f"story {number} did not end once: {reasons}")
        wrong += self._wrong_deliveries()
        by_key: dict[tuple[int, str, str], list[Alert]] = defaultdict(list)
        for one in alerts:
            by_key[one.rule_id, one.source, one.subject].append(one)
        if self.is_exact and not self.was_set_back:
            for rule, phases in self.phases.items():
                for key, phase in phases.items():
                    n = sum(one.fired_at is not None for one in by_key[rule, *key])
                    if n < phase.fired:
                        wrong.append(f"rule {rule} fired {phase.fired} times for {key}, there are {n} alerts")
        for key, story in Counter(Delivery.objects.values_list("notice__key", "channel")).items():
            if story > 1:
                wrong.append(f"{key} has {story} deliveries")
        if (broken := audit.verify()) is not None:
            wrong.append(f"The audit breaks at {broken}")
        if wrong:
            raise Divergence("\n".join(wrong[:15]))

    def _wrong_deliveries(self) -> list[str]:
        """Each notice arrived at each of its channels; each id reported one thing, and was taken once unless it had to go twice."""
        from jobs_admin.models import Delivery, Notice

        wrong = []
        for one in Notice.objects.prefetch_related("channels"):
            for channel in one.channels.all():
                delivery = Delivery.objects.filter(notice=one, channel=channel).first()
                receiver = self.receivers[[c.pk for c in self.channels].index(channel.pk)]
                if delivery is None or delivery.state != "delivered":
                    wrong.append(f"{one.key} was not delivered to {channel.name}: {delivery and delivery.state}")
                if not receiver.taken[one.key]:
                    wrong.append(f"{one.key} never arrived at {channel.name}")
                elif receiver.taken[one.key] > 1 and not (self.has_died or self.was_resent or self.was_set_back):
                    wrong.append(f"{one.key} arrived {receiver.taken[one.key]} times at {channel.name}")
                if len(receiver.seen[one.key]) > 1:
                    wrong.append(f"{one.key} told several things: {receiver.seen[one.key]}")
        known = set(Notice.objects.values_list("key", flat=True))
        for receiver in self.receivers:
            wrong += [f"{key} arrived and is no notice" for key in receiver.seen.keys() - known]
        return wrong


class _PerThread(list):
    """The requests that an endpoint has read; each serves one in a thread of its own."""

    import threading

    local = threading.local()

    def append(self, one: Any) -> None:
        self.local.seen = one


def _now() -> Any:
    from django.utils import timezone

    return timezone.now()
