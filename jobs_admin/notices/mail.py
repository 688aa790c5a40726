"""A notice as an e-mail: plain text and its links."""

from __future__ import annotations

import contextlib
import smtplib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.core.mail.backends import smtp

from jobs_admin import config
from jobs_admin.core.text import representable
from jobs_admin.models import Channel, Notice
from jobs_admin.models.notice import ALERT_RESOLVED
from jobs_admin.notices import wording
from jobs_admin.notices.posting import Answer

# `EMAIL_TIMEOUT` applies to each of the server's responses.
WORDS = 6
LONGEST_S = 60.0  # shorter than the claim of a mail


class _Plain(smtplib.SMTP):
    """SMTP client that passes its socket to `opened` immediately: before TLS, and before the server's greeting."""

    opened: Any

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        found: socket.socket = super()._get_socket(host, port, timeout)  # type: ignore[misc]
        self.opened(found)
        return found


class _Tls(smtplib.SMTP_SSL, _Plain):
    pass


class Line(smtp.EmailBackend):
    """Django's backend, closed when its time is up. For one mail: `with Line(timeout=10) as line`."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.is_cut = False
        self.limit_s = min(LONGEST_S, WORDS * (self.timeout or LONGEST_S))
        self._holding = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(self.limit_s, self._cut)
        self._timer.daemon = True

    @property
    def connection_class(self) -> type[smtplib.SMTP]:
        return type("Bounded", (_Tls if self.use_ssl else _Plain,), {"opened": staticmethod(self._opened)})

    def __enter__(self) -> Line:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._holding:
            for one in self._sockets:
                one.close()
            self._sockets.clear()

    def _opened(self, found: socket.socket) -> None:
        with self._holding:
            # A duplicate: TLS takes over the first one.
            self._sockets.append(found.dup())
        if self.is_cut:
            self._cut()

    def _cut(self) -> None:
        self.is_cut = True
        with self._holding:
            for one in self._sockets:
                with contextlib.suppress(OSError):  # it is closed already
                    one.shutdown(socket.SHUT_RDWR)


SMTP = "django.core.mail.backends.smtp.EmailBackend"
_FOR_GOOD = range(550, 560)  # the address or the mail is refused permanently
_NO_SUCH_ADDRESS = {550, 551, 553, 554}  # in response to an address


def build_mail(notice: Notice, channel: Channel) -> EmailMessage:
    """Return the mail.

    The notice's key is in its Message-ID, so a repeated mail is a duplicate; an alert's mails form a thread.
    """
    content = wording.build_text(notice)
    done = "Resolved: " if notice.type == ALERT_RESOLVED else ""
    lines = [content.message, ""]
    lines += [f"{word}: {value}" for word, value in content.facts]
    lines += ["", *content.groups] if content.groups else []
    lines += ["", *(f"{words}: {address}" for words, address in content.links)]
    host = urlsplit(config.page_url("")).hostname or "redrive"
    thread = f"<{_plain(wording.dedup_key(notice))}@{host}>"
    return EmailMessage(
        # Of one line: `wording` has taken out whatever would begin another header.
        subject=f"[{notice.severity or 'info'}] {done}{content.title}"[:200],
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
            reason = "; ".join(f"{to}: {code} {_text(words)}" for to, (code, words) in error.recipients.items())
            status = next(iter(codes), 550)
            answer = _failed(status, reason, began, codes <= set(_FOR_GOOD))
            return replace(answer, has_no_recipient=codes <= _NO_SUCH_ADDRESS)
        except smtplib.SMTPResponseException as error:
            if line is not None and line.is_cut:
                # A partial response does not count.
                return _failed(None, f"timed out after {line.limit_s:g} s", began, False)
            return _failed(error.smtp_code, _text(error.smtp_error), began, error.smtp_code in _FOR_GOOD)
        except (smtplib.SMTPException, OSError, ValueError) as error:
            if line is not None and line.is_cut:
                return _failed(None, f"timed out after {line.limit_s:g} s", began, False)
            return _failed(None, representable(str(error)) or type(error).__name__, began, False)

    return send


def _failed(status: int | None, reason: str, began: float, is_for_good: bool) -> Answer:
    reason = representable(reason)
    return Answer(
        status if status is None or status >= 400 else 550,
        reason[:2_000] if status is not None else "",
        "" if status is not None else f"The mail server is unreachable: {reason}."[:300],
        took_ms=_since(began),
        is_for_good=is_for_good,
    )


def _text(reason: bytes | str) -> str:
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


def _plain(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)
