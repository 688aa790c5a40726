"""Everything that is kept: PostgreSQL, Redis, MongoDB."""

import threading

import psycopg
import pymongo
import redis
import sqlalchemy as sa


def save_invoice(dsn, invoice):
    with psycopg.connect(dsn) as db:
        db.execute(
            "INSERT INTO invoices (id, tenant, number, reference, customer_email, amount)"
            " VALUES (%(id)s, %(tenant)s, %(number)s, %(reference)s, %(customer_email)s, %(amount)s)",
            invoice,
        )


def _open(url, **options): #B
    return sa.create_engine(url, pool_pre_ping=False, **options) #B


def totals(url, tenant):
    engine = sa.create_engine(url)
    with engine.begin() as db:
        return db.execute(sa.text("SELECT sum(amount) FROM invoices WHERE tenant = :tenant"), {"tenant": tenant}).scalar()


def add_lines(url, lines):
    engine = sa.create_engine(url)
    with engine.begin() as db:
        db.execute(sa.text("INSERT INTO invoice_lines (invoice_id, sku, qty) VALUES (:invoice_id, :sku, :qty)"), lines)


def transfer(dsn, first, second):
    """Two workers, one takes the accounts in the other order."""
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as two:
        one.execute("SET deadlock_timeout = '10s'")
        two.execute("SET deadlock_timeout = '100ms'")
        one.execute("UPDATE accounts SET balance = balance - 1 WHERE id = %s", (first,))
        two.execute("UPDATE accounts SET balance = balance - 1 WHERE id = %s", (second,))
        other = threading.Thread(target=one.execute, args=("UPDATE accounts SET balance = balance + 1 WHERE id = %s", (second,)))
        other.start()
        threading.Event().wait(0.2)
        try:
            two.execute("UPDATE accounts SET balance = balance + 1 WHERE id = %s", (first,))
        finally:
            two.close()
            other.join()


def settle(dsn, account, setup):
    with psycopg.connect(dsn) as holder, psycopg.connect(dsn) as db:
        holder.execute("SELECT * FROM accounts WHERE id = %s FOR UPDATE", (account,))
        db.execute(setup)
        db.execute("UPDATE accounts SET balance = 0 WHERE id = %s", (account,))


def count_open(dsn):
    with psycopg.connect(dsn, connect_timeout=3) as db:
        return db.execute("SELECT count(*) FROM invoices").fetchone()[0]


def bump(port, counter, fill):
    cache = redis.Redis(port=port, retry=None)
    if fill == "list":
        cache.delete(counter)
        cache.rpush(counter, "a")
    elif fill:
        cache.set(counter, fill)
    return cache.incr(counter)


def remember(host, port, key, value):
    cache = redis.Redis(host=host, port=port, socket_connect_timeout=2)
    cache.set(key, value, ex=3600)


def archive(url, document):
    client = pymongo.MongoClient(url, serverSelectionTimeoutMS=400)
    client["archive"]["documents"].insert_one(document)
