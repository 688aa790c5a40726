import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import numpy


def scale(readings, weights):
    table = numpy.array(readings, dtype=float)
    weighted = table * numpy.array(weights, dtype=float)
    return numpy.concatenate([weighted, [[1.0, 1.0, 1.0]]])


def trend(matrix):
    return numpy.linalg.solve(numpy.array(matrix, dtype=float), numpy.ones(len(matrix)))


def one_bill(bill):
    if bill.get("die"):
        os._exit(9)
    return int(bill["amount"])


def bills(rows):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(one_bill, rows)


def bills_apart(rows):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(one_bill, rows))
