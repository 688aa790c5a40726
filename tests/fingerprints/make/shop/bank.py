#2 import logging

#2 log = logging.getLogger(__name__)


def transfer(dsn, statement, values=()):
    import psycopg2

    line = psycopg2.connect(dsn)
    try:
        #2 log.debug("transfer")
        with line.cursor() as cursor:
            cursor.execute(statement, values)
    finally:
        line.close()


def settle(dsn, statement, values=()):
    import psycopg

    with psycopg.connect(dsn) as line:
        #3 log.debug("settle")
        line.execute(statement, values)


def locked(dsn, number):
    import psycopg2

    first, second = psycopg2.connect(dsn), psycopg2.connect(dsn)
    try:
        #2 log.debug("locked")
        first.cursor().execute("select * from items where id = %s for update", (number,))
        second.cursor().execute("set lock_timeout = '100ms'")
        second.cursor().execute("update items set held = 5 where id = %s", (number,))
    finally:
        first.close()
        second.close()


def slow(dsn, seconds):
    import psycopg2

    line = psycopg2.connect(dsn, options="-c statement_timeout=100")
    with line.cursor() as cursor:
        #2 log.debug("slow")
        cursor.execute("select pg_sleep(%s)", (seconds,))
