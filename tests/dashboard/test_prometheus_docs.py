"""The dashboard and the rules of docs/prometheus use only metrics of a scrape."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.kit.metrics import samples, scrape

pytestmark = [pytest.mark.django_db, pytest.mark.server]

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "prometheus"
NAME = re.compile(r"(?<![\w:])(?:job|redrive)_[a-z_]+")
SELECTOR = re.compile(r"(?<![\w:])((?:job|redrive)_[a-z_]+)\{([^}]*)\}")
GROUPED = re.compile(r"by \(([^)]*)\) \((?:rate|increase)?\(?((?:job|redrive)_[a-z_]+)")
LABEL = re.compile(r"([a-z_]+)=~?\"")


def expressions_of_rules() -> list[str]:
    """Return the expressions of a file in its plain form: `expr: …`, or `expr: >-` and deeper lines."""
    found, deeper = [], 0
    for line in (FOLDER / "redrive.rules.yml").read_text().splitlines():
        depth = len(line) - len(line.lstrip())
        if deeper and depth > deeper:
            found[-1] += " " + line.strip()
            continue
        deeper = 0
        if line.strip().startswith("expr: "):
            message = line.strip().removeprefix("expr: ")
            found.append("" if message == ">-" else message)
            deeper = depth if message == ">-" else 0
    return found


def expressions_of_dashboard() -> list[str]:
    board = json.loads((FOLDER / "redrive-dashboard.json").read_text())
    requested = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return requested + [one["definition"] for one in board["templating"]["list"] if "definition" in one]


@pytest.fixture
def scraped(client, history):
    """The label names of each metric, of a scrape with a token for every source."""
    return {
        name: {label for series in values for label in re.findall(r"([a-z_]+)=\"", series)}
        for name, values in samples(scrape(client)).items()
    }


def unknown(expressions: list[str], scraped: dict[str, set[str]]) -> list[str]:
    wrong = [
        name for message in expressions for name in NAME.findall(message) if name not in scraped and name not in LABELS
    ]
    for message in expressions:
        for name, inside in SELECTOR.findall(message):
            wrong += [f"{name}.{label}" for label in LABEL.findall(inside) if label not in scraped.get(name, ())]
        for labels, name in GROUPED.findall(message):
            wrong += [f"{name} by {one}" for one in labels.split(", ") if one not in scraped.get(name, ())]
    return wrong


LABELS = {"job_name"}  # named like a metric


def test_every_metric_and_label_of_the_rules_is_shown(scraped):
    requested = expressions_of_rules()
    assert len(requested) == 16 and all(requested) and unknown(requested, scraped) == []


def test_every_metric_and_label_of_the_dashboard_is_shown(scraped):
    requested = expressions_of_dashboard()
    assert len(requested) > 20 and unknown(requested, scraped) == []


def test_every_exported_metric_is_on_the_dashboard(scraped):
    shown = {name for message in expressions_of_dashboard() for name in NAME.findall(message)}
    assert scraped.keys() - shown == set() or scraped.keys() - shown <= {"redrive_store_up"}


def test_what_is_not_shown_would_be_noticed(scraped):
    wrong = [
        "sum(job_failure_total)",
        'rate(job_failures_total{task="x",host="y"}[5m])',
        "sum by (tenant) (rate(job_retries_total[5m]))",
    ]
    assert unknown(wrong, scraped) == ["job_failure_total", "job_failures_total.host", "job_retries_total by tenant"]


def test_panels_do_not_cover_each_other():
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((FOLDER / "redrive-dashboard.json").read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert taken.isdisjoint(cells) and max(x for x, _ in cells) < 24
        taken |= cells
