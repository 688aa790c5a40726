from __future__ import annotations

import pytest

from dashboard.web.tracebacks import MOST_SHOWN, _Cache, as_html, parse
from tests.kit.browsing import collapse

LIBRARY = (
    '  File "/app/.venv/lib/python3.11/site-packages/celery/app/trace.py", line 479, in trace_task\n    R = fun()\n'
)
OURS = '  File "/app/shop/tasks.py", line 44, in deliver\n    send(order)\n    ^^^^^^^^^^^\n'
HEAD = "Traceback (most recent call last):\n"


def kinds(trace: str) -> list[str]:
    return ["words" if p.words else "ours" if p.is_application else "library" for p in parse(trace).pieces]


def test_frames_of_one_kind_in_a_row_are_one_piece_and_the_order_stays():
    assert kinds(HEAD + LIBRARY + LIBRARY + OURS + LIBRARY + "E: no\n") == ["library", "ours", "library", "words"]


def test_the_error_that_ended_the_job_is_first_and_each_cause_shows_how_it_led_to_it():
    handling = "\nDuring handling of the above exception, another exception occurred:\n\n"
    direct = "\nThe above exception was the direct cause of the following exception:\n\n"
    first, second, last = (HEAD + OURS + error for error in ("KeyError: 'a'\n", "ValueError: b\n", "TypeError: c\n"))
    sections = parse(first + handling + second + direct + last).sections
    assert [(s.how, s.error) for s in sections] == [
        ("", "TypeError"), ("caused by", "ValueError"), ("while handling", "KeyError"),
    ]  # fmt: skip
    assert [p.words for s in sections for p in s.pieces if p.words] == [
        "TypeError: c",
        "ValueError: b",
        "KeyError: 'a'",
    ]


def test_what_only_quotes_the_words_between_two_exceptions_parts_nothing():
    message = "  During handling of the above exception, another exception occurred: said the log\n"
    assert len(parse(HEAD + OURS + "E: no\n" + message).sections) == 1


def test_no_line_of_a_chain_is_lost():
    direct = "\nThe above exception was the direct cause of the following exception:\n\n"
    made = as_html("a-chain", lambda: HEAD + LIBRARY + OURS + "KeyError: 'a'\n" + direct + HEAD + OURS + "E: no\n")
    html = collapse(made.encode()).decode()
    for words in ("celery/app/trace.py", "shop/tasks.py", "line 44", "KeyError: &#x27;a&#x27;", "E: no", "caused by"):
        assert words in html, words


def test_a_stack_is_made_into_html_once_and_memory_has_a_bound():
    row = _Cache(1_000)
    for n in range(100):
        row.keep(str(n), "x" * 100)
    assert row.characters == 1_000 and row.get("0") is None and row.get("99") == "x" * 100
    as_html("once", lambda: HEAD + OURS + "E\n")
    assert "shop/tasks.py" in as_html("once", lambda: pytest.fail("asked twice"))


def test_a_line_of_code_of_any_length_is_read_in_time():
    trace = HEAD + '  File "/app/a.py", line 1, in f\n    x = "' + "(" * 30_000 + "\nE\n"
    assert "((((" in parse(trace).pieces[0].frames[0].code


def test_a_line_of_code_is_highlighted_without_what_underlines_it():
    frame = parse(HEAD + OURS + "E\n").pieces[0].frames[0]
    assert "^" not in frame.code and (frame.place, frame.line, frame.function) == ("app/shop/tasks.py", 44, "deliver")


def test_code_is_escaped():
    trace = HEAD + '  File "/app/a.py", line 1, in f\n    x = "<script>"\nE\n'
    assert "<script>" not in parse(trace).pieces[0].frames[0].code


def test_what_is_no_traceback_is_shown_as_it_is():
    assert [p.words for p in parse("it broke\nbadly").pieces] == ["it broke\nbadly"] and parse("").pieces == ()


def test_library_frames_are_open_where_there_is_nothing_else():
    assert parse(HEAD + LIBRARY + "E\n").pieces[0].is_open and not parse(HEAD + LIBRARY + OURS).pieces[0].is_open


def test_of_an_endless_traceback_the_end_is_shown_and_shown():
    trace = parse(HEAD + OURS * 5000 + "RecursionError: deep\n")
    assert trace.is_cut and trace.pieces[-1].words == "RecursionError: deep"
    assert sum(len(f.code) for p in trace.pieces for f in p.frames) < 10 * MOST_SHOWN


NODE = """PartnerDown: order 7
was refused
    at send (/srv/shop/src/hooks/send.ts:41:23)
    at Worker.processFn (/srv/shop/src/worker.ts:12:11)
    at Worker.callProcessJob (/srv/shop/node_modules/bullmq/dist/cjs/classes/worker.js:123:4)
    at async Promise.all (index 0)"""


def test_a_stack_of_javascript_has_its_own_frames_open_and_those_of_packages_folded():
    assert kinds(NODE) == ["words", "ours", "library"]
    words, ours, _ = parse(NODE).pieces
    assert words.words == "PartnerDown: order 7\nwas refused"
    assert [(f.place, f.line, f.function) for f in ours.frames] == [
        ("src/hooks/send.ts", 41, "send"), ("shop/src/worker.ts", 12, "processFn"),
    ]  # fmt: skip
    assert "line 0" not in as_html("of-node", lambda: NODE) and "node_modules" not in words.words


def test_no_line_of_a_stack_of_javascript_is_lost():
    assert kinds(f"{NODE}\n  errno: -111") == ["words", "ours", "library", "words"]
    assert kinds("E: x" + "\n    at f (/a.js:1:1)" * 300) == ["words"]
    assert kinds("no stack\n    at") == ["words"]
