from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.pacing import Evidence, Judged
from jobs_admin.core.pacing.evidence import Outcomes, surely_above


def came(ok=0, failed=0, group=1, **more):
    return [one for one in (Judged(0, 0, True, n=ok), Judged(0, 0, False, group, n=failed, **more)) if one.n]


@pytest.mark.parametrize("hits, of, share", [(1, 2, 0.0945), (6, 10, 0.3127), (60, 200, 0.2407), (0, 9, 0), (0, 0, 0)])
def test_what_is_beyond_doubt_is_the_lower_end_of_wilson_s_interval(hits, of, share):
    assert surely_above(hits, of) == pytest.approx(share, abs=1e-4)


@given(st.integers(1, 500), st.integers(0, 500))
def test_it_is_never_more_than_what_was_seen_and_grows_with_it(of, hits):
    hits = min(hits, of)
    assert 0 <= surely_above(hits, of) <= hits / of
    assert surely_above(hits, of) <= surely_above(min(of, hits + 1), of) + 1e-12


def test_the_oldest_go_first():
    outcomes = Outcomes().joined(came(ok=150), 200).joined(came(failed=20), 200).joined(came(ok=60), 200)
    assert (outcomes.judged, outcomes.failed) == (200, 20)
    assert outcomes.joined(came(ok=200), 200).failed == 0


def test_of_very_many_at_one_check_a_share_represents_all():
    outcomes = Outcomes().joined(came(ok=2_700, failed=300), 200)
    assert (outcomes.judged, outcomes.failed) == (200, 20)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400), st.integers(1, 3)), max_size=30), st.integers(10, 300)
)
def test_never_more_are_stored_than_requested_and_they_survive_json(checks, most):
    outcomes = Outcomes()
    for ok, failed, group in checks:
        outcomes = outcomes.joined(came(ok, failed, group, is_new_group=group == 3), most)
        assert outcomes.judged <= most and 0 <= outcomes.new <= outcomes.failed <= outcomes.judged
    assert Outcomes.from_list(json.loads(json.dumps(outcomes.as_list()))) == outcomes


def test_the_commonest_group_is_named_and_whether_they_had_died_of_it():
    outcomes = Outcomes().joined([*came(failed=2, group=1), *came(failed=3, group=2, is_same_group=True)], 200)
    assert outcomes.commonest() == (2, 3, True)
    assert outcomes.commonest(new=True) == (None, 0, False)


@pytest.mark.parametrize(
    "evidence, message",
    [
        (Evidence("canary", failed=6, judged=10, in_group=6), "6 of 10 canary jobs failed again with X."),
        (Evidence("canary", failed=6, judged=10, in_group=4), "6 of 10 canary jobs failed again, 4 of them with X."),
        (
            Evidence("failing", failed=80, judged=200, limit=0.3, in_group=80),
            "80 of the last 200 jobs failed again with X. This replay stops when clearly more than 30 % fail again.",
        ),
        (
            Evidence("new_groups", failed=60, judged=200, in_group=60),
            "60 of the last 200 jobs failed in a way not seen before with X.",
        ),
        (Evidence("no_news", unsettled=1, seconds=60), "1 job was sent and no outcome was reported for 1 min."),
        (
            Evidence("not_draining", unsettled=1200, seconds=300),
            "1,200 jobs were sent and none has settled for 5 min: the queue is not draining.",
        ),
        (
            Evidence("workers_gone", unsettled=40, seconds=30),
            "The workers are gone: none for 30 s, while 40 jobs were sent and not settled.",
        ),
        (
            Evidence("backed_off", failed=12, judged=240, rate=300, to_rate=249.6, in_group=12),
            "12 of 240 failed at 300/s with X: slowed down to 250/s.",
        ),
        (
            Evidence("slower", runtime_s=0.9, usual_s=0.3, rate=12.5, to_rate=10.6),
            "Jobs take 0.9 s rather than 0.3 s at 12/s: slowed down to 11/s.",
        ),
    ],
)
def test_evidence_is_numbers_and_a_sentence(evidence, message):
    assert evidence.sentence("X") == message
    assert Evidence.from_dict(json.loads(json.dumps(evidence.as_dict()))) == evidence
    assert evidence.holds == (evidence.kind not in ("backed_off", "slower"))


def test_evidence_is_complete_after_json_also_where_a_number_is_zero():
    why = Evidence("canary", failed=5, judged=5, limit=0.0, group=0)
    assert Evidence.from_dict(why.as_dict()) == why and "bound" not in why.as_dict()
