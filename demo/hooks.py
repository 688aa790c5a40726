"""Queue `webhooks`: telling customers' systems what happened."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from typing import Any

import httpx

from demo.shop import app
from demo.wire import RateLimited, partner_url, post


class EndpointGone(Exception):
    """The customer deleted this endpoint; it should not be called again."""


class BlockedAddress(PermissionError):
    """The endpoint points into a private network."""


@app.task(name="shop.hooks.deliver", bind=True, max_retries=5)
def deliver(self: Any, *, tenant: str, event: dict[str, Any], endpoint: str = "/hook", base: str | None = None) -> bool:
    """Deliver one event. Only a rate limit is waited out: customers dislike events out of order."""
    try:
        return delivered(endpoint, {"tenant": tenant, **event}, base)
    except RateLimited as error:
        raise self.retry(exc=error, countdown=error.retry_after)


def delivered(endpoint: str, event: dict[str, Any], base: str | None) -> bool:
    try:
        answer = post(endpoint, event, base=base)
    except httpx.HTTPStatusError as error:
        if error.response.status_code == 410:
            raise EndpointGone(f"{endpoint} was deleted by its owner, event {event['id']} is not wanted") from error
        raise
    return bool(answer.json()["accepted"])


@app.task(name="shop.hooks.update_stock", autoretry_for=(httpx.HTTPError, RateLimited), max_retries=4,
          retry_backoff=1, retry_backoff_max=20, retry_jitter=True)  # fmt: skip
def update_stock(*, tenant: str, product: str, left: int) -> int:
    """Send the remaining stock to a marketplace; tried again, since only the last number counts."""
    post("/hook", {"tenant": tenant, "product": product, "left": left})
    return left


@app.task(name="shop.hooks.order_pickup", autoretry_for=(httpx.HTTPError, RateLimited), max_retries=3,
          retry_backoff=1, retry_backoff_max=4, retry_jitter=True)  # fmt: skip
def order_pickup(*, tenant: str, order: str, endpoint: str) -> bool:
    """Have a warehouse send an order for us; tried four times within some seconds, since a customer is waiting for it."""
    return _is_accepted(tenant, order, endpoint)


@app.task(name="shop.hooks.reserve_stock", autoretry_for=(httpx.HTTPError, RateLimited), max_retries=3,
          retry_backoff=1, retry_backoff_max=4, retry_jitter=True)  # fmt: skip
def reserve_stock(*, tenant: str, order: str, endpoint: str) -> bool:
    """Have a warehouse put an order aside; tried as `order_pickup` is, but the policy `warehouse` has a breaker for it."""
    return _is_accepted(tenant, order, endpoint)


def _is_accepted(tenant: str, order: str, endpoint: str) -> bool:
    return bool(post(endpoint, {"tenant": tenant, "order": order}).json()["accepted"])


@app.task(name="shop.hooks.sign")
def sign(*, tenant: str, event: int, secret: str) -> str:
    """Sign an event with the customer's secret."""
    return hmac.new(secret.encode("ascii"), str(event).encode(), hashlib.sha256).hexdigest()


@app.task(name="shop.hooks.check_endpoint")
def check_endpoint(*, tenant: str, host: str) -> str:
    """Refuse endpoints that are not public addresses."""
    address = ipaddress.ip_address(host)
    if address.is_private:
        raise BlockedAddress(f"{address} is private, an endpoint must have a public address")
    return str(address)


@app.task(name="shop.hooks.publish_catalogue")
def publish_catalogue(*, tenant: str, catalogue: int, parents: dict[str, str]) -> int:
    """Send the tree of categories, each with its path from the root."""
    paths = {name: path_to(name, parents) for name in parents}
    post("/hook", {"tenant": tenant, "catalogue": catalogue, "paths": paths}, base=partner_url())
    return len(paths)


def path_to(name: str, parents: dict[str, str]) -> str:
    parent = parents.get(name)
    return f"{path_to(parent, parents)}/{name}" if parent else name
