"""Rules that workers of Celery and of BullMQ must apply alike: `both_workers.json`, to which clients/node/test holds the other side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs_admin.core import backoff, retry_after
from jobs_admin.core.matching import Dead, Ended, chosen, class_of, judge, matches
from jobs_admin.core.policy import LONGEST_S, document, parse
from jobs_admin.core.refused import Refused

CASES = json.loads((Path(__file__).parent / "both_workers.json").read_text())


def test_the_same_draw_is_the_same_wait():
    for case in CASES["waits"]:
        more = {name: case[key] for key, name in (("previous_s", "previous_s"), ("asked_s", "wish_s")) if key in case}
        wait = backoff.delay(parse(case["policy"]), case["attempt"], lambda u=case["u"]: u, **more)
        assert wait == pytest.approx(case["delay_s"], rel=1e-9), case
        assert wait <= case["policy"].get("cap_s", LONGEST_S), case


def test_the_same_policy_is_for_the_same_job():
    for glob, name, is_match in CASES["globs"]:
        assert matches(glob, name) == is_match, (glob, name)
    policies = [parse(one) for one in CASES["policies"]]
    for source, queue, task, name in CASES["chosen"]:
        assert chosen(policies, source, queue, task).name == name, (source, queue, task)


def test_the_same_error_has_the_same_class():
    policy = parse({"classes": CASES["classes"]})
    for names, found in CASES["class_of"]:
        assert class_of(policy, names) == found, names


def test_the_same_failure_gets_the_same_verdict():
    for case in CASES["verdicts"]:
        spent = []
        ended = Ended(**case["ended"] | {"error_names": tuple(case["ended"]["error_names"])})
        found = judge(parse(case["policy"]), ended, lambda: 0.5, lambda: spent.append(1) or case["budget"])  # noqa: B023
        if isinstance(found, Dead):
            assert found.reason == case.get("reason"), case
        else:
            assert (found.delay_s, found.wish_s) == (pytest.approx(case["delay_s"]), case["asked_s"]), case
        assert len(spent) == case["asked"], case


def test_the_same_wish_of_a_server_is_read_alike():
    for wish, found in CASES["wishes"]:
        assert retry_after.seconds(wish, CASES["now"]) == (found if found is None else pytest.approx(found)), wish


def test_the_same_document_is_the_same_policy_or_none():
    for text, read in CASES["read"]:
        assert document(parse(text)) == read, text
    for wrong in CASES["refused"]:
        with pytest.raises(Refused):
            parse(wrong, lenient=True)
    for newer, unknown in CASES["newer"]:
        policy = parse(newer, lenient=True)
        assert (list(policy.unknown), policy.mode) == (unknown, "observe" if unknown else "enforce"), newer
