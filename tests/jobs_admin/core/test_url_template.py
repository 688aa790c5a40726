"""URLs with named fields: which are refused, and that no value adds a part to one."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.url_template import BadTemplate, check_template, cut, fill

FIELDS = ("trace_id", "task", "from")


@pytest.mark.parametrize(
    "text",
    [
        "https://tempo.example/trace/{trace_id}",
        "http://127.0.0.1:3000/explore?q={task}&from={from}",
        "https://kibana.example/app/discover#/?_a=(query:{trace_id})",
        "https://[2001:db8::7]/{task}",
        "https://x.example/?left=%7B%22q%22:%22{task}%22%7D",
    ],
)
def test_a_template_of_a_web_address_with_known_fields_is_taken(text):
    check_template(text, FIELDS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("https://x.example/{job}", "{job} is not a field; known: {trace_id}, {task}, {from}."),
        ("https://x.example/{}", "{} is not a field"),
        ("https://x.example/{Task}", "It has no field, such as {trace_id}."),
        ("https://x.example/", "It has no field"),
        ("javascript:alert({task})", "must begin with https:// or http://"),
        ("data:text/html,{task}", "must begin with https:// or http://"),
        ("//x.example/{task}", "must begin with https:// or http://"),
        ("https://{task}/", "A field must not be part of the host."),
        ("https://{task}.example/", "A field must not be part of the host."),
        ("https://x.example{task}", "A field must not be part of the host."),
        ("https://x.example:8{from}/", "The host of the URL cannot be read."),
        ("https://me:secret@x.example/{task}", "must not contain a user or password"),
        ("https://x.example/{{task}}", "Escape"),
        ("https://x.example/{task}/{", "Escape"),
        ("https://x.example/#{task}<script>", "Escape"),
        ("https://x.example/ {task}", "must not contain spaces"),
        ("https://x.example/{task}\r\nX: 1", "must not contain spaces"),
        ("https://münchen.example/{task}", "must not contain spaces or non-ASCII"),
        ("https:\\\\x.example/{task}", "must begin with https:// or http://"),
        ("https://x.example/{task}" + "a" * 1_000, "at most 1000 characters"),
    ],
)
def test_any_other_template_is_refused_in_a_sentence(text, message):
    with pytest.raises(BadTemplate) as refused:
        check_template(text, FIELDS)
    assert message in str(refused.value)


@given(st.text(min_size=1).filter(lambda one: one.strip(".")))
def test_no_value_adds_a_part_to_the_url(value):
    url = fill("https://x.example/a/{task}/b?q={task}&z=1#{task}", {"task": value})
    parts = urlsplit(url)
    shown = value.encode("utf-8", "replace").decode()
    assert (parts.scheme, parts.netloc) == ("https", "x.example") and url.isascii()
    assert [unquote(one) for one in parts.path.split("/")] == ["", "a", shown, "b"]
    assert parse_qs(parts.query, keep_blank_values=True) == {"q": [shown], "z": ["1"]}
    assert unquote(parts.fragment) == shown
    assert not set(url) & set("{}<>\"'`\\ \r\n")


@pytest.mark.parametrize("value", ["", ".", "..", "..."])
def test_a_link_is_left_out_where_a_value_is_missing_or_a_step_in_the_path(value):
    assert fill("https://x.example/{task}/{from}", {"task": value, "from": "1"}) == ""
    assert fill("https://x.example/{task}", {}) == "" == fill("", {"task": "a"})


def test_braces_in_a_value_are_not_read_as_fields():
    assert fill("https://x.example/{task}", {"task": "{from}", "from": "no"}) == "https://x.example/%7Bfrom%7D"


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [("", 5, ""), ("abc", 5, "abc"), ("abcdef", 5, "abcde"), ("a b", 4, "a "), ("ü" * 9, 13, "üü"), ("🔥🔥", 12, "🔥")],
)
def test_a_text_is_cut_by_its_length_in_the_url(text, most, shown):
    assert cut(text, most) == shown and len(fill("{text}", {"text": shown})) <= most
