"""Looks become minutes, hours and days, whatever is done twice, late or at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from jobs_admin.desk import retention
from jobs_admin.models import DepthSample
from jobs_admin.queues import depths
from jobs_admin.queues.depths import rolling
from tests.kit import migrated
from tests.kit.depths import NOW, build_sample, create_samples, everything, roll
from tests.kit.endurance import times

pytestmark = pytest.mark.databases

ROOT = Path(__file__).resolve().parents[3]


def rolled(step: int, queue: str = "emails") -> list[tuple]:
    columns = ("at", "looks", "dead", "dead_min", "dead_max")
    return list(DepthSample.objects.filter(step=step, queue=queue).order_by("at").values_list(*columns))


@pytest.mark.django_db
class TestOneWatch:
    def test_a_minute_holds_the_least_the_most_and_the_last(self):
        for n, dead in enumerate((5, 9, 1, 4, 4, 7)):
            build_sample(NOW - timedelta(seconds=60 - n * 10), dead).save()
        roll()
        ((at, samples, *values),) = rolled(60)
        assert (at, samples, values) == (NOW - timedelta(seconds=60), 6, [7, 1, 9])

    def test_what_did_not_change_needs_no_least_and_most(self):
        DepthSample.objects.bulk_create(build_sample(NOW - timedelta(seconds=s), 3) for s in (60, 50, 40))
        roll()
        assert [row[2:] for row in rolled(60)] == [(3, None, None)]

    def test_folding_again_changes_nothing(self):
        create_samples(NOW - timedelta(hours=3), 1080)
        roll()
        before = everything()
        roll(), roll(NOW + timedelta(seconds=30))
        assert everything() == before and len(before) > 180

    def test_the_step_that_runs_grows_with_each_check(self):
        create_samples(NOW, 2)
        roll(NOW + timedelta(seconds=15))
        assert [row[1] for row in rolled(86_400)] == [2]
        create_samples(NOW + timedelta(seconds=20), 3)
        roll(NOW + timedelta(seconds=45))
        assert [row[1] for row in rolled(86_400)] == [5] == [row[1] for row in rolled(60)]

    def test_a_day_away_is_caught_up_and_a_gap_stays_a_gap(self):
        create_samples(NOW - timedelta(days=2), 360)
        roll(NOW - timedelta(days=2) + timedelta(hours=1))
        create_samples(NOW - timedelta(days=1), 360)
        create_samples(NOW - timedelta(minutes=1), 6)
        roll()
        assert [row[1] for row in rolled(3600)] == [360, 360, 6]
        assert sum(row[1] for row in rolled(86_400)) == 726

    def test_a_check_written_late_is_folded_too(self):
        create_samples(NOW - timedelta(minutes=10), 60)
        roll()
        build_sample(NOW - timedelta(seconds=50), 5000, "late").save()
        roll(NOW + timedelta(seconds=10))
        assert [row[2] for row in rolled(60, "late")] == [5000] == [row[2] for row in rolled(86_400, "late")]

    def test_who_saw_less_takes_nothing_back(self):
        create_samples(NOW - timedelta(minutes=1), 6)
        since = int(NOW.timestamp()) - 60
        frozen = rolling._rows(10, since, since + 60)[:2]
        roll()
        before = everything()
        late = rolling.fold([row for *_, row in frozen])
        rolling._write(60, [(since, "shop", "emails", late)])
        assert everything() == before

    def test_a_clock_that_was_wrong_for_a_moment_does_not_end_folding(self):
        build_sample(NOW + timedelta(days=300)).save()
        roll(NOW + timedelta(days=300))
        create_samples(NOW - timedelta(minutes=2), 12)
        roll()
        assert [row[1] for row in rolled(60)][:2] == [6, 6]

    def test_watch_folds_what_is_due_and_queries_nothing_in_between(self, monkeypatch, django_assert_num_queries):
        monkeypatch.setattr(rolling, "_due", {})
        monkeypatch.setattr(rolling, "_ROUND_S", 60.0)
        create_samples(NOW - timedelta(minutes=1), 6)
        assert depths.step(NOW) is False and len(rolled(86_400)) == 1
        create_samples(NOW, 3)
        with django_assert_num_queries(0):
            assert depths.step(NOW + timedelta(seconds=10)) is False
        rolling._due.clear()
        depths.step(NOW + timedelta(seconds=40))
        assert sum(row[1] for row in rolled(60)) == 9

    def test_a_round_ends_in_time_and_the_next_goes_on(self, monkeypatch):
        monkeypatch.setattr(rolling, "_ROUND_S", -1.0)
        create_samples(NOW - timedelta(hours=1), 360)
        assert depths.roll_up(NOW) is True and not everything()


@pytest.mark.django_db
class TestRetention:
    def test_each_step_is_stored_for_its_time(self):
        for step, age in ((10, 1), (60, 14), (300, 14), (900, 14), (3600, 400), (86_400, 400)):
            for days in (age - 0.5, age + 0.5):
                build_sample(NOW - timedelta(days=days), step=step, queue=f"{days}").save()
        build_sample(NOW, step=60), build_sample(NOW).save()
        roll()
        retention.prune(NOW)
        stored = DepthSample.objects.filter(queue__contains=".").values_list("step", "queue")
        assert {(10, "0.5"), (60, "13.5"), (3600, "399.5"), (86_400, "399.5")} <= set(stored)
        old = {(10, "1.5"), (60, "14.5"), (300, "14.5"), (900, "14.5"), (3600, "400.5"), (86_400, "400.5")}
        assert not old & set(stored)

    def test_what_is_in_no_longer_step_yet_is_not_deleted_however_old(self):
        create_samples(NOW - timedelta(days=3), 30)
        retention.prune(NOW)
        assert DepthSample.objects.count() == 30
        create_samples(NOW - timedelta(minutes=5), 30)
        roll()
        retention.prune(NOW)
        assert DepthSample.objects.filter(step=10).count() == 30
        assert sum(row[1] for row in rolled(3600)) == 60

    def test_how_long_depths_are_stored_can_be_set(self, settings):
        settings.REDRIVE = settings.REDRIVE | {"KEEP": "depths=7d"}
        for days in (6, 8):
            build_sample(NOW - timedelta(days=days), step=3600, queue=f"d{days}").save()
        create_samples(NOW - timedelta(minutes=1), 6)
        roll()
        retention.prune(NOW)
        assert set(DepthSample.objects.filter(step=3600).values_list("queue", flat=True)) == {"d6", "emails"}

    def test_a_dry_run_reports_how_many_and_deletes_none(self):
        create_samples(NOW - timedelta(days=2), 60), create_samples(NOW - timedelta(minutes=1), 6)
        roll()
        pruned = retention.prune(NOW, dry_run=True)
        assert pruned.rows["depth samples"] == 60 and DepthSample.objects.filter(step=10).count() == 66


class AnySamples(TestCase):
    @settings(max_examples=25)
    @given(st.dictionaries(st.integers(0, 1079), st.integers(0, 10**9), min_size=1, max_size=60), st.data())
    def test_whatever_is_checked_and_whenever_it_is_folded(self, seen, data):
        """Three hours of looks with holes in them, folded after any of them: each step says what its looks said."""
        DepthSample.objects.all().delete()
        since = NOW - timedelta(hours=3)
        for n, dead in sorted(seen.items()):
            build_sample(since + timedelta(seconds=10 * n), dead).save()
            if data.draw(st.booleans()):
                roll(since + timedelta(seconds=10 * n + 5))
        roll()
        for step in (60, 300, 900, 3600, 21_600, 86_400):
            wanted: dict[int, list[int]] = {}
            for n, dead in sorted(seen.items()):
                wanted.setdefault((int(since.timestamp()) + 10 * n) // step * step, []).append(dead)
            found = {
                int(at.timestamp()): (samples, last, last if low is None else low, last if high is None else high)
                for at, samples, last, low, high in rolled(step)
            }
            assert found == {at: (len(v), v[-1], min(v), max(v)) for at, v in wanted.items()}


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_several_watches_at_once_fold_as_one_does():
    for queue in ("a", "b", "c"):
        create_samples(NOW - timedelta(hours=2), 720, queue)
    errors: list[BaseException] = []

    def watch() -> None:
        try:
            roll()
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=watch) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    together = everything()
    DepthSample.objects.exclude(step=10).delete()
    roll()
    assert not errors and everything() == together and len(together) == 3 * (120 + 24 + 8 + 2 + 1 + 1)


IMPORTS = """
import django; django.setup()
from datetime import UTC, datetime
from tests.kit import depths
"""
CREATE = (
    IMPORTS + "[depths.create_samples(depths.NOW - depths.timedelta(hours=6), 2160, queue) for queue in 'abcdefgh']"
)
FOLD = IMPORTS + "print('begun', flush=True); depths.roll(); print('done')"
COMPARE = IMPORTS + "print(sorted(depths.everything()) == sorted(depths.folded_by_hand()), len(depths.everything()))"


@pytest.mark.sqlite
@pytest.mark.long("Kills watches in three rounds, each a process of its own.")
def test_three_watches_in_one_file_killed_again_and_again_lose_nothing(tmp_path):
    def start(*command: str) -> subprocess.Popen[str]:
        url = f"sqlite:///{tmp_path}/redrive.sqlite3"
        environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, text=True, **both)

    migrated.into(tmp_path)
    assert start("-c", CREATE).communicate(timeout=180)[0] == ""
    for n in range(0, 6, times(2, 1)):
        watches = [start("-c", FOLD) for _ in range(2)]
        assert all(watch.stdout.readline() == "begun\n" for watch in watches)
        time.sleep(0.03 * n)
        [watch.kill() for watch in watches]
        [watch.wait(90) for watch in watches]
    watches = [start("-c", FOLD) for _ in range(3)]
    assert [watch.communicate(timeout=180)[0] for watch in watches] == ["begun\ndone\n"] * 3
    assert start("-c", COMPARE).communicate(timeout=180)[0].split() == ["True", str(8 * (360 + 72 + 24 + 6 + 2 + 2))]
