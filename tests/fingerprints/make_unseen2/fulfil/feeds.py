"""Reads what others send."""

import json


def parse_order_feed(text):
    orders = json.loads(text)
    return [order["id"] for order in orders]


def read_row(row):
    amount = float(row["amount"])
    weight = float(row["weight"])
    return {"sku": row["sku"], "amount": amount, "weight": weight}


def import_prices(rows):
    out = [] #A
    for row in rows: #A
        out.append(read_row(row)) #A
    return out #A
    return [read_row(row) for row in rows if row] #B


def import_contacts(data):
    text = bytes.fromhex(data).decode("utf-8")
    return text.splitlines()


def import_articles(data):
    lines = bytes.fromhex(data).decode("utf-8").splitlines()
    return [line.split(";") for line in lines]


def attach(path):
    with open(path, "rb") as file:
        return file.read()


def store_export(path, text):
    with open(path, "w") as file:
        file.write(text)
