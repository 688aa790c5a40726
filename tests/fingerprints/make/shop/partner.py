import json
#2 import logging
import socket
import ssl
import urllib.request

from shop.errors import PartnerDown

#2 log = logging.getLogger(__name__)


def announce(host, port, order, timeout=2):
    import requests

    #2 log.debug("announce %s", order)
    answer = requests.post("http://%s:%s/v1/orders/%s" % (host, port, order), json={"order": order}, timeout=timeout)
    answer.raise_for_status()
    return answer.json()


def cancel(host, port, order, timeout=2):
    import requests

    answer = requests.delete("http://%s:%s/v1/orders/%s" % (host, port, order), timeout=timeout)
    answer.raise_for_status()
    return answer.json()


def announce_safely(host, port, order):
    import requests

    address = "https://%s:%s/v1/orders/%s" % (host, port, order)
    #3 log.debug("safely %s", address)
    return requests.post(address, json={"order": order}, timeout=2)


def status(address, order):
    import requests

    #2 log.debug("status of %s", order)
    answer = requests.get("%s/%s" % (address, order), timeout=2)
    answer.raise_for_status()
    return answer.json()


def rates(address):
    import requests

    return requests.get(address, timeout=2).json()["rates"]


def persistent(address, total=2):
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util.retry import Retry

    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(total=total, backoff_factor=0, status_forcelist=[500, 502, 503])))
    return session.get(address, timeout=2)


def addressed(address):
    import requests

    return requests.get(address, timeout=2)


def pooled(host, port, path, timeout=2):
    import urllib3

    #2 # One pool a call: it is rarely used.
    pool = urllib3.HTTPConnectionPool(host, port=port, retries=False, timeout=timeout)
    return pool.request("GET", path).data


def track(address, timeout=2):
    import httpx

    with httpx.Client(timeout=timeout) as client:
        #2 log.debug("track %s", address)
        answer = client.get(address)
        answer.raise_for_status()
        return answer.json()


async def _fetch(address, timeout):
    import aiohttp

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session:
        #2 log.debug("fetch %s", address)
        async with session.get(address, raise_for_status=True) as answer:
            return await answer.json()


def fetch(address, timeout=2):
    import asyncio

    return asyncio.run(_fetch(address, timeout))


def old_api(address, timeout=2):
    #2 log.debug("old api")
    with urllib.request.urlopen(address, timeout=timeout) as answer:
        return json.load(answer)


def knock(host, port):
    #2 log.debug("knock at %s", host)
    with socket.create_connection((host, port), timeout=0.3) as line:
        line.sendall(b"HELLO\n")
        return line.recv(10)


def handshake(host, port):
    context = ssl.create_default_context()
    with socket.create_connection((host, port), timeout=2) as line:
        #2 log.debug("shake")
        with context.wrap_socket(line, server_hostname=host) as safe:
            return safe.version()


def ask(host, port, order, timeout=0.3):
    """The partner's answer; PartnerDown where there is none."""
    import requests

    try:
        return requests.get("http://%s:%s/orders/%s" % (host, port, order), timeout=timeout)
    except requests.RequestException as error:
        #2 log.warning("no answer for %s", order)
        raise PartnerDown("no answer for order %s" % order) from error


def patient(host, port):
    import requests
    from tenacity import retry, stop_after_attempt

    @retry(stop=stop_after_attempt(2))
    def once():
        return requests.get("http://%s:%s/patient" % (host, port), timeout=2)

    #3 log.debug("patient")
    return once()


def charge_card(base, amount, key="sk_test_51H8aa"):
    import stripe

    stripe.api_key = key
    stripe.api_base = base
    stripe.max_network_retries = 0
    #2 log.debug("charge %s", amount)
    return stripe.Charge.create(amount=amount, currency="eur", source="tok_visa")


def refund_card(base, charge, key="sk_test_51H8aa"):
    import stripe

    stripe.api_key = key
    stripe.api_base = base
    stripe.max_network_retries = 0
    return stripe.Refund.create(charge=charge)
