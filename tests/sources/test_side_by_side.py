"""Four systems side by side: what befalls one is said with its time and its cause, and the other three go on meanwhile.

Nothing is called gone that its system only lost, and all is well automatically when it is back.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal

import pytest

from dashboard.setup.engine import Engine
from tests.kit import node, rabbitmq
from tests.rigs.side_by_side import Bull, Desk, Rabbit, Shop, Table

pytestmark = [pytest.mark.sqlite, pytest.mark.server]

SECONDS = 90  # a machine may be busy; what is shown is that nobody waits for the one that is away


class World:
    def __init__(self, folder):
        self.engine = Engine(folder / "store").start()
        with contextlib.ExitStack() as begun:
            begun.callback(self.engine.stop)
            self.shop, self.table = Shop(self.engine), Table(folder / "app.sqlite3")
            self.bull = Bull(folder / "bull")
            begun.callback(self.bull.stop)
            self.rabbit = Rabbit(folder / "rabbit")
            begun.callback(self.rabbit.stop)
            self.systems = [self.shop, self.bull, self.table, self.rabbit]
            self.desk = Desk(folder, self.engine, self.systems)
            begun.callback(self.desk.stop)
            self._begun = begun.pop_all()

    def stop(self):
        self._begun.close()

    def arrives(self, system):
        """A job that dies now is dead here, too."""
        died = system.dies()

        def find_dead_here():
            found = self.desk.states(system)
            # RabbitMQ gives no ids: there it is what the message is called, and a digest.
            return [
                one for one, state in found.items() if (one == died or one.startswith(f"{died}.")) and state == "dead"
            ]

        (job_id,) = self.desk.wait(find_dead_here, f"a job that died at {system.name}", SECONDS)
        return job_id

    def goes_on(self, victim):
        """Failures of the others arrive, and replays there are sent, while this one is away."""
        for system in self.systems:
            if system is not victim:
                replay = self.desk.replay(system, self.arrives(system))
                self.desk.wait(
                    lambda replay=replay: "planned" not in self.desk.items(replay),
                    f"a replay at {system.name}",
                    SECONDS,
                )

    def is_away(self, system):
        return self.desk.wait(
            lambda: (
                (found := self.desk.source(system))
                and (found["reachable"] is False or found["why_not_pulled"])
                and found
            ),
            f"{system.name} is said to be away",
            SECONDS,
        )

    def is_back(self, system):
        def is_so():
            found = self.desk.source(system)
            return found["reachable"] and not found["why_not_pulled"] and not found["read_only"]

        self.desk.wait(is_so, f"{system.name} is back", SECONDS)
        return self.arrives(system)

    def nothing_is_gone(self):
        """But what was sent to RabbitMQ, where no one reports how a job ends."""
        gone = "Failure.objects.filter(state='gone').exclude(reason__startswith='sent in replay')"
        assert self.desk.evaluate(f"say([[f.source, f.job_id, f.reason] for f in {gone}])") == []


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    if rabbitmq.server() is None:
        pytest.skip(rabbitmq.HOW_TO_GET_IT)
    try:
        node.packages()
    except node.OutOfReach as error:
        pytest.skip(str(error))
    made = World(tmp_path_factory.mktemp("side"))
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.long("Runs four queue systems side by side.")
def test_all_four_are_read_and_replayed_side_by_side(world):
    world.goes_on(None)
    page = world.desk.page()
    for text in ("shop Celery", "bull BullMQ", "table Jobs table", "rabbit RabbitMQ"):
        assert text in page


@pytest.fixture
def dead_jobs(world):
    """A dead job of each, which must still be dead when all is over."""
    return {system: world.arrives(system) for system in world.systems}


def still_dead(world, dead_jobs):
    world.nothing_is_gone()
    for system, job_id in dead_jobs.items():
        assert world.desk.states(system)[job_id] == "dead", system.name


def test_one_that_hangs_is_reported_to_and_the_others_go_on(world, dead_jobs):
    other = world.arrives(world.bull)
    os.kill(world.bull.engine.process.pid, signal.SIGSTOP)
    try:
        waits = world.desk.replay(world.bull, other)  # its sender hangs with it, and no other
        world.goes_on(world.bull)
        assert world.desk.items(waits) == ["planned"]
        away = world.is_away(world.bull)
        assert away["since"] != "None" or away["not_pulled_since"] != "None"
        assert world.bull.engine.password not in str(away)
        assert re.search(
            r"bull BullMQ .*(does not answer\. Since|have not been read since) (\d+ \w+ )?\d\d:\d\d", world.desk.page()
        )
    finally:
        os.kill(world.bull.engine.process.pid, signal.SIGCONT)
    world.is_back(world.bull)
    world.desk.wait(lambda: world.desk.items(waits) == ["succeeded"], "what waited for it went", SECONDS)
    still_dead(world, dead_jobs)


def test_one_replay_over_two_systems_is_sent_and_ends_well_in_both(world, dead_jobs):
    both = {system: dead_jobs[system] for system in (world.bull, world.table)}
    replay = world.desk.replay_of(both)
    world.desk.wait(lambda: "planned" not in world.desk.items(replay), "both are sent", SECONDS)
    assert world.table.status(dead_jobs[world.table]) == "pending"
    world.table.work()
    world.desk.wait(lambda: world.desk.items(replay) == ["succeeded"] * 2, "both ran well", SECONDS)
    for system, job_id in both.items():
        assert world.desk.states(system)[job_id] == "recovered", system.name
    state = f"Replay.objects.values_list('state', flat=True).get(pk={replay})"
    world.desk.wait(lambda: world.desk.evaluate(f"say({state})") == "done", "the replay is done", SECONDS)


def test_a_table_that_a_person_locks_holds_up_no_one(world, dead_jobs):
    other = world.arrives(world.table)
    with world.table.locked():
        waits = world.desk.replay(world.table, other)
        away = world.is_away(world.table)
        assert "lock" in away["why"] + away["why_not_pulled"]
        world.goes_on(world.table)
        assert world.desk.items(waits) == ["planned"]
    world.is_back(world.table)
    world.desk.wait(lambda: world.desk.items(waits) != ["planned"], "what waited for it went", SECONDS)
    world.table.work()
    world.desk.wait(lambda: world.desk.items(waits) == ["succeeded"], "it ran well", SECONDS)
    still_dead(world, dead_jobs)


@pytest.mark.long("Runs four queue systems side by side.")
def test_one_that_is_killed_comes_back_by_itself_with_what_it_stored(world, dead_jobs):
    waiting = world.desk.replay(world.bull, dead_jobs[world.bull])
    world.desk.wait(lambda: world.desk.states(world.bull)[dead_jobs[world.bull]] == "recovered", "it ran well", SECONDS)
    arrived = world.arrives(world.bull)
    world.bull.engine.kill()
    replay = world.desk.replay(world.bull, arrived)
    world.is_away(world.bull)
    world.goes_on(world.bull)
    assert world.desk.items(replay) == ["planned"] and world.desk.items(waiting) == ["succeeded"]
    world.bull.engine.start(SECONDS)
    world.desk.wait(lambda: world.desk.states(world.bull)[arrived] == "recovered", "what waited for it went", SECONDS)
    world.is_back(world.bull)
    world.nothing_is_gone()


def test_one_that_answers_slowly_holds_up_no_one(world, dead_jobs):
    world.bull.road.delay_s = 1.0
    try:
        world.goes_on(world.bull)
    finally:
        world.bull.road.delay_s = 0.0
    world.is_back(world.bull)
    still_dead(world, dead_jobs)


def test_a_version_that_is_not_known_makes_it_read_only_until_it_is_known_again(world, dead_jobs):
    meta = f"bull:{world.bull.queue}:meta"
    before = world.bull.valkey.hget(meta, "version")
    world.bull.valkey.hset(meta, "version", "bullmq:99.0.0")
    try:
        world.desk.sample_closely()
        reason = world.desk.wait(lambda: world.desk.source(world.bull)["read_only"], "it is read-only", 120)
        assert "99" in reason
        assert re.search(r"bull BullMQ .*Read-only: nothing is sent to bull\.", world.desk.page())
        refused = world.desk.evaluate(
            f"found = Failure.objects.get(source='bull', job_id={dead_jobs[world.bull]!r})\n"
            "try:\n replays.draft(ANN, selection=[found.pk], reason='mended'); say('')\n"
            "except Refused as error: say(error.message)"
        )
        assert "99" in refused
        world.goes_on(world.bull)
    finally:
        world.bull.valkey.hset(meta, "version", before)
    world.desk.sample_closely()
    world.desk.wait(lambda: not world.desk.source(world.bull)["read_only"], "it is known again", 120)
    world.is_back(world.bull)
    still_dead(world, dead_jobs)


def test_one_that_lost_its_data_has_its_dead_here_and_goes_on_from_there(world, dead_jobs):
    world.bull.valkey.flushall()
    world.goes_on(world.bull)
    again = world.is_back(world.bull)
    still_dead(world, dead_jobs)
    world.bull.restart_workers()  # a worker that reconnects writes the version, which was lost with the data
    world.is_back(world.bull)
    replay = world.desk.replay(world.bull, dead_jobs[world.bull])
    ran = (["succeeded"], ["failed_again"])
    world.desk.wait(lambda: world.desk.items(replay) in ran, "it was sent from the copy here, and ran", SECONDS)
    assert world.desk.states(world.bull)[again] == "dead"


@pytest.mark.long("Runs four queue systems side by side.")
def test_a_table_that_is_dropped_is_reported_and_its_dead_stay(world, dead_jobs):
    world.table.drop()
    away = world.is_away(world.table)
    assert "jobs" in away["why"] + away["why_not_pulled"]
    world.goes_on(world.table)
    world.table.make()
    world.is_back(world.table)
    still_dead(world, dead_jobs)


@pytest.mark.long("Runs four queue systems side by side.")
def test_a_rabbitmq_that_is_killed_holds_up_no_one_and_comes_back_with_what_it_stored(world, dead_jobs):
    arrived = world.arrives(world.rabbit)
    world.rabbit.kill()
    replay = world.desk.replay(world.rabbit, arrived)
    world.is_away(world.rabbit)
    world.goes_on(world.rabbit)
    assert world.desk.items(replay) == ["planned"]
    world.rabbit.node.start()
    world.desk.wait(lambda: "planned" not in world.desk.items(replay), "what waited for it went", SECONDS)
    world.is_back(world.rabbit)
    still_dead(world, dead_jobs)
