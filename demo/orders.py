"""The jobs of the shop: ordinary ones, and every way in which one of them fails.

`ordinary` and `MISHAPS` are all there is to publish. Each mishap is a job whose arguments, or whose partner,
make the shop's own code raise; nothing raises on purpose.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from demo.shop import TENANTS

# Nothing listens on port 9 of this machine (it is "discard", and no system has it on any more).
DEAD_END = "http://127.0.0.1:9"
NAMES = ("Aino", "Björn", "Chiara", "Derya", "Elif", "Fumiko", "Goran", "Hanna", "Ines", "Jakub")
GZIPPED = gzip.compress(b"1,2\n", mtime=0).hex()


@dataclass(frozen=True, slots=True)
class Job:
    task: str
    kwargs: dict[str, Any]


def order(random: Random, **other: Any) -> dict[str, Any]:
    name = random.choice(NAMES)
    return {
        "number": f"A-{random.randrange(10**7, 10**8)}",
        "name": name,
        "email": f"{name.lower().encode('ascii', 'ignore').decode()}@example.com",
        "amount": f"{random.randrange(500, 30_000) / 100:.2f}",
        "currency": random.choice(("EUR", "EUR", "SEK", "GBP")),
        "customer": {"id": random.randrange(1000, 9999), "account": {"iban": "FI2112345600000785"}},
        **other,
    }


def without(document: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in document.items() if k != key}


def event(random: Random) -> dict[str, Any]:
    return {"id": random.randrange(10**6, 10**7), "kind": random.choice(("order.paid", "order.sent", "stock.low"))}


def number(random: Random) -> int:
    return random.randrange(10**5, 10**6)


def day(random: Random) -> str:
    return f"2026-11-{random.randrange(1, 29):02d}"


Arguments = Callable[[Random], dict[str, Any]]

_ORDINARY: tuple[tuple[int, str, Arguments], ...] = (
    (30, "hooks.deliver", lambda r: {"event": event(r)}),
    (12, "hooks.update_stock", lambda r: {"product": f"P-{number(r)}", "left": r.randrange(200)}),
    (3, "hooks.sign", lambda r: {"event": number(r), "secret": "whsec_31f0"}),
    (18, "mailer.send_receipt", lambda r: {"order": order(r), "language": r.choice(("en", "de"))}),
    (8, "mailer.send_newsletter", lambda r: {"issue": f"2026-{r.randrange(1, 52)}", "to": "reader@example.com"}),
    (3, "mailer.file_bounce", lambda r: {"bounce": number(r), "body": base64.b64encode(b"550 no such user").decode()}),
    (12, "billing.charge", lambda r: {"order": order(r)}),
    (4, "billing.check_iban", lambda r: {"iban": "FI2112345600000785"}),
    (3, "billing.book", lambda r: {"number": order(r)["number"], "amount": "12.50"}),
    (4, "reporting.conversion", lambda r: {"report": number(r), "visits": r.randrange(1, 9999), "orders": 7}),
    (2, "reporting.morning_report", lambda r: {"report": number(r), "zone": "Europe/Helsinki", "day": day(r)}),
    (1, "reporting.unpack", lambda r: {"upload": number(r), "packed": GZIPPED}),
    (1, "reporting.read_scan", lambda r: {"scan": number(r), "pages": r.randrange(1, 5)}),
)  # fmt: skip


def ordinary(random: Random) -> Job:
    """A job that succeeds while the partner is well."""
    ((_, task, arguments),) = random.choices(_ORDINARY, [weight for weight, *_ in _ORDINARY])
    return Job(f"shop.{task}", {"tenant": tenant(random), **arguments(random)})


def tenant(random: Random) -> str:
    """The bigger customers come first in the list, and more often."""
    return random.choices(TENANTS, range(2 * len(TENANTS), 0, -2))[0]


@dataclass(frozen=True, slots=True)
class Mishap:
    """One way to fail. `raises` is the class name that ends the job; `mode` what the partner must be like."""

    name: str
    task: str
    raises: str
    arguments: Arguments
    mode: str = "well"
    weight: int = 1
    needs_tries: int = 0  # the job recovers by itself after so many failed tries; 0: it does not

    def job(self, random: Random) -> Job:
        return Job(f"shop.{self.task}", {"tenant": tenant(random), **self.arguments(random)})


def _latin(random: Random) -> dict[str, Any]:
    return {"bounce": number(random), "body": base64.b64encode("Empfänger unbekannt".encode("latin-1")).decode()}


MISHAPS: tuple[Mishap, ...] = (
    # Queue webhooks. The first five are the partner's doing.
    Mishap("partner answers 503", "hooks.deliver", "HTTPStatusError", lambda r: {"event": event(r)}, "outage"),
    Mishap("partner cuts the connection", "hooks.deliver", "ReadError", lambda r: {"event": event(r)}, "outage"),
    Mishap("partner is too slow", "hooks.deliver", "ReadTimeout", lambda r: {"event": event(r)}, "slow"),
    Mishap("stock not told", "hooks.update_stock", "HTTPStatusError",
           lambda r: {"product": f"P-{number(r)}", "left": r.randrange(99)}, "outage"),
    Mishap("partner limits the rate", "hooks.deliver", "RateLimited", lambda r: {"event": event(r)}, "rate_limit"),
    Mishap("endpoint refuses connections", "hooks.deliver", "ConnectError",
           lambda r: {"event": event(r), "base": DEAD_END}, weight=3),
    Mishap("endpoint never answers", "hooks.deliver", "ReadTimeout",
           lambda r: {"event": event(r), "endpoint": "/hook/late"}),
    Mishap("endpoint deleted", "hooks.deliver", "EndpointGone",
           lambda r: {"event": event(r), "endpoint": "/hook/gone"}, weight=3),
    Mishap("endpoint misspelt", "hooks.deliver", "HTTPStatusError",
           lambda r: {"event": event(r), "endpoint": "/hoook"}, weight=2),
    Mishap("endpoint answers half a document", "hooks.deliver", "JSONDecodeError",
           lambda r: {"event": event(r), "endpoint": "/hook/verbose"}, weight=2),
    Mishap("endpoint redirects to itself", "hooks.deliver", "TooManyRedirects",
           lambda r: {"event": event(r), "endpoint": "/hook/moved"}),
    Mishap("endpoint is no web address", "hooks.deliver", "UnsupportedProtocol",
           lambda r: {"event": event(r), "base": "ftps://files.example.com"}),
    Mishap("endpoint has an impossible port", "hooks.deliver", "InvalidURL",
           lambda r: {"event": event(r), "base": "http://hooks.example.com:https"}),
    Mishap("event without an id", "hooks.deliver", "KeyError",
           lambda r: {"event": {"kind": "order.paid", "number": number(r)}, "endpoint": "/hook/gone"}),
    Mishap("secret is not ASCII", "hooks.sign", "UnicodeEncodeError",
           lambda r: {"event": number(r), "secret": "salaisuus-ä"}),
    Mishap("endpoint is not an address", "hooks.check_endpoint", "ValueError",
           lambda r: {"host": f"10.0.{r.randrange(256)}.{r.randrange(256, 999)}"}),
    Mishap("endpoint is private", "hooks.check_endpoint", "BlockedAddress",
           lambda r: {"host": f"10.0.{r.randrange(256)}.{r.randrange(256)}"}),
    Mishap("categories in a circle", "hooks.publish_catalogue", "RecursionError",
           lambda r: {"catalogue": number(r), "parents": {"lamps": "light", "light": "lamps"}}),
    # Queue emails.
    Mishap("mail service cuts the connection", "mailer.send_receipt", "ReadError",
           lambda r: {"order": order(r)}, "outage"),
    Mishap("order without an address", "mailer.send_receipt", "KeyError",
           lambda r: {"order": without(order(r), "email")}, weight=4),
    Mishap("address without a host", "mailer.send_receipt", "InvalidAddress",
           lambda r: {"order": order(r, email=f"reader{number(r)}@")}, weight=3),
    Mishap("greeting with a gap", "mailer.send_receipt", "IndexError", lambda r: {"order": order(r), "language": "fi"}),
    Mishap("two lines in a subject", "mailer.send_receipt", "ValueError",
           lambda r: {"order": order(r, number=f"A-{number(r)}\nBcc: everyone@example.com")}),
    Mishap("order number is a number", "mailer.send_receipt", "TypeError",
           lambda r: {"order": order(r, number=number(r))}),
    Mishap("newsletter without its layout", "mailer.send_newsletter", "FileNotFoundError",
           lambda r: {"issue": f"2026-{r.randrange(1, 52)}", "to": "reader@example.com", "layout": "autumn.html"}),
    Mishap("newsletter without its reader", "mailer.send_newsletter", "KeyError",
           lambda r: {"issue": f"2026-{r.randrange(1, 52)}", "to": "reader@example.com", "layout": "personal.txt"}),
    Mishap("mail host is down", "mailer.relay", "ConnectionRefusedError", lambda r: {"letter": number(r)}, weight=3),
    Mishap("bounce in another alphabet", "mailer.file_bounce", "UnicodeDecodeError", _latin, weight=2),
    Mishap("bounce in an unknown alphabet", "mailer.file_bounce", "LookupError",
           lambda r: {**_latin(r), "charset": "x-unknown-8bit"}),
    Mishap("bounce cut short", "mailer.file_bounce", "Error", lambda r: {"bounce": number(r), "body": "RW1wZg="}),
    Mishap("attachment too large", "mailer.attach_invoice", "AttachmentTooLarge",
           lambda r: {"invoice": f"I-{number(r)}", "size": r.randrange(70_000, 900_000)}),
    # Queue payments.
    Mishap("card declined", "billing.charge", "CardDeclined",
           lambda r: {"order": order(r), "card": "card_declined"}, weight=5),
    Mishap("sandbox forgets the receipt", "billing.charge", "KeyError",
           lambda r: {"order": order(r), "card": "card_sandbox"}),
    Mishap("gateway answers HTML", "billing.charge", "JSONDecodeError",
           lambda r: {"order": order(r), "card": "card_gateway"}, weight=2),
    Mishap("charges limited", "billing.charge", "RateLimited", lambda r: {"order": order(r)}, "rate_limit"),
    Mishap("charge answered 503", "billing.charge", "HTTPStatusError", lambda r: {"order": order(r)}, "outage"),
    Mishap("amount with a comma", "billing.charge", "InvalidOperation",
           lambda r: {"order": order(r, amount="12,50")}, weight=2),
    Mishap("unknown currency", "billing.charge", "UnknownCurrency", lambda r: {"order": order(r, currency="DKK")}),
    Mishap("refund too large", "billing.refund", "RefundTooLarge",
           lambda r: {"order": order(r), "amount": f"{r.randrange(400, 999)}.00"}),
    Mishap("customer without an account", "billing.refund", "TypeError",
           lambda r: {"order": order(r, customer={"id": number(r), "account": None}), "amount": "1.00"}),
    Mishap("IBAN with a sign", "billing.check_iban", "ValueError", lambda r: {"iban": f"FI²1{number(r)}"}),
    Mishap("fee shared by nobody", "billing.share_fee", "ZeroDivisionError",
           lambda r: {"fee": number(r), "sellers": []}),
    Mishap("ledger closed for a moment", "billing.book", "OperationalError",
           lambda r: {"number": order(r)["number"], "amount": "8.00", "closing": 1}, weight=12, needs_tries=1),
    Mishap("ledger closed", "billing.book", "OperationalError",
           lambda r: {"number": order(r)["number"], "amount": "8.00", "closing": 99}, weight=2),
    Mishap("order booked twice", "billing.book", "IntegrityError",
           lambda r: {"number": order(r)["number"], "amount": "8.00", "twice": True}),
    Mishap("ledger of another year", "billing.book", "OperationalError",
           lambda r: {"number": order(r)["number"], "amount": "8.00", "table": "entries_of_last_year"}),
    Mishap("growth without bound", "billing.forecast", "OverflowError",
           lambda r: {"account": number(r), "takings": [9.5, 8.25], "growth": float("inf")}),
    Mishap("no takings", "billing.forecast", "StatisticsError", lambda r: {"account": number(r), "takings": []}),
    # Queue reports.
    Mishap("stray quote in an upload", "reporting.import_stock", "Error",
           lambda r: {"upload": number(r), "text": 'lamp,4\n"desk"oak,2\n'}),
    Mishap("words where a number belongs", "reporting.import_stock", "BadRow",
           lambda r: {"upload": number(r), "text": f"lamp,4\ndesk,about {r.randrange(99)}\n"}, weight=2),
    Mishap("row cut short", "reporting.import_stock", "IndexError",
           lambda r: {"upload": number(r), "text": "lamp,4\ndesk\n"}),
    Mishap("no visits", "reporting.conversion", "ZeroDivisionError",
           lambda r: {"report": number(r), "visits": 0, "orders": 0}, weight=3),
    Mishap("time zone that is not", "reporting.morning_report", "ZoneInfoNotFoundError",
           lambda r: {"report": number(r), "zone": "Europe/Atlantis", "day": day(r)}),
    Mishap("day that is not", "reporting.morning_report", "ValueError",
           lambda r: {"report": number(r), "zone": "Europe/Helsinki", "day": "2026-11-31"}),
    Mishap("archive too slow", "reporting.yearly_archive", "SoftTimeLimitExceeded",
           lambda r: {"report": number(r), "months": 120}),
    Mishap("upload is not gzip", "reporting.unpack", "BadGzipFile",
           lambda r: {"upload": number(r), "packed": "504b0304"}),
    Mishap("upload cut short", "reporting.unpack", "EOFError",
           lambda r: {"upload": number(r), "packed": GZIPPED[:-12]}),
    Mishap("definition misspelt", "reporting.define", "TOMLDecodeError",
           lambda r: {"report": number(r), "definition": "[columns.visits\n"}),
    Mishap("columns need each other", "reporting.define", "CycleError",
           lambda r: {"report": number(r), "definition": '[columns.a]\nneeds=["b"]\n[columns.b]\nneeds=["a"]\n'}),
    Mishap("export into a folder", "reporting.export", "IsADirectoryError",
           lambda r: {"report": number(r), "folder": "."}),
    Mishap("nothing to export", "reporting.export", "EmptyReport", lambda r: {"report": number(r), "rows": 0}),
    Mishap("feed that does not close", "reporting.read_feed", "ParseError",
           lambda r: {"feed": number(r), "xml": "<feed products='3'><item></feed>"}),
    Mishap("too few sellers", "reporting.top_seller", "IndexError",
           lambda r: {"report": number(r), "sold": {"lamp": 3}, "place": 3}),
)  # fmt: skip


def pill(random: Random) -> Job:
    """A job that ends the process which runs it, every time: a scan of a whole archive."""
    return Job("shop.reporting.read_scan", {"tenant": tenant(random), "scan": number(random), "pages": 4_000})


BY_NAME = {mishap.name: mishap for mishap in MISHAPS}
_HEALTHY = [mishap for mishap in MISHAPS if mishap.mode == "well"]


def mishap(random: Random) -> Mishap:
    """One that happens also while the partner is well."""
    return random.choices(_HEALTHY, [each.weight for each in _HEALTHY])[0]
