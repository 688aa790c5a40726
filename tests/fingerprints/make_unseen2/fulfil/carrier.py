"""Talks to parcel carriers and partner services."""

import asyncio

import aiohttp
import httpx
import requests
from tenacity import Retrying, stop_after_attempt, wait_none


class CarrierError(Exception):
    pass


class SyncFailed(Exception):
    pass


def _session(tenant): #B
    session = requests.Session() #B
    session.headers["X-Tenant"] = tenant #B
    return session #B


def track(base, shipment, tenant):
    headers = {"X-Tenant": tenant}
    answer = requests.get(f"{base}/v2/shipments/{shipment}/events", headers=headers, timeout=5)
    answer.raise_for_status()
    return answer.json()["events"]


def call(base, method, path, body):
    answer = requests.request(method, f"{base}{path}", json=body, timeout=5)
    answer.raise_for_status()
    return answer.json()


def create_label(base, shipment):
    return call(base, "POST", "/v2/labels", {"shipment": shipment, "format": "A6"})


def cancel_pickup(base, pickup):
    return call(base, "POST", f"/v2/pickups/{pickup}/cancel", {})


def exchange_rate(base, currency):
    with httpx.Client(base_url=base, timeout=0.3) as client:
        answer = client.get(f"/rates/{currency}", params={"to": "EUR"})
        answer.raise_for_status()
        return answer.json()["rate"]


async def _push(url, body):
    timeout = aiohttp.ClientTimeout(total=3)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        async with session.post(url, json=body) as answer:
            answer.raise_for_status()
            return await answer.text()


def push_status(url, order):
    return asyncio.run(_push(url, {"order": order, "state": "shipped"}))


def book(base, carrier, shipment, tenant):
    try:
        answer = requests.post(f"{base}/v2/bookings", json={"ref": shipment}, timeout=5)
        answer.raise_for_status()
    except requests.HTTPError as error:
        reason = error.response.json()["detail"]
        raise CarrierError(f"{carrier} rejected shipment {shipment} of {tenant}: {reason}") from error
    return answer.json()


def _stock_page(base, page):
    answer = requests.get(f"{base}/stock", params={"page": page}, timeout=0.3)
    answer.raise_for_status()
    return {row["sku"]: row["qty"] for row in answer.json()["rows"]}


def sync_stock(base, tenant, page=1):
    try:
        return _stock_page(base, page)
    except Exception as error:
        raise SyncFailed(f"Stock sync of tenant {tenant} failed") from error


async def _fetch_all(base, orders):
    async def one(order):
        async with httpx.AsyncClient(timeout=2) as client:
            answer = await client.get(f"{base}/orders/{order}")
            answer.raise_for_status()
            return answer.json()["total"]

    async with asyncio.TaskGroup() as group:
        for order in orders:
            group.create_task(one(order))


def refresh_orders(base, orders):
    asyncio.run(_fetch_all(base, orders))


def fetch_quote(base, route):
    for attempt in Retrying(stop=stop_after_attempt(3), wait=wait_none()):
        with attempt:
            answer = requests.get(f"{base}/quotes/{route}", timeout=2)
            answer.raise_for_status()
    return answer.json()
