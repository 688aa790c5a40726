#2 import logging
from datetime import datetime
from decimal import Decimal

#2 log = logging.getLogger(__name__)


def order(**values):
    from pydantic import BaseModel

    class Order(BaseModel):
        number: int
        amount: float
        tenant: str

    #2 log.debug("order")
    return Order(**values)


def customer(**values):
    from marshmallow import Schema, fields

    class Customer(Schema):
        email = fields.Email(required=True)
        age = fields.Integer()

    #2 log.debug("customer")
    return Customer().load(values)


def letter(text, **words):
    from jinja2 import Environment, StrictUndefined

    #2 log.debug("letter")
    return Environment(undefined=StrictUndefined).from_string(text).render(**words)


def page(name, folder):
    from jinja2 import Environment, FileSystemLoader

    return Environment(loader=FileSystemLoader(folder)).get_template(name).render()


def day(text, form="%Y-%m-%d"):
    #2 log.debug("day")
    return datetime.strptime(text, form)


def iso(text):
    return datetime.fromisoformat(text)


def amount(text):
    #2 log.debug("amount")
    return Decimal(text)


def whole(text):
    return int(text)


def fraction(text):
    #2 log.debug("fraction")
    return float(text)


def choose(kind):
    from enum import Enum

    class Kind(Enum):
        CARD = "card"
        CASH = "cash"

    #2 log.debug("choose")
    return Kind(kind)


def address(text):
    import ipaddress

    return ipaddress.ip_address(text)


def identity(text):
    import uuid

    return uuid.UUID(text)
