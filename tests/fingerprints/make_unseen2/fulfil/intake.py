"""Checks what comes in."""

import datetime
from types import SimpleNamespace

import marshmallow
import pydantic


class Order(pydantic.BaseModel):
    id: int
    customer: str
    due_date: datetime.date
    amount: float


class Contact(marshmallow.Schema):
    name = marshmallow.fields.Str(required=True)
    email = marshmallow.fields.Email(required=True)
    vat_id = marshmallow.fields.Str(required=True)


class InvoiceError(Exception):
    pass


class ExportError(RuntimeError):
    pass


def accept(payload):
    order = Order.model_validate(payload)
    return order.id


def accept_contacts(rows):
    return Contact(many=True).load(rows)


FIELDS = ("holder", "iban", "bic")


def mandate(payload):
    return {field: payload["bank"][field] for field in FIELDS}


def warehouse_of(order_id, table):
    by_id = {int(k) if k.isdigit() else k: v for k, v in table.items()}
    return by_id[order_id]


def _order(customer, courier):
    return SimpleNamespace(customer=customer and SimpleNamespace(name=customer), courier=courier and SimpleNamespace(name=courier))


def slip_text(order):
    to = "To: " + order.customer.name
    by = "By: " + order.courier.name
    return to + by


def packing_slip(customer, courier):
    return slip_text(_order(customer, courier)) #A
    order = _order(customer, courier) #B
    text = slip_text(order) #B
    return text.strip() #B


def contact_of(customer, book):
    found = book.get(customer)
    return found.lower()


def notify(customer, book): #A
    return contact_of(customer, book) #A


def notify(customer, book, *, quiet=False): #B
    address = contact_of(customer, book) #B
    return None if quiet else address #B


def check_invoice(number, tenant, expected, got):
    if expected != got:
        raise InvoiceError(f"Invoice {number} of {tenant} does not add up: expected {expected:.2f} EUR, got {got:.2f} EUR")


def charge(email, order, day, mandates):
    if email not in mandates:
        raise InvoiceError(f"No active mandate for {email} (order #{order}, due {day})")


def export(tenant, rows, columns):
    if not rows:
        raise ExportError(f"Export for {tenant} stopped: nothing to export since {columns[0]}")
    if len(columns) > 2:
        raise ExportError(f"Export for {tenant} stopped: template knows only 2 of {len(columns)} columns")
