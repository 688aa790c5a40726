"""Rows are rendered the short way, and read as Django's own loop would have them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pytest
from django.template import Context, Engine, engines
from django.template.base import TemplateSyntaxError
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from hypothesis import given
from hypothesis import strategies as st

LIBRARIES = {
    "redrive": "dashboard.templatetags.redrive",
    "static": "django.templatetags.static",
}
PLAIN = Engine(libraries=LIBRARIES)
QUICK = Engine(libraries=LIBRARIES, builtins=["dashboard.web.quick_for"])


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    n: int = 3
    inner: object = None

    @property
    def loud(self) -> str:
        return self.name.upper()

    def method(self) -> str:
        return f"<{self.name}>"

    @property
    def broken(self) -> str:
        return self.nothing  # an AttributeError of its own


class Gone(Exception):
    silent_variable_failure = True


class Deletes:
    def act(self):
        raise AssertionError("a template must not act")

    act.alters_data = True

    @property
    def gone(self):
        raise Gone


ROWS = [
    Row("a<b>&\"'", 1, {"key": "v<", "items": [1, 2]}),
    Row(mark_safe("<b>ready</b>"), 12345, Deletes()),
    Row("", 0, None),
    Row("x", -1, [Row("deep"), "second"]),
]
BODIES = [
    "{{ row.name }}",
    "{{ row }}",
    "{{ row.n }} {{ row.n|add:1 }} {{ row.missing }} {{ missing }} {{ missing|default:'<none>' }}",
    "{{ row.loud }} {{ row.method }} {{ row.method|length }}",
    "{{ row.inner.key }} {{ row.inner.items }} {{ row.inner.0 }} {{ row.inner.0.name }} {{ row.inner.1 }}",
    "{{ row.inner.act }} {{ row.inner.gone }}",
    "{{ row.name|upper }} {{ row.name|safe }} {{ row.name|force_escape }} {{ row.name|default:row.n }} {{ row.name|truncatechars:3 }}",
    "{{ row.name|default:outer }} {{ outer }} {{ outer.deep.1 }} {{ outer_safe }}",
    "{% if row.name %}yes{% elif row.n == 0 %}zero{% else %}no{% endif %}",
    "{% if row.n > 2 and not row.inner or row.missing %}one{% endif %}{% if row.name in 'xyz' %}two{% endif %}",
    "{% if missing.at.all %}one{% elif row.inner is None %}two{% endif %}",
    "{% if row.n > row.name %}cannot be compared{% else %}else{% endif %}",
    "{{ forloop.counter }} {{ forloop.counter0 }} {{ forloop.revcounter }} {{ forloop.revcounter0 }} {{ forloop.first }} {{ forloop.last }}",
    "{% if forloop.first %}first{% endif %}{% if not forloop.last %},{% endif %}",
    "{% for x in row.inner.items %}{{ forloop.parentloop.counter }}.{{ forloop.counter }}{{ x }}{{ row.name }}{% empty %}none{% endfor %}",
    "{% for key, value in pairs %}{{ key }}={{ value }}{{ row.n }};{% endfor %}{{ key }}",
    "{% for x in row.name reversed %}{{ x }}{% endfor %}",
    "{% for row in row.inner.items %}{{ row }}{% endfor %}{{ row.name }}",
    "{% with row.name|lower as name %}{{ name }}{% if name %}{{ row.n }}{% endif %}{% endwith %}{{ name }}",
    "{% with name=outer other=row.n %}{{ name }}{{ other }}{% endwith %}",
    "{% load redrive %}{% state row.name %}{% icon 'x' %}{% icon 'x' row.name %}{{ row.name|visible }}{{ row.n|number }}{{ when|clock }}{% share row.n 7 %}",
    "{% load redrive %}{% sparkline row.inner.items as drawn %}{{ drawn }}",
    "{% cycle 'a' 'b' %}{% ifchanged row.n %}new{% endifchanged %}{% firstof row.name 'none' %}",
    "{# said to nobody #}{% comment %}{{ row.name }}{% endcomment %}{% autoescape off %}{{ row.name }}{% endautoescape %}",
    "{{ 'text<' }} {{ 12 }} {{ 1.5 }} {{ True }} {{ None }} {{ row.n|yesno:'y,n' }} {{ when }} {{ when|date:'Y' }} {{ big }} {{ share }}",
    "{{ lazy }} {{ lazy.name }} {{ function }} {{ needs_argument }}",
]
REST = "{% for row in rows %}[BODY]{% empty %}nothing {{ row }}{% endfor %}"


def needs_argument(given):
    return given


def context(rows=ROWS, **more) -> Context:
    row = {
        "rows": rows,
        "outer": {"deep": ["<0>", "<1>"]},
        "outer_safe": mark_safe("<i>"),
        "pairs": [("k<", "v"), ("k2", 2)],
        "when": dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC),
        "big": 1234567,
        "share": 0.25,
        "lazy": SimpleLazyObject(lambda: Row("lazy<")),
        "function": lambda: "called<",
        "needs_argument": needs_argument,
    }
    return Context(row | more)


def both(text: str, **more) -> tuple[str, str]:
    return tuple(engine.from_string(text).render(context(**more)) for engine in (PLAIN, QUICK))


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
@pytest.mark.parametrize("rows", [ROWS, [], None, tuple(ROWS)], ids=["list", "empty", "none", "tuple"])
def test_a_row_reads_as_in_djangos_own_loop(body, rows):
    plain, quick = both(REST.replace("BODY", body), rows=rows)
    assert quick == plain


def test_what_is_a_generator_is_read_once():
    plain = PLAIN.from_string(REST.replace("BODY", "{{ row }}")).render(context(rows=(n for n in range(3))))
    assert QUICK.from_string(REST.replace("BODY", "{{ row }}")).render(context(rows=(n for n in range(3)))) == plain


@given(st.lists(st.text(alphabet="<>&\"'ab\0\u202e é", max_size=6), max_size=4))
def test_whatever_the_text_is_it_is_escaped_as_django_does(texts):
    plain, quick = both(REST.replace("BODY", "{{ row }}|{{ row|upper }}|{% if row %}{{ row }}{% endif %}"), rows=texts)
    assert quick == plain


@pytest.mark.parametrize(
    "text", ["{% for a, b in rows %}{{ a }}{% endfor %}", "{% for row in rows %}{{ row.broken }}{% endfor %}"]
)
def test_a_fault_is_the_same_fault(text):
    with pytest.raises(Exception) as plain:
        PLAIN.from_string(text).render(context())
    with pytest.raises(type(plain.value)) as quick:
        QUICK.from_string(text).render(context())
    assert str(quick.value) == str(plain.value)


def test_a_loop_that_cannot_be_read_is_refused_when_it_is_compiled():
    with pytest.raises(TemplateSyntaxError):
        QUICK.from_string("{% for row rows %}{% endfor %}")


def test_the_desks_own_templates_use_it():
    loop = engines["django"].from_string(REST).template.nodelist[0]
    assert type(loop).__module__ == "dashboard.web.quick_for"
