"""A notice as an e-mail: plain text and its links."""

from __future__ import annotations

import smtplib
import time
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMessage, get_connection

from jobs_admin import config
from jobs_admin.core.text import representable
from jobs_admin.models import Channel, Notice
from jobs_admin.models.notice import ALERT_RESOLVED
from jobs_admin.notices import wording
from jobs_admin.notices.mail_line import Line
from jobs_admin.notices.posting import Answer

SMTP = "django.core.mail.backends.smtp.EmailBackend"
_FOR_GOOD = range(550, 560)  # the address or the mail is refused, not the time
_NO_SUCH_ADDRESS = {550, 551, 553, 554}  # as the answer to an address


def written(notice: Notice, channel: Channel) -> EmailMessage:
    """The notice's key is in its Message-ID, so that a mail sent twice is one; mails of one alert are one thread."""
    told = wording.said(notice)
    done = "Resolved: " if notice.type == ALERT_RESOLVED else ""
    lines = [told.message, ""]
    lines += [f"{word}: {value}" for word, value in told.facts]
    lines += ["", *told.groups] if told.groups else []
    lines += ["", *(f"{words}: {address}" for words, address in told.links)]
    host = urlsplit(config.page_url("")).hostname or "redrive"
    thread = f"<{_plain(wording.dedup_key(notice))}@{host}>"
    return EmailMessage(
        # Of one line: `wording` has taken out whatever would begin another header.
        subject=f"[{notice.severity or 'info'}] {done}{told.title}"[:200],
        body="\n".join(lines) + "\n",
        from_email=settings.DEFAULT_FROM_EMAIL,
        to=channel.to.split(),
        headers={
            "Message-ID": f"<{_plain(notice.key)}@{host}>",
            "References": thread,
            "In-Reply-To": thread,
            "Auto-Submitted": "auto-generated",
        },
    )


def sender(message: EmailMessage) -> Callable[[], Answer]:
    def send() -> Answer:
        began = time.monotonic()
        line = None
        try:
            if settings.EMAIL_BACKEND == SMTP:
                with Line(timeout=settings.EMAIL_TIMEOUT) as line:
                    message.connection = line
                    message.send()
            else:
                message.connection = get_connection(timeout=settings.EMAIL_TIMEOUT)
                message.send()
            return Answer(250, "", took_ms=_since(began))
        except smtplib.SMTPRecipientsRefused as error:
            codes = {code for code, _ in error.recipients.values()}
            said = "; ".join(f"{to}: {code} {_text(words)}" for to, (code, words) in error.recipients.items())
            status = next(iter(codes), 550)
            answer = _failed(status, said, began, codes <= set(_FOR_GOOD))
            return replace(answer, reaches_nobody=codes <= _NO_SUCH_ADDRESS)
        except smtplib.SMTPResponseException as error:
            if line is not None and line.is_cut:
                # Half a word that it was cut at is no answer.
                return _failed(None, f"it took longer than {line.limit_s:g} s", began, False)
            return _failed(error.smtp_code, _text(error.smtp_error), began, error.smtp_code in _FOR_GOOD)
        except (smtplib.SMTPException, OSError, ValueError) as error:
            if line is not None and line.is_cut:
                return _failed(None, f"it took longer than {line.limit_s:g} s", began, False)
            return _failed(None, representable(str(error)) or type(error).__name__, began, False)

    return send


def _failed(status: int | None, said: str, began: float, is_for_good: bool) -> Answer:
    said = representable(said)
    return Answer(
        status if status is None or status >= 400 else 550,
        said[:2_000] if status is not None else "",
        "" if status is not None else f"The mail server was not reached: {said}."[:300],
        took_ms=_since(began),
        is_for_good=is_for_good,
    )


def _text(said: bytes | str) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


def _plain(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)
