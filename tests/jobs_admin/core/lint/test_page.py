"""The page of documentation has every rule as the code has it. `WRITE_DOCS=1` writes it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from jobs_admin.core import lint

PAGE = Path(__file__).resolve().parents[4] / "docs/lint.md"
MARK = "<!-- made by tests/jobs_admin/core/lint/test_page.py -->\n"
KNOWN_FROM = ("CWE-", "RFC ", "hypothesis/", "Celery", "RabbitMQ", "AWS", "Google SRE", "https://", "docs/", "Redrive:")


def rules() -> str:
    """Return the table of rules: of each, its severity and what is wrong."""
    rows = ["", "| rule | severity | what is wrong |", "|---|---|---|"]
    for rule in lint.RULES.values():
        rows.append(f"| `{rule.id}` | {rule.severity} | {rule.title} |")
    return "\n".join(rows) + "\n"


def test_the_page_has_the_rules_as_they_are():
    before, mark, after = PAGE.read_text().partition(MARK)
    if os.environ.get("WRITE_DOCS"):
        PAGE.write_text(before + mark + rules())
    else:
        assert after == rules(), "Run this test once with WRITE_DOCS=1 in the environment."


def test_the_readme_counts_the_rules_rightly():
    assert f"against {len(lint.RULES)} rules." in (PAGE.parents[1] / "README.md").read_text()


def test_every_rule_reports_why_what_to_do_and_where_it_is_known_from():
    assert len(lint.RULES) >= 11
    for rule in lint.RULES.values():
        assert re.fullmatch(r"[a-z][a-z.-]+", rule.id) and rule.severity in lint.SEVERITIES
        assert all(len(text) > 10 for text in (rule.title, rule.why, rule.fix))
        assert rule.source.startswith(KNOWN_FROM)
