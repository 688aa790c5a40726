#2 import logging
from sqlalchemy import create_engine, text

#2 log = logging.getLogger(__name__)

_TABLES = """
create table items (id integer primary key, sku varchar(20) not null, ean varchar(20), shelf integer references shelves (id), held integer,
  constraint items_sku_key unique (sku), constraint items_ean_key unique (ean), constraint held_is_positive check (held >= 0))
"""


def engine(url):
    #2 log.debug("engine")
    return create_engine(url)


def prepare(url):
    found = create_engine(url)
    with found.begin() as line:
        line.execute(text("drop table if exists items"))
        line.execute(text("drop table if exists shelves"))
        line.execute(text("create table shelves (id integer primary key)"))
        line.execute(text(_TABLES))
        line.execute(text("insert into items (id, sku, ean, held) values (1, 'A-17', '4711', 3), (2, 'B-99', '0815', 3), (3, 'tea', 'mug', 1)"))


def add(url, number, sku, ean, held=1):
    with engine(url).begin() as line:
        #2 log.debug("add %s", sku)
        line.execute(text("insert into items (id, sku, ean, held) values (:id, :sku, :ean, :held)"), {"id": number, "sku": sku, "ean": ean, "held": held})


def put_on_shelf(url, number, shelf):
    with engine(url).begin() as line:
        line.execute(text("update items set shelf = :shelf where id = :id"), {"shelf": shelf, "id": number})


def take(url, number, taken):
    with engine(url).begin() as line:
        line.execute(text("update items set held = held - :taken where id = :id"), {"taken": taken, "id": number})


def report(url, table, column, number):
    with engine(url).connect() as line:
        #3 log.debug("report")
        return line.execute(text("select %s from %s where id = :id" % (column, table)), {"id": number}).fetchall()


def one(url, sku):
    with engine(url).connect() as line:
        return line.execute(text("select id from items where sku = :sku"), {"sku": sku}).one()


def ordered(url, sku):
    from sqlalchemy.orm import Session, declarative_base
    from sqlalchemy import Column, Integer, String

    base = declarative_base()

    class Item(base):
        __tablename__ = "items"
        id = Column(Integer, primary_key=True)
        sku = Column(String)
        ean = Column(String)

    with Session(engine(url)) as session:
        session.add(Item(sku=sku, ean=sku))
        #2 log.debug("flush")
        session.commit()
