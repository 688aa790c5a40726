import base64
import configparser
import io
import os
import pickle
import struct
import tarfile
from decimal import Decimal
from zoneinfo import ZoneInfo

import jsonschema
import openpyxl
from dateutil import parser
from PIL import Image

CLAIM = {
    "type": "object",
    "required": ["iban", "email"],
    "properties": {"iban": {"type": "string"}, "email": {"type": "string"}, "amount": {"type": "number"}},
}


class ImportFailed(Exception):
    pass


class Payer:
    def __init__(self, iban):
        self.iban = iban


def check_claim(claim):
    jsonschema.validate(claim, CLAIM)


def thumbnail(data, width):
    picture = Image.open(io.BytesIO(base64.b64decode(data)))
    picture.load()
    return picture.resize((width, width))


def roster(path, sheet):
    book = openpyxl.load_workbook(path)
    return [row for row in book[sheet].values]


def appointment(text):
    return parser.parse(text)


def local_time(zone):
    return ZoneInfo(zone)


def unpack(path):
    with tarfile.open(path, "r:gz") as archive:
        return archive.getnames()


def account_of(path, tenant, option):
    settings = configparser.ConfigParser()
    settings.read(path)
    return settings.get(tenant, option)


def copay(amount, share):
    return (Decimal(amount) / Decimal(share)).quantize(Decimal("0.01"))


def reading(data):
    device, value = struct.unpack("<II", bytes.fromhex(data))
    return struct.pack("<HH", device, value)


def resume(data):
    return pickle.loads(bytes.fromhex(data))


def attachment(text):
    return base64.b64decode(text)


def export(path, rows):
    with open(path, "w") as out:
        for row in rows:
            out.write("%s\n" % row)


def import_row(number, row):
    if not row.get("amount"):
        raise ImportFailed("row %d: amount is empty" % number)
    if row.get("currency") not in ("EUR", "CHF"):
        raise ImportFailed("row %d: unknown currency %s" % (number, row.get("currency")))


def transfer(payer, payee):
    from_iban = Payer(payer) if payer else None
    to_iban = Payer(payee) if payee else None
    source = from_iban.iban
    target = to_iban.iban
    return source, target


def tree(node, depth=0):
    return [tree(node, depth + 1) for _ in (node,)]


def remove_scan(folder, name):
    os.rename(os.path.join(folder, name), os.path.join(folder, "done", name))
