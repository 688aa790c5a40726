"""Arguments of a command that are a search."""

from __future__ import annotations

import pytest

from jobs_admin.management.commands import failures, replay
from jobs_admin.management.terminal import options_first
from tests.kit.failures import bury


def parsed(command, *words):
    parser = command.Command().create_parser("manage.py", "x")
    return parser.parse_args(options_first(parser, words))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-queue:webhooks", "--limit", "1"], "-queue:webhooks"),
        (["host:a", "-error:KeyError", "--limit", "1"], "host:a -error:KeyError"),
        (["--limit=1", "-value:x", "-1"], "-value:x -1"),
        (["-error:A", "OR", "error:B", "--lim", "1"], "-error:A OR error:B"),
        (["--limit", "1", "--", "--json", "-v2"], "--json -v2"),
    ],
)
def test_what_is_no_option_is_text_wherever_it_is(words, text):
    read = parsed(failures, *words)
    assert " ".join(read.query) == text and read.limit == 1 and not read.json


def test_options_stay_options_and_a_slip_in_one_is_reported():
    read = parsed(replay, "-queue:a", "--rate", "5", "--reason", "-x", "--dry-run")
    assert (read.query, read.rate, read.reason, read.dry_run) == (["-queue:a"], "5", "-x", True)
    with pytest.raises(Exception, match="--limti"):
        parsed(failures, "--limti", "5")


@pytest.mark.django_db
def test_a_negation_alone_is_searched_for_from_the_terminal(capsys):
    bury(2, queue="emails"), bury(1, queue="webhooks")
    failures.Command().run_from_argv(["manage.py", "failures", "-queue:webhooks", "--limit", "1"])
    assert "1 of 2" in capsys.readouterr().err


@pytest.mark.django_db
def test_a_search_that_finds_nothing_reports_what_is_near_it(capsys):
    bury(2, queue="webhooks")
    failures.Command().run_from_argv(["manage.py", "failures", "queue:webhook"])
    assert "queue:webhooks  2 (queue with a similar name)" in capsys.readouterr().out
