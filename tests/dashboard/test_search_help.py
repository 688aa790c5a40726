"""The help page's examples find what it says of them."""

from __future__ import annotations

import pytest

from dashboard.failures import list_views
from jobs_admin import failures
from jobs_admin.models.access import ENGINE
from tests.kit.failures import bury

WORDS = {  # example -> (messages that it finds, messages that it does not)
    "timeout": (["ReadTimeoutError", "after timeout=5"], ["timeouts", "time"]),
    "timeo*": (["ReadTimeoutError", "timeouts"], ["xtimeout"]),
    "connection refused": (["connection refused", "refused: no Connection"], ["connections refused"]),
    '"connection refused"': (["Connection-refused!"], ["connection was refused"]),
    '-"connection refused"': (["connection was refused"], ["connection refused"]),
    "Read*Error": (["ReadTimeoutError", "reading an error"], ["SpreadError", "ReadTimeout"]),
    "*imeout": (["xtimeouts"], ["time out"]),
    "[Errno -2] Name or service not known": (["[Errno -2] Name or service not known"], ["[Errno 2] Name not known"]),
}


def test_every_way_to_write_words_is_in_the_table():
    assert [one.text for one in list_views.chapters()[0].examples] == list(WORDS)


@pytest.mark.django_db
@pytest.mark.parametrize("text", WORDS)
def test_words_find_what_the_help_shows(text):
    found, not_found = WORDS[text]
    for message in (*found, *not_found):
        bury(error_type="E", message=message)
    page = failures.search(ENGINE, text)
    assert sorted(row.message for row in page.rows) == sorted(found)
