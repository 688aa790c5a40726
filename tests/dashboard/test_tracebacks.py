from __future__ import annotations

from dashboard.tracebacks import MOST_SHOWN, shown

LIBRARY = (
    '  File "/app/.venv/lib/python3.11/site-packages/celery/app/trace.py", line 479, in trace_task\n    R = fun()\n'
)
OURS = '  File "/app/shop/tasks.py", line 44, in deliver\n    send(order)\n    ^^^^^^^^^^^\n'
HEAD = "Traceback (most recent call last):\n"


def kinds(trace: str) -> list[str]:
    return ["words" if p.words else "ours" if p.is_application else "library" for p in shown(trace).pieces]


def test_frames_of_one_kind_in_a_row_are_one_piece_and_the_order_stays():
    assert kinds(HEAD + LIBRARY + LIBRARY + OURS + LIBRARY + "E: no\n") == ["library", "ours", "library", "words"]


def test_the_words_between_two_exceptions_are_kept():
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    trace = shown(HEAD + OURS + "KeyError: 'a'\n" + between + HEAD + OURS + "ValueError: b\n")
    said = [p.words for p in trace.pieces if p.words]
    assert said[0].startswith("KeyError: 'a'") and "During handling" in said[0] and said[1] == "ValueError: b"


def test_a_line_of_code_is_highlighted_without_what_underlines_it():
    frame = shown(HEAD + OURS + "E\n").pieces[0].frames[0]
    assert "^" not in frame.code and (frame.place, frame.line, frame.function) == ("app/shop/tasks.py", 44, "deliver")


def test_code_is_escaped():
    trace = HEAD + '  File "/app/a.py", line 1, in f\n    x = "<script>"\nE\n'
    assert "<script>" not in shown(trace).pieces[0].frames[0].code


def test_what_is_no_traceback_is_shown_as_it_is():
    assert [p.words for p in shown("it broke\nbadly").pieces] == ["it broke\nbadly"] and shown("").pieces == ()


def test_library_frames_are_open_where_there_is_nothing_else():
    assert shown(HEAD + LIBRARY + "E\n").pieces[0].is_open and not shown(HEAD + LIBRARY + OURS).pieces[0].is_open


def test_of_an_endless_traceback_the_end_is_shown_and_said():
    trace = shown(HEAD + OURS * 5000 + "RecursionError: deep\n")
    assert trace.is_cut and trace.pieces[-1].words == "RecursionError: deep"
    assert sum(len(f.code) for p in trace.pieces for f in p.frames) < 10 * MOST_SHOWN
