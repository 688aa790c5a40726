"""Files that market partners send, and that we keep."""

import io
import zipfile

import jsonschema
import openpyxl
import pandas
import pydantic
import pypdf
from cryptography.fernet import Fernet

SCHEMA = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["kWh", "MWh"]},
        "medium": {"enum": ["power", "gas"]},
        "values": {"type": "array", "maxItems": 96},
    },
}


class Value(pydantic.BaseModel):
    at: str
    kwh: float = pydantic.Field(ge=0)


class Profile(pydantic.BaseModel):
    meter: str
    readings: list[Value]


def check(document):
    jsonschema.validate(document, SCHEMA)


def accept(profile):
    return Profile.model_validate(profile)


def join(readings, meters, on):
    left, right = pandas.DataFrame(readings), pandas.DataFrame(meters)
    return left.merge(right, on=on)


def monthly(rows, columns):
    frame = pandas.DataFrame(rows)
    return frame.groupby(columns)["kwh"].sum()


def sheet(path):
    return openpyxl.load_workbook(path).active.max_row


def unpack(data, name):
    with zipfile.ZipFile(io.BytesIO(bytes.fromhex(data))) as archive:
        return archive.read(name)


def text_of(data):
    return pypdf.PdfReader(io.BytesIO(data.encode("latin-1"))).pages[0].extract_text()


def keep(folder, name, text):
    path = f"{folder}/{name}"
    with open(path, "w") as target:
        target.write(text)


def reveal(key, token):
    return Fernet(key).decrypt(token.encode())


def parse_line(line):
    meter, count, kwh = line.split(";")
    count = int(count)
    kwh = float(kwh)
    return meter, count, kwh
