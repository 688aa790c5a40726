#2 import logging

from pymongo import MongoClient

#2 log = logging.getLogger(__name__)


def find(host, port, name):
    client = MongoClient(host, port, serverSelectionTimeoutMS=300)
    #2 log.debug("find %s", name)
    return client.shop.orders.find_one({"name": name})


def keep(host, port, document):
    client = MongoClient(host, port, serverSelectionTimeoutMS=300)
    return client.shop.orders.insert_one(document)


def address(url):
    #2 log.debug("address")
    return MongoClient(url)


def too_large(size):
    from bson import encode

    return encode({"n": size})
