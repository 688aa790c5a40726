"""`policies lint`: what it prints, and how it ends."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from jobs_admin import config
from jobs_admin.core.lint import GROWTH
from jobs_admin.core.policy import document, parse
from jobs_admin.models import PolicyVersion
from tests.kit.planted import PLANTED
from tests.kit.sources import forget_configuration


def lint(*options: str) -> tuple[str, str, int]:
    """(said, said aside, exit code)."""
    out, err, code = StringIO(), StringIO(), 0
    try:
        call_command("policies", "lint", *options, stdout=out, stderr=err)
    except SystemExit as ended:
        code = ended.code
    except CommandError as error:
        err.write(str(error))
        code = error.returncode
    return out.getvalue(), err.getvalue(), code


def publish(**changes):
    from django.utils import timezone

    policy = parse({"name": "emails", "max_attempts": 9, "cap_s": 300, "classes": [{"error": "ValueError", "as": "permanent"}],
                    "backoff": {"kind": "exponential", "first_delay_s": 5, "factor": 2}} | changes)  # fmt: skip
    PolicyVersion.objects.create(version=1, document=document(policy), published_at=timezone.now(), published_by="ann")


@pytest.mark.django_db
def test_nothing_to_judge_is_reported_and_is_no_failure(store):
    out, _, code = lint()
    assert (out, code) == ("0 high, 0 medium, 0 low; of no policies and no tasks.\n", 0)


@pytest.mark.django_db
def test_a_high_finding_ends_with_1_and_an_exception_takes_it_out(store):
    publish(backoff={"kind": "fixed", "first_delay_s": 60}, cap_s=None)
    out, _, code = lint()
    assert code == 1
    assert out.startswith(
        f"HIGH    Retries without exponential backoff ({GROWTH})\n        policy emails: Every wait is the same: 1 min."
    )
    assert "1 high, 0 medium, 0 low; of 1 policy.\n" in out
    assert "1 fail, 0 not applicable, 0 cannot tell. By kind: 1 fixed." in out
    out, _, code = lint("--except", f"{GROWTH}@emails")
    assert (out.splitlines()[0], code) == ("0 high, 0 medium, 0 low, 1 excepted; of 1 policy.", 0)
    assert lint("--except", f"{GROWTH}@other")[2] == 1
    assert lint("--except", "*exponential*")[2] == 0


@pytest.mark.django_db
def test_what_is_low_does_not_fail_a_build(store):
    publish(max_attempts=2)
    out, _, code = lint()
    assert ("0 high, 0 medium, 1 low" in out, code) == (True, 0)
    assert lint("--outage", "4s")[0].startswith("0 high, 0 medium, 0 low")


@pytest.mark.django_db
def test_json_is_one_object_as_the_api_answers(store):
    publish(backoff={"kind": "fixed", "first_delay_s": 60}, cap_s=None)
    out, err, code = lint("--json")
    data = json.loads(out)
    assert (data["counts"], code, err) == ({"high": 1, "medium": 0, "low": 0}, 1, "")
    assert (data["check"]["kinds"], data["check"]["passes"]) == ({"fixed": 1}, False)
    assert data["findings"][0]["at"] == {"source": "*", "queue": "*", "task": "*", "policy": "emails"}


@pytest.mark.django_db
def test_a_store_that_is_away_is_no_green_build(store, settings):
    settings.REDRIVE = settings.REDRIVE | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    forget_configuration(config)
    out, err, code = lint()
    assert code == 2
    assert "The store does not answer: live workers were not checked." in err
    assert out.startswith("0 high")


def test_an_app_is_read_without_a_worker_and_every_planted_mistake_is_found():
    out, _, code = lint("--json", "--app", "tests.kit.planted:shop")
    found: dict[str, set[str]] = {}
    for one in json.loads(out)["findings"]:
        found.setdefault(one["at"]["task"], set()).add(one["id"])
    # Volume is seen by a desk alone.
    assert found == {task: ids for task, ids in PLANTED.items() if ids != {"no-jitter-at-volume"}}
    assert code == 1


def test_a_clean_app_passes():
    out, err, code = lint("--app", "tests.kit.planted:tidy")
    assert (out.splitlines()[0], err, code) == ("0 high, 0 medium, 0 low; of 4 tasks.", "", 0)
    assert out.splitlines()[1] == (
        "Exponential backoff: 3 pass, 0 fail, 2 not applicable, 0 cannot tell. "
        "By kind: 2 exponential, 1 table, 1 as asked."
    )


@pytest.mark.parametrize(("option", "why"), [
    (("--app", "tests.nowhere:app"), "tests.nowhere:app cannot be read: ModuleNotFoundError: No module named 'tests.nowhere'"),
    (("--outage", "soon"), "--outage 'soon' is not a duration such as 90s, 15m or 2h."),
])  # fmt: skip
def test_what_cannot_be_checked_is_reported_and_is_not_taken_for_clean(option, why):
    _, err, code = lint(*option)
    assert (err, code) == (why, 2)
