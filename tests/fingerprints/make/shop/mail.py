#2 import logging
import smtplib
import ssl
from email.message import EmailMessage

#2 log = logging.getLogger(__name__)


def _letter(to):
    letter = EmailMessage()
    letter["To"], letter["From"] = to, "shop@shop.example"
    letter.set_content("hello")
    return letter


def send(host, port, to, timeout=1):
    with smtplib.SMTP(host, port, timeout=timeout) as line:
        #2 log.debug("send to %s", to)
        line.send_message(_letter(to))


def send_signed(host, port, to, user, password):
    with smtplib.SMTP(host, port, timeout=1) as line:
        #2 log.debug("signed")
        line.login(user, password)
        line.send_message(_letter(to))


def send_safely(host, port, to):
    with smtplib.SMTP(host, port, timeout=1) as line:
        line.starttls(context=ssl.create_default_context())
        line.send_message(_letter(to))


def remind(host, port, to):
    with smtplib.SMTP(host, port, timeout=1) as line:
        line.send_message(_letter(to))
