"""Queue `emails`: receipts, newsletters, bounces."""

from __future__ import annotations

import base64
import smtplib
import time
from email.message import EmailMessage
from email.utils import parseaddr
from pathlib import Path
from typing import Any

import httpx

from demo.shop import app
from demo.wire import RateLimited, post

GREETINGS = {"en": "Hello {0}, your order {1} is on its way.", "de": "Hallo {0}, Bestellung {1} ist unterwegs.",
             "fi": "Hei {0}, tilaus {1} on matkalla ({2})."}  # fmt: skip
LARGEST_ATTACHMENT = 64_000
TEMPLATES = Path(__file__).parent / "templates"


class InvalidAddress(ValueError):
    """Nothing can be sent to this address."""


class AttachmentTooLarge(Exception):
    """The mail host would refuse it."""


@app.task(name="shop.mailer.send_receipt", bind=True, max_retries=4)
def send_receipt(self: Any, *, tenant: str, order: dict[str, Any], language: str = "en") -> str:
    """Mail a receipt through the partner; a broken connection is tried again with growing waits."""
    message = compose(order, language)
    try:
        post("/mail", {"tenant": tenant, "to": message["To"], "text": message.get_content()})
    except RateLimited as error:
        raise self.retry(exc=error, countdown=error.retry_after)
    except httpx.TransportError as error:
        raise self.retry(exc=error, countdown=min(30, 2**self.request.retries))
    return message["To"]


def compose(order: dict[str, Any], language: str) -> EmailMessage:
    message = EmailMessage()
    message["To"] = checked_address(order["email"])
    message["Subject"] = "Your order " + order["number"]
    message.set_content(GREETINGS[language].format(order["name"], order["number"]))
    return message


def checked_address(address: str) -> str:
    _, found = parseaddr(address)
    name, at, host = found.partition("@")
    if not (name and at and "." in host):
        raise InvalidAddress(f"cannot send to {address!r}: no host after the @")
    return found


@app.task(name="shop.mailer.send_newsletter", autoretry_for=(httpx.TransportError, RateLimited), max_retries=3,
          retry_backoff=2, retry_backoff_max=30)  # fmt: skip
def send_newsletter(*, tenant: str, issue: str, to: str, layout: str = "plain.txt") -> str:
    """Mail one issue of a newsletter to one reader."""
    text = (TEMPLATES / layout).read_text().format(issue=issue, shop=tenant)
    post("/mail", {"tenant": tenant, "to": checked_address(to), "text": text})
    return to


@app.task(name="shop.mailer.relay")
def relay(*, tenant: str, letter: int, host: str = "127.0.0.1", port: int = 9) -> None:
    """Hand a letter to the customer's own mail host."""
    with smtplib.SMTP(host, port, timeout=5) as mail_host:
        mail_host.sendmail(f"shop@{tenant}.example", [f"letter-{letter}@example.com"], "Subject: hello\n\n")


@app.task(name="shop.mailer.file_bounce")
def file_bounce(*, tenant: str, bounce: int, body: str, charset: str = "utf-8") -> int:
    """Read a bounced mail, as base64 of whatever the mail host sent."""
    text = read_bounce(body, charset)
    time.sleep(0.005)
    return len(text.splitlines())


def read_bounce(body: str, charset: str) -> str:
    return base64.b64decode(body).decode(charset)


@app.task(name="shop.mailer.attach_invoice")
def attach_invoice(*, tenant: str, invoice: str, size: int) -> int:
    """Put an invoice onto a mail."""
    if size > LARGEST_ATTACHMENT:
        raise AttachmentTooLarge(f"invoice {invoice} has {size} bytes, the mail host takes {LARGEST_ATTACHMENT}")
    return size
