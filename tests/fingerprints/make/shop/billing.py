import asyncio
#2 import logging
import subprocess
import threading

from shop.errors import CardRefused, OutOfStock, PartnerDown, ShopError

#2 log = logging.getLogger(__name__)


class Invoice:
    def __init__(self, number, lines=()):
        self.number, self.lines = number, list(lines)

    def total(self, tax):
        return sum(self.lines) * tax

    def discount(self, percent):
        return sum(self.lines) * percent


def charge(order):
    #2 log.debug("charge")
    return order["amount"] * 100


def refund(order):
    #2 log.debug("refund")
    return order["amount"] * -100


def customer_of(order):
    return order["customer"]["email"]


def price(table, sku):
    #2 log.debug("price of %s", sku)
    return table[sku]


def named(person):
    return person.name.upper()


def mailed(person):
    return person.email.upper()


def added(one, other):
    #2 log.debug("added")
    return one + other


def taxed(lines):
    return [line["net"] * line["rate"] for line in lines]


def summed(lines):
    return sum(line["net"] for line in lines)


def share(amount, people):
    #2 log.debug("share")
    return amount / people


def nth(lines, n):
    return lines[n]


def first_of(names):
    one, two = names
    return one


def totalled(number):
    #2 log.debug("totalled")
    return Invoice(number, [1, 2]).total()


def discounted(number):
    return Invoice(number, [1, 2]).discount()


def printed(number):
    return Invoice(number).as_pdf()


def posted(number):
    #2 log.debug("posted")
    return Invoice(number).as_letter()


def misspelt(number):
    #2 log.debug("misspelt")
    return Invioce(number)  # noqa


def plugin(name):
    import importlib

    #2 log.debug("plugin")
    return importlib.import_module(name)


def gateway():
    from shop.errors import GatewayDown  # noqa

    return GatewayDown


def walk(node, depth=0):
    return walk(node, depth + 1)


def refuse(order, reason, code=402):
    #2 log.warning("refused")
    raise CardRefused(f"order {order}: card refused with {code}, {reason}")


def without_gateway(tenant):
    #2 log.warning("no gateway")
    raise ShopError(f"tenant {tenant} has no gateway")


def without_contract(tenant):
    raise ShopError(f"tenant {tenant} has no contract")


def limited(tenant, plan):
    raise ShopError(f"tenant {tenant!r} is over the limit of its plan {plan!r}")


def sold_out(sku, wanted, held):
    #2 log.debug("sold out")
    raise OutOfStock("sku %s: wanted %s, held %s" % (sku, wanted, held))


def unknown_customer(name):
    raise ShopError('no customer "%s" (looked for %s)' % (name, name.lower()))


def gave_up(job, attempt, most, wait):
    #2 log.debug("gave up")
    raise PartnerDown(f"job {job}: gave up after attempt {attempt} of {most}, next try in {wait}s")


def state_of(thing):
    #2 log.debug("state")
    raise ShopError("cannot settle %r" % (thing,))


class Basket:
    pass


def basket():
    return state_of(Basket())


def wrapped(order):
    try:
        return order["card"]["number"]
    except KeyError as error:
        #2 log.debug("wrapped")
        raise CardRefused("no card") from error


def wrapped_type(order):
    try:
        return order["card"]["number"]
    except TypeError as error:
        raise CardRefused("no card") from error


def card_of(order):
    """Whatever is wrong with the card: it is refused."""
    try:
        return int(order["card"]["number"])
    except (KeyError, TypeError, ValueError) as error:
        #2 log.debug("card")
        raise CardRefused("no card") from error


def handled(order):
    try:
        return order["card"]
    except KeyError:
        #2 log.debug("handled")
        return order["cards"][0]


def late(seconds):
    async def work():
        await asyncio.sleep(30)

    async def main():
        #2 log.debug("late")
        await asyncio.wait_for(work(), seconds)

    asyncio.run(main())


def gathered(names):
    async def one(name):
        #2 log.debug("one %s", name)
        raise ValueError(f"bad name {name!r}")

    async def main():
        await asyncio.gather(*(one(n) for n in names))

    asyncio.run(main())


def command(arguments, timeout=5):
    #2 log.debug("command")
    return subprocess.run(arguments, check=True, timeout=timeout, capture_output=True)


def shell(arguments):
    return subprocess.check_output(arguments)


def many(errors):
    kinds = {"value": ValueError, "key": KeyError, "type": TypeError}
    #2 log.debug("many")
    raise ExceptionGroup("several orders failed", [kinds[kind](text) for kind, text in errors])


def crowd(names):
    async def one(name):
        if name:
            raise LookupError(f"no {name}")

    async def main():
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(one(name))

    asyncio.run(main())


def noted(order):
    try:
        return order["card"]
    except KeyError as error:
        error.add_note(f"while charging order {order['id']}")
        #3 log.debug("noted")
        raise


def in_pool(numbers):
    from concurrent.futures import ThreadPoolExecutor

    def invert(n):
        return 1 / n

    with ThreadPoolExecutor(2) as pool:
        #2 log.debug("pool")
        return list(pool.map(invert, numbers))


def lock():
    #2 log.debug("lock")
    threading.Lock().release()


def asserted(order):
    assert order["amount"] > 0, f"amount {order['amount']} of order {order['id']}"


def asserted_currency(order):
    assert order["currency"] == "EUR", f"currency {order['currency']} of order {order['id']}"


def unpacked(pair):
    name, amount = pair.split("=")
    return name, amount
