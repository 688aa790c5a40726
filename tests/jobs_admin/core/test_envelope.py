"""A worker's report arrives as it was made, or is refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.envelope import KINDS, VERSION, Envelope, Lineage, UnknownVersion, Unreadable, decode, encode

LEAST = {"source": "shop", "queue": "emails", "task": "t", "job_id": "1", "kind": "exception", "attempt": 1, "at": 5.0}
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()))  # NUL and lone surrogates too


@given(ANY_TEXT, ANY_TEXT, st.binary(max_size=200), st.sampled_from(KINDS))
def test_an_envelope_comes_back_as_it_went(message, task, raw, kind):
    sent = Envelope(**{**LEAST, "task": task, "kind": kind}, message=message, raw=raw, raw_size=len(raw))
    assert decode(encode(sent)) == sent


def test_lineage_comes_back_as_it_went():
    sent = Envelope(**LEAST, lineage=Lineage("emails", "1", 3, item=7, replay="r", sent_as="2"))
    assert decode(encode(sent)).lineage == sent.lineage


def test_a_lone_surrogate_in_a_trace_is_shown_as_its_escape():
    assert decode(encode(Envelope(**LEAST, trace="a\ud800b"))).trace == "a\\ud800b"


@pytest.mark.parametrize("version", [VERSION - 1, VERSION, VERSION + 1])
def test_the_neighbouring_versions_are_read(version):
    entry = {**encode(Envelope(**LEAST)), b"v": str(version).encode()}
    assert decode(entry).job_id == "1"


@pytest.mark.parametrize("version", [b"", b"99", b"x", b"\xff"])
def test_an_unknown_version_is_refused_as_such(version):
    with pytest.raises(UnknownVersion):
        decode({**encode(Envelope(**LEAST)), b"v": version})


def test_a_field_from_the_future_is_passed_over():
    entry = encode(Envelope(**LEAST))
    entry[b"meta"] = json.dumps({**json.loads(entry[b"meta"]), "mood": "good"}).encode()
    assert decode(entry) == Envelope(**LEAST)


@pytest.mark.parametrize(
    "meta", [b"", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000, b'{"attempt": "x"}', b'{"v": NaN}']
)
def test_what_is_not_an_envelope_is_refused(meta):
    with pytest.raises(Unreadable):
        decode({b"v": str(VERSION).encode(), b"meta": meta})


def test_an_unknown_kind_is_refused():
    with pytest.raises(Unreadable, match="kind"):
        decode(encode(Envelope(**{**LEAST, "kind": "tired"})))


def test_a_cut_payload_knows_that_it_is_cut():
    assert Envelope(**LEAST, raw=b"abc", raw_size=3).is_raw_complete
    assert not Envelope(**LEAST, raw=b"abc", raw_size=9).is_raw_complete
    assert not Envelope(**LEAST).is_raw_complete


@pytest.mark.parametrize("header", [None, "x", [], {}, {"queue": "q"}, {"queue": "q", "job_id": "1", "run": "x"}])
def test_a_header_that_is_not_ours_is_no_lineage(header):
    assert Lineage.from_header(header) is None


def test_a_run_of_a_replay_is_at_least_the_second():
    assert Lineage.from_header({"queue": "q", "job_id": "1", "run": 0}).run == 2


@pytest.mark.parametrize("sent_as, is_its_own", [
    ("2", True), (None, True), ("3", False), ("", False), (2.0, False), (["2"], False), ({}, False), ("2" * 10**6, False),
])  # fmt: skip
def test_a_lineage_is_of_the_job_that_was_sent_with_it(sent_as, is_its_own):
    """A job that hands its headers on gives them to another; the lineage of a desk that named no job is believed."""
    header = {"queue": "q", "job_id": "1", "run": 2, "sent_as": sent_as}
    assert (Lineage.of_message(header, "2") is not None) is is_its_own
    assert Lineage.of_message({k: v for k, v in header.items() if k != "sent_as"}, "2").sent_as is None
