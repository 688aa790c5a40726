"""Bills what was read."""

import decimal
import os

import redis
import stripe


class BillingError(Exception):
    pass


class PaymentRefused(BillingError):
    pass


class BillingRunFailed(BillingError):
    pass


def price_on(tariffs, tariff, day):
    prices = tariffs.get(tariff, {})
    if day not in prices:
        raise BillingError(f"tariff '{tariff}' has no price for {day}")
    return prices[day]


def compare_sum(number, customer, ours, theirs):
    rounded = decimal.Decimal(ours).quantize(decimal.Decimal("0.01")) #B
    if ours != theirs:
        raise BillingError(f"bill {number} of {customer}: sum {ours} EUR differs from {theirs} EUR")


def collect(answers, customer):
    answer = answers[customer]
    if answer != "ok":
        raise PaymentRefused(f"direct debit refused: {answer}")


def debit(base, customer, method):
    stripe.api_key, stripe.api_base, stripe.max_network_retries = "sk_test_1", base, 0
    return stripe.PaymentIntent.create(amount=100, currency="eur", customer=customer, payment_method=method)


def secret(name):
    value = os.environ.get(name)
    if value is None:
        raise RuntimeError(f"environment variable {name} is not set")
    return value


def configure(names):
    return {name: secret(name) for name in names}


def _one(contract):
    return decimal.Decimal(contract["kwh"]) / contract["days"]


def run(month, tenant, contracts):
    for contract in contracts:
        try:
            _one(contract)
        except Exception as error:
            raise BillingRunFailed(f"billing run {month} of tenant {tenant} failed") from error


def average(contract):
    return contract.tariff.price * contract.meter.factor


class Contract:
    def __init__(self, tariff, meter):
        self.tariff, self.meter = tariff, meter


class Tariff:
    price = 3


class Meter:
    factor = 2


def average_of(tariff, meter):
    contract = Contract(Tariff() if tariff else None, Meter() if meter else None)
    return (
        contract.tariff.price
        * contract.meter.factor
    )


def annual(period, days=365):
    return period, days


def close_year(arguments):
    return annual(**arguments)


def check_bill(lines, total):
    assert lines, "a bill needs at least one line"
    assert sum(lines) == total, f"lines sum up to {sum(lines)}, not {total}"


def to_cents(text):
    with decimal.localcontext() as context:
        context.prec = 6
        return int(decimal.Decimal(text).quantize(decimal.Decimal("0.01")) * 100)


def reserve(port, name, fill=0):
    client = redis.Redis("127.0.0.1", port)
    if fill:
        client.config_set("maxmemory", fill)
    else:
        client.set("runs:" + name, "1")
    try:
        client.lpush("runs:" + name, name)
    finally:
        client.config_set("maxmemory", 0)


def finish(port, name):
    client = redis.Redis("127.0.0.1", port)
    lock = client.lock("lock:" + name, timeout=9)
    lock.acquire()
    client.delete("lock:" + name)
    lock.release()
