"""A mail has one time limit over all, whatever its server does with each word of it."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager

import pytest
from django.utils import timezone

from jobs_admin.models import Channel, Notice
from jobs_admin.notices import delivering, mail


@pytest.fixture(autouse=True)
def mail_server(settings):
    settings.EMAIL_BACKEND = mail.SMTP
    settings.EMAIL_HOST, settings.EMAIL_TIMEOUT = "127.0.0.1", 0.25
    settings.EMAIL_USE_TLS = settings.EMAIL_USE_SSL = False
    settings.EMAIL_HOST_USER = settings.EMAIL_HOST_PASSWORD = ""
    return settings


@contextmanager
def server(talk):
    """The port of one that talks so with whoever calls, until it is stopped."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            while not over.is_set():
                try:
                    line, _ = listening.accept()
                    talk(line, over)
                except OSError:
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(20)
            assert not thread.is_alive()


def dripping(before: bytes, drop: bytes):
    """Says `before` once, then `drop` again and again."""

    def talk(line, over):
        line.sendall(before)
        while not over.wait(0.05):
            line.sendall(drop)

    return talk


def send_mail():
    notice = Notice(key="k", type="ping", severity="info", created_at=timezone.now(), body={"title": "x"})
    return mail.sender(mail.build_mail(notice, Channel(kind="email", to="a@b.example")))()


@pytest.mark.parametrize(
    ("before", "drop"),
    [(b"", b"220-x\r\n"), (b"", b"2"), (b"220 here\r\n", b"250-x\r\n"), (b"220 here\r\n250 yes\r\n", b"250-x\r\n")],
)
def test_a_server_that_sends_a_word_now_and_then_is_cut(mail_server, monkeypatch, before, drop):
    # Long for a word, which a busy machine may hold back, and short for all of them.
    mail_server.EMAIL_TIMEOUT = 30
    monkeypatch.setattr(mail, "LONGEST_S", 1.5)
    with server(dripping(before, drop)) as mail_server.EMAIL_PORT:
        answer = send_mail()
    assert (answer.status, answer.is_for_good) == (None, False)
    assert answer.error == "The mail server is unreachable: timed out after 1.5 s."


def test_one_that_drips_in_its_tls_is_left(mail_server):
    mail_server.EMAIL_USE_SSL = True
    with server(dripping(b"\x16\x03\x03\x40\x00", b"\x02")) as mail_server.EMAIL_PORT:
        answer = send_mail()
    assert answer.status is None and "The handshake operation timed out" in answer.error


def test_one_that_answers_takes_the_mail(mail_server):
    mail_server.EMAIL_TIMEOUT = 10
    lines = []

    def talk(line, over):
        line.sendall(b"220 here\r\n")
        for row in line.makefile("rb"):
            lines.append(row)
            if row.upper() == b"DATA\r\n":
                line.sendall(b"354 go on\r\n")
            elif row == b".\r\n" or row[:4].upper() in (b"EHLO", b"MAIL", b"RCPT", b"QUIT"):
                line.sendall(b"250 yes\r\n")

    with server(talk) as mail_server.EMAIL_PORT:
        answer = send_mail()
    assert (answer.status, answer.error) == (250, "")
    assert any(row.startswith(b"Subject: [info] x") for row in lines)


def test_the_limit_is_of_some_words_and_shorter_than_the_claim():
    assert mail.Line(timeout=0.25).limit_s == 1.5
    assert mail.Line(timeout=600).limit_s == mail.LONGEST_S < delivering._CLAIMED_MAIL.total_seconds()
