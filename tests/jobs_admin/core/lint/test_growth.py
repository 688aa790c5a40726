"""The check of exponential backoff, by the examples of AuditBuffet AB-002450 and by our presets' shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs_admin.core import lint
from jobs_admin.core.lint.configuration import App, Configuration, RetryCall, Task
from jobs_admin.core.lint.rules.exponential_backoff import FAIL, NOT_APPLICABLE, PASS, UNDECIDED
from jobs_admin.core.policy import parse

EXPONENTIAL = {"kind": "exponential", "first_delay_s": 2, "factor": 2}


def check(*tasks: Task, policies=(), modes=frozenset({"capture"})) -> lint.Check:
    found = Configuration("shop", App(broker="redis"), tasks=tasks, modes=modes)
    return lint.check(lint.case([parse(one) for one in policies], [found], lint.Facts()))


def of_policy(**document) -> tuple[str, str, str]:
    (one,) = check(policies=[{"name": "p", "max_attempts": 5} | document]).verdicts
    return one.kind, one.verdict, one.why


def of_call(countdown: str | None, **task) -> tuple[str, str]:
    (one,) = check(Task("send", calls=(RetryCall("self.retry(…)", countdown),), **task)).verdicts
    return one.kind, one.verdict


@pytest.mark.parametrize(
    ("document", "kind", "verdict", "why"),
    [
        # "2s, 4s, 8s, 16s … capped at 10 minutes"
        ({"backoff": EXPONENTIAL, "cap_s": 600}, "exponential", PASS, "Waits at least double (2 s, 4 s, 8 s, 16 s), up to 10 min."),
        ({"backoff": EXPONENTIAL, "cap_s": 600, "jitter": {"kind": "full"}}, "exponential", PASS, None),
        # "Do NOT pass … when no maximum delay cap exists"
        ({"backoff": EXPONENTIAL}, "exponential", FAIL, "Waits double (2 s, 4 s, 8 s, 16 s), but no cap is set."),
        ({"backoff": EXPONENTIAL, "cap_s": 601}, "exponential", FAIL, "Waits double up to 10 min 1 s, above 10 min."),
        # "fixed-interval (same delay each retry)"
        ({"backoff": {"kind": "fixed", "first_delay_s": 1}}, "fixed", FAIL, "Every wait is the same: 1 s."),
        ({"backoff": {"kind": "fixed", "first_delay_s": 0}}, "immediate", FAIL, "Retries are immediate."),
        # "or linear"
        ({"backoff": {"kind": "linear", "first_delay_s": 30}, "cap_s": 600}, "linear", FAIL,
         "Waits grow by the same step: 30 s, 1 min, 1 min 30 s, 2 min."),
        ({"backoff": EXPONENTIAL | {"factor": 1.9}, "cap_s": 600}, "exponential", FAIL, None),
        ({"backoff": {"kind": "table", "delays_s": [5, 60, 600]}}, "table", PASS, None),
        ({"backoff": {"kind": "table", "delays_s": [5, 9, 600]}}, "table", FAIL, None),
        ({"backoff": EXPONENTIAL, "cap_s": 600, "max_attempts": 1}, "none", NOT_APPLICABLE, "One attempt, no retries."),
    ],
)  # fmt: skip
def test_policies_are_judged_by_the_message_of_the_seed(document, kind, verdict, why):
    findings = of_policy(**document)
    assert findings[:2] == (kind, verdict)
    assert why in (None, findings[2])


@pytest.mark.parametrize(
    ("countdown", "kind", "verdict"),
    [
        ("min(600, 2 ** self.request.retries)", "exponential", PASS),
        ("min(60, 2 ** (self.request.retries + 1)) * random.uniform(0.9, 1.1)", "exponential", PASS),
        ("min(600, 2 ** self.request.retries) + random.randint(0, 9)", "exponential", PASS),
        ("random.uniform(0, min(600, 2 ** self.request.retries))", "exponential", PASS),
        ("2 ** self.request.retries", "exponential", FAIL),
        ("9e300 ** (self.request.retries + 1)", "exponential", FAIL),
        ("60", "fixed", FAIL),
        ("0", "immediate", FAIL),
        (None, "fixed", FAIL),  # default_retry_delay
        ("30 * (self.request.retries + 1)", "linear", FAIL),
        ("self.request.retries ** 4 + 15", "other", FAIL),
        ("[1, 10, 100][self.request.retries]", "table", PASS),
        ("error.retry_after", "as asked", NOT_APPLICABLE),
        ("wait_for(error)", "unknown", UNDECIDED),
    ],
)
def test_calls_of_retry_are_judged_by_what_is_written(countdown, kind, verdict):
    assert of_call(countdown) == (kind, verdict)


def test_what_names_stand_for_is_quoted_with_the_call():
    call = RetryCall("self.retry(countdown=STEPS[n])", "[5, 50, 500][self.request.retries]")
    (one,) = check(Task("send", calls=(call,))).verdicts
    assert one.quoted == (
        "self.retry(countdown=STEPS[n]), where countdown is [5, 50, 500][self.request.retries], max_retries=3"
    )


def test_celerys_own_backoff_passes_unless_it_begins_at_its_cap():
    task = Task("send", autoretry_for=("OSError",), retry_backoff=1)
    assert [(v.kind, v.verdict) for v in check(task).verdicts] == [("exponential", PASS)]
    assert [(v.kind, v.verdict) for v in check(replace(task, retry_backoff=600)).verdicts] == [("fixed", FAIL)]
    quoted = check(task).verdicts[0].quoted
    assert (
        quoted == "autoretry_for=(OSError,), max_retries=3, retry_backoff=1, retry_backoff_max=600, retry_jitter=True"
    )


def test_configurations_are_counted_by_kind_and_what_is_not_retried_is_not_counted():
    found = check(
        Task("a", autoretry_for=("OSError",), retry_backoff=1),
        Task("b", autoretry_for=("OSError",)),
        Task("c"),
        Task("d", calls=(RetryCall("", "60"), RetryCall("", "error.retry_after"))),
        policies=[{"name": "p", "match": {"task": "x"}, "max_attempts": 4, "backoff": EXPONENTIAL, "cap_s": 60}],
    )
    assert found.kinds == {"exponential": 2, "fixed": 2, "as asked": 1}
    assert [found.count(v) for v in lint.VERDICTS] == [2, 2, 2, 0]
    assert not found.passes


def test_what_a_policy_took_the_place_of_is_not_applicable_and_reports_it():
    policy = {"name": "p", "match": {"task": "b"}, "mode": "enforce", "backoff": EXPONENTIAL, "cap_s": 60}
    found = check(Task("b", autoretry_for=("OSError",)), policies=[policy], modes=frozenset({"enforce"}))
    assert [(v.by, v.verdict) for v in found.verdicts] == [("policy", PASS), ("autoretry_for", NOT_APPLICABLE)]
    assert found.verdicts[1].why == "Replaced by the policy p."
