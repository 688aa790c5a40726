from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from jobs_admin.core.matching import chosen, class_of, equal, matches, names_of
from jobs_admin.core.policy import parse

GLOBS = some.text("ab*", max_size=8)
NAMES = some.text("ab", max_size=10)


def policy(name="p", classes=(), **match):
    return parse({"name": name, "match": match, "classes": [{"error": error, "as": as_} for error, as_ in classes]})


def name_of(found):
    return found and found.name


@given(GLOBS, NAMES)
@example("*a*a", "a")
@example("ab*ba", "aba")
@example("*aa*a", "aa")
def test_a_star_matches_anything_and_everything_else_itself(glob, name):
    assert matches(glob, name) == bool(re.fullmatch(glob.replace("*", ".*"), name))


def test_other_signs_of_globs_are_only_themselves():
    assert matches("a?[b]", "a?[b]") and not matches("a?", "ab") and not matches("[ab]", "a")


def test_a_glob_full_of_stars_costs_no_more_than_its_length():
    assert not matches("*a" * 100 + "b", "a" * 100_000)


def test_the_task_decides_before_the_queue_and_the_queue_before_the_source():
    by_task, by_queue, by_source = policy("t", task="send"), policy("q", queue="mail"), policy("s", source="shop")
    assert name_of(chosen([by_source, by_queue, by_task], "shop", "mail", "send")) == "t"
    assert name_of(chosen([by_source, by_queue, by_task], "shop", "mail", "other")) == "q"
    assert name_of(chosen([by_source, by_queue, by_task], "shop", "slow", "other")) == "s"
    assert chosen([by_task, by_queue], "shop", "slow", "other") is None


def test_exact_comes_before_the_longest_text_before_a_star_and_that_before_a_star_alone():
    all_of_them = [
        policy("any"),
        policy("shop", task="shop.*"),
        policy("mail", task="shop.mail*"),
        policy("one", task="shop.mail"),
    ]
    for n in range(4):
        turned = all_of_them[n:] + all_of_them[:n]
        assert [
            name_of(chosen(turned, "s", "q", task)) for task in ("shop.mail", "shop.mail.send", "shop.pay", "x")
        ] == ["one", "mail", "shop", "any"]


def test_two_that_match_equally_are_found():
    assert name_of(equal(policy(task="shop.*"), [policy("other", task="shop.*")])) == "other"
    assert name_of(equal(policy(task="a*x*"), [policy("other", task="a*y*")])) == "other"  # axy
    assert equal(policy(task="a*x"), [policy(task="a*y")]) is None  # nothing ends in both
    assert equal(policy(task="shop.*"), [policy(task="shop.pay*")]) is None  # one is more particular
    assert equal(policy(task="shop.*", queue="a"), [policy(task="shop.*", queue="b")]) is None
    assert name_of(equal(policy(), [policy("all")])) == "all"


@given(some.lists(some.tuples(GLOBS, GLOBS, GLOBS), min_size=2, max_size=4), NAMES, NAMES, NAMES)
def test_unless_two_are_equal_the_order_of_policies_decides_nothing(matched, source, queue, task):
    policies = [policy(f"p{n}", source=s or "*", queue=q or "*", task=t or "*") for n, (s, q, t) in enumerate(matched)]
    found = {name_of(chosen(policies, source, queue, task)), name_of(chosen(policies[::-1], source, queue, task))}
    assert len(found) == 1
    fitting = [one for one in policies if chosen([one], source, queue, task)]
    if len(fitting) == 2 and equal(fitting[0], fitting[1:]) is None:
        renamed = [
            policy(f"r{len(fitting) - n}", source=one.match.source, queue=one.match.queue, task=one.match.task)
            for n, one in enumerate(fitting)
        ]
        assert chosen(renamed, source, queue, task).match == chosen(fitting, source, queue, task).match


@given(GLOBS, GLOBS, NAMES)
def test_what_two_globs_of_one_rank_both_match_makes_them_equal(one, other, name):
    first, second = policy("first", task=one or "*"), policy("second", task=other or "*")
    rank = lambda glob: ("*" not in glob, glob.split("*")[0] if "*" in glob else "")  # noqa: E731
    if matches(one or "*", name) and matches(other or "*", name) and rank(first.match.task) == rank(second.match.task):
        assert equal(first, [second])


class Gone(ConnectionResetError):
    pass


def test_an_error_is_known_by_its_class_and_by_every_base_of_it():
    names = names_of(Gone)
    assert names[0].endswith("test_matching.Gone") and names[1:3] == ("ConnectionResetError", "ConnectionError")
    for glob in ("Gone", "*.Gone", "Connection*", "OSError", "builtins.OSError", "Exception", "*"):
        assert class_of(policy(classes=[(glob, "permanent")]), names) == "permanent", glob
    for glob in ("gone", "Gon", "TimeoutError", "other.Gone", "object"):
        assert class_of(policy(classes=[(glob, "permanent")]), names) == "transient", glob


def test_the_first_class_that_fits_decides():
    found = policy(classes=[("ConnectionResetError", "transient"), ("OSError", "permanent")])
    assert class_of(found, names_of(Gone)) == "transient"
    assert class_of(found, names_of(FileNotFoundError)) == "permanent"


@pytest.mark.parametrize("names", [(), ("",), ("a.b.C\n",), ("🦆",)])
def test_names_that_no_one_expected_are_transient(names):
    assert class_of(policy(classes=[("ValueError", "permanent")]), names) == "transient"
