from __future__ import annotations

import json
import re
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_admin.core import search_terms
from jobs_admin.core.redaction import PLACEHOLDER
from jobs_admin.core.search_terms import SEAM, TAIL, Phrase
from jobs_admin.core.text import representable
from tests.kit.endurance import times


def document(error_type="", message="", job_ids=(), names=None, args="", kwargs=""):
    return search_terms.document(
        error_type=error_type, message=message, job_ids=list(job_ids), names=names or {}, args=args, kwargs=kwargs
    )


def words(text):
    return document(message=text).partition(TAIL)[0].split()


def joined(text):
    return {term for term in document(message=text).partition(TAIL)[2].split() if term != SEAM}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ReadTimeoutError", "read timeout error"),
        ("HTTPServer", "http server"),
        ("S3UploadFailedError", "s3 upload failed error"),
        ("ECONNREFUSED 127.0.0.1:6379", "econnrefused 127 0 0 1 6379"),
        ("[Errno -2] Name", "errno -2 name"),
        ("web-3 x=-5 2026-11-20 1e-5 --7", "web 3 x -5 2026 11 20 1e 5 7"),
        ("order 9s6XKzkNRiz", "order 9s6xkzknriz"),
        ("a_b.c/d's", "a b c d s"),
        ("MySQL SQLite URLError", "my sql sq lite url error"),
        ("Ärger ÉTÉ cafe\u0301", "ärger été café"),
        ("", ""),
        ("¿?! -- …", ""),
    ],
)
def test_a_text_is_the_sequence_of_its_sub_words(text, expected):
    assert words(text) == expected.split()


def test_an_identifier_also_gives_its_joined_runs():
    assert joined("ReadTimeoutError") == {"readtimeout", "timeouterror", "readtimeouterror"}
    assert joined("lower 9s6XKzkNRiz UPPER") == set()
    assert {"abcdefghijklmnop", "abcdef"} <= joined("AbcDefGhiJklMnop")


def test_words_of_the_type_come_first_and_are_marked_and_no_phrase_crosses_the_joined_runs():
    words = document("KeyError", "'MyId'")
    assert words.startswith("^key ^error my id || ^keyerror | myid |")
    assert search_terms.places(words)["id"] == [4] and search_terms.places(words)["myid"] == []


def test_a_phrase_may_begin_in_the_type_and_go_on_in_the_message():
    assert Phrase(("^key", "^error", "x")) in search_terms.phrases_of_error("KeyError: x")


def test_a_word_is_the_phrase_of_its_parts_or_its_joined_form():
    assert search_terms.phrases("ReadTimeo", prefix=True) == (
        Phrase(("read", "timeo"), True),
        Phrase(("readtimeo",), True),
    )
    assert search_terms.phrases("read timeout") == (Phrase(("read", "timeout")),)
    assert search_terms.phrases("...") == ()


def test_names_are_complete_and_with_regard_to_case():
    words = document(names={"queue": "a B/ü", "host": ""}, job_ids=["J1", "J1", "j2"]).split(" ")
    assert search_terms.name("queue", "a B/ü") in words and search_terms.name("queue", "a b/ü") not in words
    assert {t for t in words if t.startswith(("@job=", "@host="))} == {"@job=^j1", "@job=j2"}


@settings(max_examples=times(125, 500), deadline=None)
@given(st.text(max_size=200), st.text(max_size=200))
def test_two_names_have_two_terms(one, other):
    assert (search_terms.name("queue", one) == search_terms.name("queue", other)) == (one == other)
    assert search_terms.name("queue", one).startswith(search_terms.name_begins("queue", one[:5]).terms[0])


@pytest.mark.parametrize(
    ("kwargs", "path", "value"),
    [
        ('{"customer": {"id": 42}}', "kwargs.customer.id", "42"),
        ('[{"tenant": "Acme"}]', "kwargs.0.tenant", "acme"),
        ('[{"tenant": "Acme"}]', "kwargs.tenant", "ACME"),
        ('{"ok": true, "none": null}', "kwargs.none", "null"),
        ('{"a": 1.50}', "kwargs.a", "1.50"),
        ('{"a": {"b": [1, "x"], "c": tr', "kwargs.a.b.1", "x"),
        ('{"a": "' + "x" * 500 + '"}', "kwargs.a", "x" * 500),
        ('{"Näme": "a\\u2028b"}', "kwargs.näme", "a\u2028b"),
        ('{"a": "\\ud800\\u0000"}', "kwargs.a", "\\ud800␀"),
    ],
)
def test_an_argument_is_found_by_its_path(kwargs, path, value):
    (term,) = search_terms.argument(path, value).terms
    assert term in document(kwargs=kwargs).split(" ")


def test_what_was_hidden_is_known_as_hidden_and_by_nothing_else():
    words = document(message="token=[redacted]", kwargs='{"password": "[redacted]", "url": "a:[redacted]@b"}').split()
    assert search_terms.hidden_argument("kwargs.password").terms[0] in words and search_terms.HIDDEN_TEXT in words
    assert [t for t in words if t.startswith("@kwargs.")] == ["@kwargs.password=!", "@kwargs.url=!"]


def test_the_outer_values_come_before_what_a_long_list_holds():
    order = {"lines": [{"sku": f"s{n}", "count": n} for n in range(40)], "customer": {"id": 48245}, "tenant": "acme"}
    for text in (json.dumps(order), json.dumps(order) + ", cut"):
        words = set(document(kwargs=text).split())
        assert {"@kwargs.tenant=acme", "@kwargs.customer.id=48245", "@kwargs.lines.sku=s0"} <= words
        assert "@kwargs.lines.39.sku=s39" not in words


def test_a_job_has_32_leaves_of_either_kind():
    words = document(args=json.dumps(list(range(100))), kwargs=json.dumps({f"k{n}": n for n in range(100)})).split()
    assert (
        "@args.31=31" in words
        and "@args.32=32" not in words
        and "@kwargs.k31=31" in words
        and "@kwargs.k32=32" not in words
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=times(75, 300), deadline=None)
@given(JSON, st.integers(0, 80))
def test_what_can_be_read_of_a_copy_that_was_cut_is_what_the_complete_copy_would_give(value, cut):
    text = json.dumps([value])  # as arguments are: a bare number that is cut is another number
    full, part = (set(document(kwargs=t).split(" ")) for t in (text, text[:cut]))
    assert part <= full or len(text) <= cut


@settings(max_examples=times(125, 500), deadline=None)
@given(st.text(max_size=300), st.text(max_size=300))
def test_terms_hold_nothing_that_parts_or_ends_them(message, kwargs):
    for term in document(message, message, [message], {"queue": message}, kwargs, kwargs).split(" "):
        assert not set(term) & set(" \t\n\r\0'\"\\") and len(term.encode("utf-8", "replace")) < 2_000


def test_a_document_is_bounded():
    many = document(message="a " * 20_000, kwargs=json.dumps({"k": "x" * 60_000}))
    at = search_terms.places(many)
    assert len(at["a"]) == search_terms.MOST_PLACES and len(many) < 20_000
    deep = search_terms.places(search_terms.stack_document('  File "x.py", line 3, in f\n' * 10_000))
    assert max(max(p, default=0) for p in deep.values()) <= search_terms.MOST_IN_PLACE


@pytest.mark.parametrize("piece", ["a", "aB", '{"a":', '"', "[", "\\", "-1", "AAA", "1,"])
def test_any_text_is_read_in_time_linear_in_its_length(piece):
    text = piece * (64_000 // len(piece))
    started = time.process_time()
    document(text, text, [text], {"queue": text}, text, text), search_terms.stack_document(text)
    assert time.process_time() - started < 0.5


def test_what_is_no_word_of_a_message_begins_as_no_word_does():
    names = dict.fromkeys(search_terms.NAMED, "x") | {"stack": "7"}
    words = document("MemoryError", "a [redacted]", ["j1"], names, "[1]", '{"k": 2}')
    marked = [t for t in words.split() if "=" in t or t.startswith("^")]
    assert len(marked) > 12 and not [t for t in marked if t[0].isalnum()]


_TEXTS = st.text(st.one_of(st.sampled_from("aZ9-_. ÄßҮ٣\u0345"), st.characters()), max_size=60)


@given(_TEXTS)
def test_the_runs_of_a_text_are_those_of_the_one_pattern(text):
    words, _ = search_terms._read(text)
    runs = search_terms._RUN.findall(unicodedata.normalize("NFKC", text))
    runs = [run if run.isascii() else run.casefold() for run in runs]
    assert search_terms._runs(text) == runs
    if not re.search("[A-Z]", "".join(runs)):
        assert words == [run[: search_terms.LONGEST] for run in runs]


@given(st.one_of(_TEXTS, st.from_regex(r"[a-zA-Z0-9]{1,120}", fullmatch=True), st.integers()))
def test_a_value_is_one_term_however_it_is_found(value):
    (term,) = search_terms._arguments("kwargs", json.dumps({"id": value}))
    expected = "!" if PLACEHOLDER in str(value) else search_terms._shortened(representable(str(value)).casefold())
    assert term == f"@kwargs.id={expected}"
