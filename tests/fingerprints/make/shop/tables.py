#2 import logging

import pandas

#2 log = logging.getLogger(__name__)


def column(rows, name):
    frame = pandas.DataFrame(rows)
    #2 log.debug("column")
    return frame[name].sum()


def typed(rows, name):
    frame = pandas.DataFrame(rows)
    return frame[name].astype(int)


def merged(rows, others, on):
    #2 log.debug("merged")
    return pandas.DataFrame(rows).merge(pandas.DataFrame(others), on=on)


def read(path):
    return pandas.read_csv(path)


def dated(values):
    #2 log.debug("dated")
    return pandas.to_datetime(pandas.Series(values), format="%Y-%m-%d")


def aligned(left, right):
    return pandas.DataFrame(left, columns=right)
