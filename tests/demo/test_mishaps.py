from __future__ import annotations

import time
from random import Random

import pytest

from demo.attempts import IMPATIENCE_S
from demo.orders import MISHAPS, ordinary
from demo.shop import QUEUES, app
from jobs_admin.core.fingerprint import fingerprint


def last_try(stage, mishap, random=None):
    retries = app.tasks[f"shop.{mishap.task}"].max_retries or 0
    return stage.attempt(mishap, random or Random(mishap.name), 0 if mishap.needs_tries else retries)


@pytest.mark.parametrize("mishap", MISHAPS, ids=lambda mishap: mishap.name)
def test_a_mishap_raises_its_declared_error_from_the_shops_own_code(stage, mishap):
    attempt = last_try(stage, mishap)
    assert attempt.error_type.rpartition(".")[2] == mishap.raises
    assert f"demo/{mishap.task.partition('.')[0]}.py" in attempt.trace
    assert attempt.trace.rstrip().splitlines()[-1] != ""


def test_the_mishaps_are_at_least_forty_different_errors(stage):
    found = set()
    for mishap in MISHAPS:
        attempt = last_try(stage, mishap)
        found.add(fingerprint(attempt.error_type, attempt.message, attempt.trace).value)
    assert len(found) >= 40


def test_two_jobs_with_the_same_mishap_are_the_same_error(stage):
    for mishap in MISHAPS:
        prints = set()
        for seed in (1, 2):
            attempt = last_try(stage, mishap, Random(seed))
            prints.add(fingerprint(attempt.error_type, attempt.message, attempt.trace).value)
        assert len(prints) == 1, f"{mishap.name}: {attempt.message}"


def test_an_ordinary_job_succeeds_while_the_partner_is_well(stage):
    stage._partner.change("well")
    random = Random(7)
    jobs = [ordinary(random) for _ in range(60)]
    for job in jobs:
        app.tasks[job.task].run(**job.kwargs)
    assert len({job.task for job in jobs}) >= 8


def test_celerys_own_retries_are_tried_until_they_are_used_up(stage):
    (mishap,) = [each for each in MISHAPS if each.name == "stock not told"]
    kinds = [stage.attempt(mishap, Random(1), retries).kind for retries in range(5)]
    assert kinds == ["retry"] * 4 + ["exception"]


def test_a_rate_limited_job_waits_as_long_as_the_partner_requested(stage):
    (mishap,) = [each for each in MISHAPS if each.name == "partner limits the rate"]
    attempt = stage.attempt(mishap, Random(1), 0)
    assert attempt.kind == "retry"
    assert f"come back in {attempt.wait_s:g} s" in attempt.message


def test_every_task_has_a_queue_of_its_own_shop():
    app.loader.import_default_modules()
    named = [name for name in app.tasks if name.startswith("shop.")]
    queues = {app.amqp.router.route({}, name)["queue"].name for name in named}
    assert queues == set(QUEUES)


def test_only_who_is_to_time_out_does_however_busy_the_machine_is(stage, monkeypatch):
    answer = stage._partner.temper.answer

    def late(now):
        time.sleep(2 * IMPATIENCE_S)
        return answer(now)

    monkeypatch.setattr(stage._partner.temper, "answer", late)
    (mishap,) = [each for each in MISHAPS if each.name == "partner limits the rate"]
    assert stage.attempt(mishap, Random(1), 0).kind == "retry"
