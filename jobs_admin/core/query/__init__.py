"""The search language: text <-> Query. One language for the search field, the API, and the scope of a replay.

`parse(format(q)) == q` for every query that `parse` gave.
"""

from jobs_admin.core.query.parsing import MAX_CHARS, MAX_VALUES, MAX_WORDS, bare_words, is_path, parse
from jobs_admin.core.query.pinning import before, is_pin_of, pin
from jobs_admin.core.query.rewriting import rewritten
from jobs_admin.core.query.tree import (
    CONTAINED,
    DEFAULT_STATES,
    QUALIFIERS,
    STATES,
    Age,
    All,
    Any,
    Match,
    Numbers,
    Query,
    Term,
    Text,
    Time,
    Value,
    before_star,
    expand_states,
    field_of,
    is_argument,
    is_scanned,
    leaves,
    may_be_job_id,
    without,
)
from jobs_admin.core.query.words import in_words, reading, unfit_for_acts
from jobs_admin.core.query.writing import duration, format, format_term, format_value, qualifier

__all__ = [
    "CONTAINED",
    "DEFAULT_STATES",
    "MAX_CHARS",
    "MAX_VALUES",
    "MAX_WORDS",
    "QUALIFIERS",
    "STATES",
    "Age",
    "All",
    "Any",
    "Match",
    "Numbers",
    "Query",
    "Term",
    "Text",
    "Time",
    "Value",
    "bare_words",
    "before",
    "before_star",
    "duration",
    "expand_states",
    "field_of",
    "format",
    "format_term",
    "format_value",
    "in_words",
    "is_argument",
    "is_path",
    "is_pin_of",
    "is_scanned",
    "leaves",
    "may_be_job_id",
    "parse",
    "pin",
    "qualifier",
    "reading",
    "rewritten",
    "unfit_for_acts",
    "without",
]
