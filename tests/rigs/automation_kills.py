"""A live automation whose `watch` is killed around the moments at which it acts, while its partner flaps."""

from __future__ import annotations

import time
from collections import Counter

from tests.kit.waiting import wait_until
from tests.rigs.replay_kills import Havoc, _kill

CAP = 150  # jobs an hour, fewer than die
_ROUND_S = 10
_BEGIN = """
from django.contrib.auth import get_user_model
from jobs_admin import automations
from jobs_admin.models.access import viewer_of
owner = viewer_of(get_user_model().objects.get_or_create(username="owner")[0])
Role.objects.get_or_create(user_id=owner.user_id, source="shop", role="operator")
owner = viewer_of(get_user_model().objects.get(username="owner"))
"""
_CREATE = f"""
automations.create(owner, "back", {{"source": "shop", "q": "queue:emails", "quiet_s": 0, "cooldown_s": 60, "cap_per_hour": {CAP},
    "act": {{"kind": "replay", "pace": {{"style": "at_once"}}}}}})
automations.enable(owner, "back")
Automation.objects.update(cooldown_s=1)  # it acts in every round, which no person may ask for
say(1)
"""
_RESET = """
one = Automation.objects.get()
if one.tripped_at: automations.reset(owner, "back")
say(bool(one.tripped_at))
"""
_ACCOUNT = """
rows = list(AutomationDecision.objects.values("n", "state", "jobs", "replay", "text"))
replays_of = list(Replay.objects.values("pk", "total", "state", "idempotency_key", "actor"))
times = {}
for failure in ReplayItem.objects.filter(sent_at__isnull=False).values_list("failure", flat=True):
    times[failure] = times.get(failure, 0) + 1
say({"decisions": rows, "replays": replays_of, "most_replays_of_a_job": max(times.values(), default=0),
     "dead": Failure.objects.filter(state="dead").count(), "jobs": Failure.objects.count()})
"""


_PROGRESS = """
from jobs_admin.core import keys
say(json.loads(config.store().hget(keys.steps(), "automate") or "{}").get("at"))
"""


class AutomationHavoc(Havoc):
    def _watch(self, steps: str = "automate,ingest,settle,lay,reconcile,sample,send"):
        return super()._watch(steps)

    def _sender(self):
        return self._run("pass")  # `watch` sends, and is killed as a whole

    def run_automation(self, kills: int, rounds_after: int = 4) -> dict:
        """Return what was done. `twice`, `beyond_cap` and `unfinished` must be 0."""
        self.desk.run(_BEGIN + _CREATE, 120)
        began, trips = time.monotonic(), 0
        for number in range(kills + rounds_after):
            task = "fail" if self.random.random() < 0.15 else "noted"
            self.desk.run(f"bury({self.random.randint(3, 8)}, {task!r}); say(1)", 120)
            self._wait_for_round()
            if number < kills:
                time.sleep(self.random.choice([0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6]) * self.random.random())
                self.kills.append("watch")
                _kill(self.parts["watch"])
                self.parts["watch"] = self._watch()
                self._wait_for_step()
            trips += bool(self.desk.run(_BEGIN + _RESET, 120))
        time.sleep(2 * _ROUND_S)
        return self._summarize(self.desk.run(_ACCOUNT, 120), trips, time.monotonic() - began)

    def _wait_for_step(self) -> None:
        """Wait until the new `watch` has made its first round."""
        began = time.time()
        wait_until(lambda: (self.desk.run(_PROGRESS, 60) or 0) > began, "the step automate makes a round", within_s=120)

    def _wait_for_round(self) -> None:
        time.sleep(_ROUND_S - time.time() % _ROUND_S)

    def _summarize(self, found: dict, trips: int, took: float) -> dict:
        runs = Counter(line.split()[2] for line in self.worker.marks("noted") if line.startswith("start"))
        states = Counter(row["state"] for row in found["decisions"])
        done = [row for row in found["decisions"] if row["state"] == "done"]
        of_replays = Counter(row["replay"] for row in done)
        started = [one for one in found["replays"] if one["state"] != "draft"]
        acted = sum(one["total"] for one in started)
        return {
            "kills": len(self.kills),
            "seconds": round(took, 1),
            "jobs_that_died": found["jobs"],
            "decisions": dict(states),
            "reasons": sorted({row["text"] for row in found["decisions"] if row["state"] == "waited"}),
            "replays": dict(Counter(one["state"] for one in found["replays"])),
            "jobs_replayed": acted,
            "cap": CAP,
            "most_replays_of_a_job": found["most_replays_of_a_job"],
            "trips": trips,
            "jobs_that_ran": len(runs),
            # What must be nought:
            "twice": sum(n > 1 for n in runs.values()) + sum(n > 1 for n in of_replays.values()),
            "beyond_cap": max(0, acted - CAP),
            "replays_without_a_decision": len(started) - len(of_replays),
            "unfinished": states["planned"],
        }
