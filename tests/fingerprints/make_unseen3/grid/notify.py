"""Tells customers and colleagues."""

import phonenumbers
import slack_sdk
import twilio.rest
from twilio.http.http_client import TwilioHttpClient


class Gateway(TwilioHttpClient):
    def __init__(self, base):
        super().__init__()
        self.base = base

    def request(self, method, url, *args, **kwargs):
        return super().request(method, url.replace("https://api.twilio.com", self.base), *args, **kwargs)


def post(base, channel, text):
    client = slack_sdk.WebClient("xoxb-1", base_url=base + "/api/")
    return client.chat_postMessage(channel=channel, text=text)


def send_sms(base, number, text):
    client = twilio.rest.Client("AC" + "0" * 32, "token", http_client=Gateway(base))
    return client.messages.create(to=number, from_="+4943188001", body=text).sid


def normalise(number, region):
    parsed = phonenumbers.parse(number, region)
    return phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164)


def letter(name, text):
    line = f"{name}: {text}"
    return line.encode("latin-1")
