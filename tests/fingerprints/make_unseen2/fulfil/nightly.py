"""Long jobs of the night."""

import signal
import time

import numpy
from billiard.pool import soft_timeout_sighandler


def _limit(seconds):
    """As a worker's pool does: the same handler, by another signal."""
    signal.signal(signal.SIGALRM, soft_timeout_sighandler)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _history(customer, length):
    return [x * customer % 7 for x in range(length)]


def _weigh(history, rounds):
    total = 0
    for n in range(rounds):
        total += sum(history) % (n + 1)
    return total


def _nap():
    time.sleep(5)


def rank_customers(customers, seconds, length, rounds):
    _limit(seconds)
    ranked = {}
    for customer in customers:
        history = _history(customer, length)
        ranked[customer] = _weigh(history, rounds)
    return ranked


def close_month(month, seconds):
    _limit(seconds)
    _nap()


def reprice(catalogue, seconds):
    _limit(seconds)
    _nap()


def depth(node, tree):
    return 1 + max((depth(child, tree) for child in tree.get(node, ())), default=0)


def category_depth(node, tree):
    return depth(node, tree)


def distances(points):
    return numpy.zeros((points, points))


def resync(self, order):
    if not _ready(order):
        raise self.retry(countdown=0, max_retries=0)
    return order


def _ready(order):
    return order is None


resync.bound = True
