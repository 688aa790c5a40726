"""Some random histories of each queue system, always the same ones; many more with `python -m bench.histories`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.histories.kit import Divergence, Step, World, act, run_histories, shrink, sizes_around
from tests.kit import django_tasks, node, rabbitmq, shops, sqs
from tests.kit.endurance import times

ROOT = Path(__file__).resolve().parents[2]
_WITHIN_S = times(3, 6)  # after which no history begins but the first ones: a busy machine runs fewer of them
_AT_LEAST = 5


def run(*arguments: str, at_least: int = _AT_LEAST) -> None:
    limits = ["--seed", "1", "--within", str(_WITHIN_S), "--at-least", str(at_least)]
    command = [sys.executable, "-m", "bench.histories", *arguments, *limits]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6_000:]
    counted = re.search(r"^(\d+) histories from seed 1 on", done.stderr, re.MULTILINE)
    assert counted and int(counted[1]) >= at_least, done.stderr[-6_000:]
    if "--kills" in arguments:
        killed = re.search(r"^(\d+) kills$", done.stderr, re.MULTILINE)
        assert killed and int(killed[1]) > 0, done.stderr[-6_000:]


@pytest.mark.server
@pytest.mark.sqlite
class TestHistories:
    @pytest.mark.long("Runs random histories against real servers.")
    def test_of_celery_on_redis(self):
        run("celery_redis", "--histories", "60")

    @pytest.mark.long("Runs random histories against real servers.")
    def test_of_celery_on_rabbitmq(self):
        self.need_rabbitmq()
        run("celery_rabbitmq", "--histories", "30")

    def test_of_bullmq(self):
        try:
            node.packages()
        except node.OutOfReach as error:
            pytest.skip(str(error))
        run("bullmq", "--histories", "60")

    def test_of_bull(self):
        try:
            node.packages()
        except node.OutOfReach as error:
            pytest.skip(str(error))
        run("bull", "--histories", "60")

    def test_of_rq(self):
        shops.need("rq")
        run("rq", "--histories", "60")

    def test_of_dramatiq(self):
        shops.need("dramatiq")
        run("dramatiq", "--histories", "3", at_least=3)

    def test_of_sidekiq(self):
        shops.need("sidekiq")
        run("sidekiq", "--histories", "60")

    def test_of_celery_in_guest_mode(self):
        run("followed", "--histories", "60")

    def test_of_a_jobs_table(self):
        run("jobs_table", "--histories", "60")

    @pytest.mark.long("Runs random histories against real servers.")
    def test_of_a_jobs_table_on_postgresql(self):
        run("jobs_table_postgresql", "--histories", "30")

    @pytest.mark.long("Runs random histories against real servers.")
    def test_of_django_tasks(self):
        django_tasks.need_library()
        run("django_tasks", "--histories", "30")

    @pytest.mark.long("Runs random histories against real servers.")
    def test_of_dead_letters_of_rabbitmq(self):
        self.need_rabbitmq()
        run("rabbitmq", "--histories", "30")

    @pytest.mark.long("Runs random histories against real servers.")
    def test_of_dramatiq_on_rabbitmq(self):
        self.need_rabbitmq()
        run("dramatiq_rabbitmq", "--histories", "30")

    @pytest.mark.long("Runs random histories against real servers.")
    def test_of_dead_letters_of_sqs(self):
        sqs.need_server()
        run("sqs", "--histories", "30")

    def test_of_replays(self):
        run("replays", "--histories", "60")

    def test_of_alerts(self):
        run("alerts", "--histories", "60")

    def test_of_undoing(self):
        run("undo", "--histories", "60")

    @pytest.mark.long("Runs random histories against real servers.")
    @pytest.mark.parametrize("world", ["celery_redis", "jobs_table", "replays", "alerts", "undo"])
    def test_of_processes_that_are_killed(self, world):
        run(world, "--kills", "--histories", "10")

    def need_rabbitmq(self):
        if rabbitmq.server() is None:
            pytest.skip(rabbitmq.HOW_TO_GET_IT)


class Counting(World):
    """Wrong once it was added to three times and taken from."""

    def begin(self, rng):
        self.count, self.is_broken = 0, False

    @act(weight=3)
    def add(self, rng):
        self.count += 1

    @act()
    def take(self, rng):
        self.is_broken |= self.count >= 3

    def catch_up(self):
        pass

    def check(self):
        if self.is_broken:
            raise Divergence("broken")


class TestKit:
    def test_a_history_that_diverges_is_found_and_made_as_short_as_it_can_be(self, capsys):
        failed = run_histories(Counting(), first_seed=1, count=200, command="here")
        assert failed and all([step.act for step in one.steps] == ["add"] * 3 + ["take"] for one in failed)
        assert f"here --seed {failed[0].seed} --histories 1" in capsys.readouterr().err

    def test_a_busy_machine_runs_the_least_number_of_histories(self, capsys):
        run_histories(Counting(), first_seed=1, count=200, most_failed=200, within_s=0, at_least=7)
        assert "7 histories from seed 1 on" in capsys.readouterr().err

    def test_a_seed_is_always_the_same_history(self, capsys):
        first, again = (run_histories(Counting(), first_seed=1, count=100, command="") for _ in range(2))
        assert first == again

    def test_what_is_needed_is_not_left_out(self):
        steps = [Step(name, 1) for name in ("add", "add", "take", "add", "take", "add")]
        assert [step.act for step in shrink(Counting(), 1, steps, "broken").steps] == ["add", "add", "add", "take"]

    def test_sizes_are_those_at_which_a_page_may_break(self):
        assert (sizes_around(1), sizes_around(400)) == ([0, 1, 2], [0, 1, 399, 400, 401])
