"""Queue `reports`: files that customers upload, and figures that they want in the morning."""

from __future__ import annotations

import csv
import gzip
import io
import os
import time
import tomllib
from datetime import date, datetime
from graphlib import TopologicalSorter
from pathlib import Path
from tempfile import gettempdir
from xml.etree import ElementTree
from zoneinfo import ZoneInfo

from demo.shop import app

COLUMNS = ("date", "visits", "orders")


class EmptyReport(Exception):
    """There is nothing to report, which is worth a question."""


class BadRow(ValueError):
    """A row of an upload that does not fit."""


@app.task(name="shop.reporting.import_stock")
def import_stock(*, tenant: str, upload: int, text: str) -> int:
    """Read an uploaded stock list: product and number, comma separated."""
    return sum(count(row, line) for line, row in enumerate(csv.reader(io.StringIO(text), strict=True), 1))


def count(row: list[str], line: int) -> int:
    try:
        return int(row[1])
    except ValueError as error:
        raise BadRow(f"line {line}: {row[1]!r} is not a number of pieces") from error


@app.task(name="shop.reporting.conversion")
def conversion(*, tenant: str, report: int, visits: int, orders: int) -> float:
    """Orders per visit, in percent."""
    time.sleep(0.01)
    return percent(orders, visits)


def percent(part: int, total: int) -> float:
    return 100 * part / total


@app.task(name="shop.reporting.morning_report")
def morning_report(*, tenant: str, report: int, zone: str, day: str) -> str:
    """Return the time at which the report of a day is due, in the customer's own time zone."""
    midnight = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=ZoneInfo(zone))
    return midnight.replace(hour=6).isoformat()


@app.task(name="shop.reporting.yearly_archive", soft_time_limit=2, time_limit=8)
def yearly_archive(*, tenant: str, report: int, months: int) -> int:
    """Read a year out of the slow archive, a month at a time."""
    for month in range(months):
        read_month(month)
    return months


def read_month(month: int) -> None:
    time.sleep(0.25)


@app.task(name="shop.reporting.read_scan", soft_time_limit=1, time_limit=2)
def read_scan(*, tenant: str, scan: int, pages: int) -> int:
    """Return the number of readable pages of a scanned contract. Errors of pages are ignored, also the soft time limit, so
    that a scan of too many pages goes on until the hard limit ends the process.
    """
    readable = 0
    for page in range(pages):
        try:
            read_page(page)
            readable += 1
        except Exception:  # noqa: S112  (the fault that this job is here to show)
            continue
    return readable


def read_page(page: int) -> None:
    time.sleep(0.05)


@app.task(name="shop.reporting.unpack")
def unpack(*, tenant: str, upload: int, packed: str) -> int:
    """Unpack an upload (hexadecimal of a gzip file)."""
    return len(gzip.decompress(bytes.fromhex(packed)))


@app.task(name="shop.reporting.define")
def define(*, tenant: str, report: int, definition: str) -> list[str]:
    """Read a report's definition and put its columns in order of need."""
    columns = tomllib.loads(definition)["columns"]
    return list(TopologicalSorter({name: column.get("needs", []) for name, column in columns.items()}).static_order())


@app.task(name="shop.reporting.export")
def export(*, tenant: str, report: int, folder: str = "", rows: int = 1) -> str:
    """Write a report to where the customer fetches it."""
    if rows == 0:
        raise EmptyReport(f"report {report} has no rows since {date(2026, 11, 1)}")
    target = Path(gettempdir()) / folder
    with open(target if folder else os.devnull, "w") as out:
        out.write(",".join(COLUMNS))
    return str(target)


@app.task(name="shop.reporting.read_feed")
def read_feed(*, tenant: str, feed: int, xml: str) -> int:
    """Count the products in a supplier's feed."""
    return int(ElementTree.fromstring(xml).attrib["products"])  # noqa: S314  (the demo's own feeds)


@app.task(name="shop.reporting.top_seller")
def top_seller(*, tenant: str, report: int, sold: dict[str, int], place: int = 0) -> str:
    """The product in a place of the list of best sellers, 0 is the best."""
    return sorted(sold, key=sold.__getitem__, reverse=True)[place]
