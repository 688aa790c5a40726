"""Queue `payments`: charges, refunds and the ledger."""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx

from demo.shop import app
from demo.wire import RateLimited, post

RATES = {"EUR": Decimal("1"), "SEK": Decimal("0.087"), "GBP": Decimal("1.17")}
_LEDGER = "CREATE TABLE IF NOT EXISTS entries (order_number TEXT PRIMARY KEY, amount TEXT NOT NULL)"


class CardDeclined(Exception):
    """The bank said no. Trying again does not help."""


class UnknownCurrency(ValueError):
    """We have no rate for it."""


class RefundTooLarge(ValueError):
    """More than was paid."""


@app.task(name="shop.billing.charge", bind=True, max_retries=6)
def charge(self: Any, *, tenant: str, order: dict[str, Any], card: str = "card_visa") -> str:
    """Charge a card. Rate limits and broken connections are waited out; a refusal is final."""
    body = {"amount": str(total(order)), "card": card, "order": order["number"]}
    try:
        return receipt(body)
    except RateLimited as error:
        raise self.retry(exc=error, countdown=error.retry_after)
    except httpx.TransportError as error:
        raise self.retry(exc=error, countdown=min(60, 2 ** (self.request.retries + 1)), max_retries=3)


def receipt(body: dict[str, str]) -> str:
    try:
        answer = post("/charge", body)
    except httpx.HTTPStatusError as error:
        if error.response.status_code == 402:
            raise CardDeclined(f"order {body['order']}: {error.response.json()['code']}") from error
        raise
    return answer.json()["receipt_id"]


def total(order: dict[str, Any]) -> Decimal:
    amount = Decimal(order["amount"])
    return (amount * rate(order["currency"])).quantize(Decimal("0.01"))


def rate(currency: str) -> Decimal:
    try:
        return RATES[currency]
    except KeyError as error:
        raise UnknownCurrency(f"no exchange rate for {currency}") from error


@app.task(name="shop.billing.refund")
def refund(*, tenant: str, order: dict[str, Any], amount: str) -> str:
    """Give money back, at most what was paid."""
    paid, back = Decimal(order["amount"]), Decimal(amount)
    if back > paid:
        raise RefundTooLarge(f"refund of {back} for order {order['number']}, which cost {paid}")
    return transfer(order["customer"]["account"], back)


def transfer(account: dict[str, str] | None, amount: Decimal) -> str:
    return f"{account['iban'][:4]}…:{amount}"  # type: ignore[index]


@app.task(name="shop.billing.check_iban")
def check_iban(*, tenant: str, iban: str) -> bool:
    """Return whether the check digits of an IBAN are right."""
    turned = iban[4:] + iban[:4]
    return int("".join(str(int(c, 36)) if c.isalnum() else c for c in turned)) % 97 == 1


@app.task(name="shop.billing.share_fee")
def share_fee(*, tenant: str, fee: int, sellers: list[str]) -> int:
    """Each seller's part of a marketplace fee, in cents."""
    return fee // len(sellers)


@app.task(name="shop.billing.book", bind=True, autoretry_for=(sqlite3.OperationalError,), max_retries=3,
          retry_backoff=1, retry_backoff_max=8)  # fmt: skip
def book(self: Any, *, tenant: str, number: str, amount: str, table: str = "entries", closing: int = 0,
         twice: bool = False) -> None:  # fmt: skip
    """Write an order into the ledger. While the day is being closed, for the first `closing` tries, it is locked."""
    with ledger(closed=self.request.retries < closing) as connection:
        for _ in range(1 + twice):
            insert(connection, table, number, amount)


@contextlib.contextmanager
def ledger(*, closed: bool) -> Iterator[sqlite3.Connection]:
    """A ledger in memory, shared by two connections: ours, and the one that closes the day."""
    name = "file:ledger?mode=memory&cache=shared"
    with contextlib.closing(sqlite3.connect(name, uri=True, timeout=0, isolation_level=None)) as ours:
        ours.execute(_LEDGER)
        with contextlib.closing(sqlite3.connect(name, uri=True, timeout=0, isolation_level=None)) as day_end:
            if closed:
                day_end.execute("BEGIN EXCLUSIVE")
                day_end.execute("DELETE FROM entries")
            yield ours


def insert(connection: sqlite3.Connection, table: str, number: str, amount: str) -> None:
    connection.execute(f"INSERT INTO {table} VALUES (?, ?)", (number, amount))


@app.task(name="shop.billing.forecast")
def forecast(*, tenant: str, account: int, takings: list[float], growth: float = 1.0) -> int:
    """Next month's takings, in cents."""
    return int(statistics.mean(takings) * growth)
