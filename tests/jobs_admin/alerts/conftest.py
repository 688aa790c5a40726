"""People of the desk, and rules that watch the shop."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jobs_admin import alerts
from jobs_admin.models import Alert, Rule
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, Viewer

ANN = Viewer("ann", {"*": OPERATOR})
ROOT = Viewer("root", {"*": ADMIN})
SAM = Viewer("sam", {"shop": OPERATOR})
LOU = Viewer("lou", {"shop": VIEWER})
BEA = Viewer("bea", {"bank": OPERATOR})

NOW = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)
DEAD = {"name": "Too many dead", "metric": "dead", "source": "shop", "threshold": 100}


@pytest.fixture
def desk(db):
    """Without the rules that a new desk has."""
    Rule.objects.all().delete()


@pytest.fixture
def rule(desk):
    """A rule on the shop's dead jobs, or as the fields say."""

    def made(viewer=ANN, **fields):
        return alerts.save_rule(viewer, {**DEAD, **fields})

    return made


def lay(rule, state="firing", **changes):
    """An alert as if it had been judged so."""
    fired = None if state == "pending" else NOW
    values = {
        "source": "shop", "subject": "emails", "severity": rule.severity, "value": 120, "peak": 120, "threshold": 100,
        "opened_at": NOW, "fired_at": fired, "judged_at": NOW, "transitions": 2, "told_at": fired,
    }  # fmt: skip
    return Alert.objects.create(rule=rule, state=state, **values | changes)
