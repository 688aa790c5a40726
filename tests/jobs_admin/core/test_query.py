from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs_admin.core import query
from jobs_admin.core.query import Age, All, Any, Match, Numbers, Text, Time, Value, format, parse, pin, unfit_for_acts
from jobs_admin.core.text import representable
from tests.kit.cases import with_cases
from tests.kit.endurance import times
from tests.kit.pasted import PASTED, TANGLED

NOW = datetime(2026, 11, 21, 2, 14, tzinfo=UTC)


def is_(field, *values, **more):
    return Match(field, tuple(Value(v) for v in values), **more)


@with_cases(
    "text, terms",
    [
        ("timeout", [Text("timeout")]),
        ('"connection refused"', [Text("connection refused")]),
        ('-"connection refused"', [Text("connection refused", negated=True)]),
        ("queue:emails,webhooks", [is_("queue", "emails", "webhooks")]),
        ('queue:"a b",c', [is_("queue", "a b", "c")]),
        ("-error:KeyError", [is_("error", "KeyError", negated=True)]),
        ("task:billing.*", [Match("task", (Value("billing.*", glob=True),))]),
        ('task:"billing.*"', [is_("task", "billing.*")]),
        ("error:=KeyError", [Match("error", (Value("KeyError", exact=True),))]),
        ("attempts:>=3", [Numbers("attempts", ((3, None),))]),
        ("attempts:>3", [Numbers("attempts", ((4, None),))]),
        ("attempts:2..5,9", [Numbers("attempts", ((2, 5), (9, 9)))]),
        ("age:<2d", [Age(True, 172800)]),
        ("since:2026-11-20T10:00Z", [Time("since", at=datetime(2026, 11, 20, 10, tzinfo=UTC))]),
        ("until:90m", [Time("until", ago=5400)]),
        ("error:A OR error:B", [Any((is_("error", "A"), is_("error", "B")))]),
        ("queue:q error:A OR error:B", [is_("queue", "q"), Any((is_("error", "A"), is_("error", "B")))]),
        ("(error:A OR error:B) queue:q", [Any((is_("error", "A"), is_("error", "B"))), is_("queue", "q")]),
        (
            "(queue:a task:b) OR (queue:c task:d)",
            [Any((All((is_("queue", "a"), is_("task", "b"))), All((is_("queue", "c"), is_("task", "d")))))],
        ),
        ("((queue:a))", [is_("queue", "a")]),
        ("-2", [Text("-2")]),
        ("-word", [Text("-word")]),
        ("OR", [Text("OR")]),
        ("a OR", [Text("a"), Text("OR")]),
        ("(a OR b)", [Any((Text("a"), Text("b")))]),
        ("foo:bar", [Text("foo"), Text("bar")]),
        ("queue:", [Text("queue")]),
        ("attempts:many", [Text("attempts"), Text("many")]),
        ("Read*Error", [Text("Read*Error", glob=True)]),
        ("args.customer.id:42", [is_("args.customer.id", "42")]),
        ("-kwargs.email:ann@*,=bob", [Match("kwargs.email", (Value("ann@*", glob=True), Value("bob")), True)]),
        ('(kwargs.a:"x y") OR trace:billing.py', [Any((is_("kwargs.a", "x y"), is_("trace", "billing.py")))]),
        ('-trace:"in charge"', [is_("trace", "in charge", negated=True)]),
        ("args.:1 kwargs.a(b):1", [Text(w) for w in ("args", "1", "kwargs.a", "b", "1")]),
        ("kwargs.x:*", [Match("kwargs.x", (Value("*", glob=True),))]),
        ("a & b -> c", [Text("a"), Text("b"), Text("c")]),
        ("&&", [Text("&&")]),
        ("*", []),
        ("", []),
        ("->", [Text("->")]),
    ],
)
def test_text_is_read_as(text, terms):
    assert list(parse(text, NOW).terms) == terms


@with_cases("error_type, message, pasted", PASTED)
def test_of_a_pasted_error_nothing_is_an_operator(error_type, message, pasted):
    terms = list(query.leaves(parse(pasted, NOW).terms))
    assert terms and all(isinstance(term, Text) and not term.negated for term in terms)
    assert query.rewritten(pasted) == ""


@settings(max_examples=times(1_000, 3_000), deadline=None)
@given(TANGLED | st.text(max_size=60) | st.text('-.*/\\"a ()<>:,', max_size=12))
@example("<2d*--")
def test_what_is_formatted_is_read_as_the_same_query(text):
    read = parse(text, NOW)
    assert parse(format(read), NOW) == read
    if meant := query.rewritten(text):
        assert parse(meant, NOW).terms != read.terms


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("is:dead", "state:dead"),
        ("-is:dead,gone", "-state:dead,gone"),
        ("is:failed", "state:dead"),
        ("is:resolved", "state:recovered"),
        ("is:any", "state:any"),
        ("(is:dead OR is:gone) KeyError", "(state:dead OR state:gone) KeyError"),
        ("value is:nothing", '"value" "is" "nothing"'),
    ],
)
def test_is_names_a_state_and_else_is_text(text, same):
    assert parse(text, NOW).terms == parse(same, NOW).terms


@with_cases(
    "text, meant",
    [
        ("attempts>3", "attempts:>3"),
        ("attempts>=3 queue=emails", "attempts:>=3 queue:emails"),
        ("age<2d", "age:<2d"),
        ("state!=dead", "-state:dead"),
        ("KeyError | timeout", "KeyError OR timeout"),
        ("KeyError|timeout", "KeyError OR timeout"),
        ("KeyError || timeout", "KeyError OR timeout"),
        ("queue:a|b", "queue:a,b"),
        ("queue:a|queue:b", "queue:a,b"),
        ("queue:a|task:b", "queue:a OR task:b"),
        ("kwargs.amount:>500", "kwargs.amount:*"),
        ("kwargs.amount>500", "kwargs.amount:*"),
        ("kwargs.id=5", "kwargs.id:5"),
        ("timeout=5", ""),
        ("attempts:>3", ""),
        ("connection to host=10.0.0.1 port=5432 failed", ""),
        ('"a|b"', ""),
        ("queue:a", ""),
        ("|", ""),
        ("", ""),
    ],
)
def test_the_signs_of_other_tools_are_offered_in_ours(text, meant):
    assert query.rewritten(text) == meant


@settings(max_examples=times(125, 500), deadline=None)
@given(st.sampled_from(["queue", "error", "tenant", "message"]), st.text(min_size=1, max_size=30), st.booleans())
def test_a_link_to_a_value_finds_that_value(field, value, exact):
    value = representable(value)
    (term,) = parse(query.qualifier(field, value, exact=exact), NOW).terms
    assert term == Match(field, (Value(value, exact=exact and field in query.CONTAINED),))


@settings(max_examples=times(75, 300), deadline=None)
@given(TANGLED)
def test_a_pinned_query_has_no_relative_time_and_reads_back(text):
    pinned = pin(parse(text, NOW), NOW)
    again = parse(format(pinned), NOW + timedelta(days=1))
    assert again == pinned
    assert not any(isinstance(t, Age) or getattr(t, "ago", None) is not None for t in query.leaves(again.terms))


def test_the_reading_reports_what_was_understood():
    # OR binds closer than the blank.
    assert query.reading(parse("queue:a error:B OR error:C state:dead", NOW)) == (
        'queue a · (error has "B" or error has "C") · state dead'
    )
    assert query.reading(parse("error:B OR error:C state:any", NOW)).startswith('(error has "B" or')
    assert query.reading(parse("replay:>=1 state:dead", NOW)) == "in any replay · state dead"
    read = query.reading(parse("[Errno -2] queue:emails -error:KeyError attempts:>=3", NOW))
    assert read == (
        'type or message has "Errno" and "-2" (or is the job\'s id) · queue emails · error has not "KeyError" · attempts at least 3 · '
        "state dead, retrying, replaying or quarantined"
    )


def test_naming_a_state_lifts_the_default_scope():
    assert not parse("queue:a", NOW).names_state
    assert parse("-state:recovered", NOW).names_state
    assert parse("queue:a OR state:dead", NOW).names_state


@with_cases(
    "text, hint",
    [
        ("foo:bar", "“foo:”"),
        ("tenat:acme", "Did you mean tenant:?"),
        ("kwarg:acme", "named by its path, as in kwargs.customer.id:42"),
        ("kwargs.email:*@example.org", "allows a wildcard only at the end"),
        ("trace:*py", "allows a wildcard only at the end"),
        ("kwargs.email:", "has no value"),
        ("kwargs.amount:>500", "takes no > or <"),
        ("is:nothing", "“is:” takes a state"),
        ('"' + "x " * 150 + '"', "the first 100 parts"),
        ("attempts:many", "takes a number"),
        ("age:2d", "takes a duration"),
        ("since:yesterday", "takes a time"),
        ("state:deed", "is not a state"),
        ("state:held", "The pages of breakers list held jobs."),
        ("queue:", "has no value"),
        ("x" * 1_000_000, "first 4,000 characters"),
        ("x " * 1_000, "first 100 terms"),
        (" OR ".join(f"w{n}" for n in range(400)), "first 200 words and values"),
        ("queue:" + ",".join(f"q{n}" for n in range(400)), "first 200 words and values"),
        ("queue:a not queue:webhooks", "To exclude a term, write -queue:webhooks."),
        ("NOT KeyError", 'To exclude a term, write -"KeyError".'),
        ("not timeout", 'To exclude a term, write -"timeout".'),
        ("KeyError and queue:x", "all terms must match anyway"),
    ],
)
def test_what_was_not_understood_is_reported(text, hint):
    assert any(hint in text_ for text_ in parse(text, NOW).hints)


@pytest.mark.parametrize("text", ["age:foo", "since:yesterday", "attempts:x"])
def test_a_value_of_another_form_is_reported_its_form_and_nothing_else(text):
    (hint,) = parse(text, NOW).hints
    assert "takes a" in hint and "Did you mean" not in hint


@pytest.mark.parametrize("text", ["column must not be empty", "key and value differ", "file not found", "x not"])
def test_not_and_and_inside_a_message_are_words_without_a_hint(text):
    assert parse(text, NOW).hints == ()


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("attempts:" + ",".join(str(n) for n in range(1, 900)), ((1, 899),)),
        ("attempts:7,1,2,<=0,>=9,8", ((None, 2), (7, None))),
        ("attempts:9..2,4", ((4, 4),)),
        ("attempts:9..2", ((9, 2),)),
        ("replay:-3..2,1..5,9", ((-3, 5), (9, 9))),
    ],
)
def test_ranges_that_meet_are_one(text, ranges):
    query = parse(text, NOW)
    assert query.terms[0].ranges == ranges and parse(format(query), NOW) == query


def test_a_search_requests_a_bounded_number_of_values_whatever_it_nests():
    text = " OR ".join(f"(queue:a{n},b{n} attempts:{2 * n},{2 * n + 7000})" for n in range(90))
    query = parse(text, NOW)
    assert query.is_cut and unfit_for_acts(query) and parse(format(query), NOW) == query


def test_a_web_address_gives_no_hint():
    assert parse("refused by http://localhost:5432/x", NOW).hints == ()


def test_text_that_is_cut_reports_that_it_matches_more():
    assert parse("queue:emails " + "x" * 5_000, NOW).is_cut
    assert not parse("queue:emails", NOW).is_cut


@pytest.mark.parametrize(
    "piece", ['"a ', "(queue:a ", "((", 'queue:"a ', "a OR ", "queue:a,", '\\"', "-", "*", "(queue:a) "]
)
def test_a_megabyte_of_anything_is_read_at_once(piece):
    started = time.process_time()
    parse(piece * (1_000_000 // len(piece)), NOW)
    assert time.process_time() - started < 0.5


def test_a_moment_before_all_time_is_the_beginning_of_time():
    (term,) = pin(parse("since:999999w", NOW), NOW).terms
    assert term.at.year == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("queue:emails timeout* Read*Error kwargs.a:x* trace:a", ""),
        ("*imeout", "*imeout alone cannot use an index"),
        ("queue:a OR host:*x", "host:*x alone cannot use an index"),
        ('-message:"%"', "alone cannot use an index"),
        ("task:*.charge state:*", ""),
        ("x" * 5_000, "too long and was cut"),
    ],
)
def test_what_no_index_can_answer_is_no_scope_for_acts(text, why):
    assert (why in unfit_for_acts(parse(text, NOW))) if why else not unfit_for_acts(parse(text, NOW))


def test_a_star_counts_as_more_words_and_a_short_beginning_as_many():
    one_char = parse(" ".join(f"{char}*" for char in "abcdefghijklmnopqrstuvwxyz0123456789"))
    assert len(one_char.terms) == 10 and one_char.is_cut
    assert "with fewer than 3 letters before the wildcard as 20" in " ".join(one_char.hints)
    assert len(parse(" ".join(f"abcd{n}*" for n in range(60))).terms) == 40
    assert len(parse("queue:" + ",".join(f"abcd{n}*" for n in range(60))).terms[0].values) == 40
    assert not parse("timeo* kwargs.a:x* Read*Error trace:bill*").is_cut
    for cut in (one_char, parse("queue:" + ",".join(f"q{n}*" for n in range(60)))):
        again = parse(format(cut))
        assert again.terms == cut.terms and not again.is_cut


@pytest.mark.parametrize("text", ['queue:""', '-tenant:""', 'task:"",shop.mail', '(queue:"" tenant:a) OR queue:b'])
def test_an_empty_name_can_be_searched_and_is_written_as_it_was_read(text):
    read = query.parse(text)
    assert query.format(read) == text and query.parse(query.format(read)) == read and not read.hints
    assert "(empty)" in query.reading(read)


def test_only_names_that_may_be_empty_take_an_empty_value():
    assert query.parse('worker:""').terms == (Text("worker"),)
    assert 'For an empty queue, write queue:"".' in query.parse("queue:").hints[0]
