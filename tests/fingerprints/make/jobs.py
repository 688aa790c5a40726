#2 import logging

#2 log = logging.getLogger(__name__)


def nightly(order):
    #2 log.debug("nightly")
    return order["total"] / order["parts"]


def weekly(order):
    return order["total"] / order["parts"]
