#2 import logging

import redis

#2 log = logging.getLogger(__name__)


def remember(host, port, key, value="1", password=None, timeout=0.3):
    store = redis.Redis(host=host, port=port, password=password, socket_timeout=timeout, socket_connect_timeout=timeout)
    #2 log.debug("remember %s", key)
    store.set(key, value)


def forget(host, port, key):
    store = redis.Redis(host=host, port=port, socket_timeout=0.3)
    store.delete(key)


def push(host, port, key, value="1"):
    store = redis.Redis(host=host, port=port, socket_timeout=1)
    store.set(key, "text")
    #2 log.debug("push")
    store.lpush(key, value)


def count(host, port, key):
    store = redis.Redis(host=host, port=port, socket_timeout=1)
    store.set(key, "tea")
    #3 log.debug("count")
    return store.incr(key)


def script(host, port, text, key):
    store = redis.Redis(host=host, port=port, socket_timeout=1)
    return store.eval(text, 1, key)


def store_all(host, port, value):
    store = redis.Redis(host=host, port=port, socket_timeout=1)
    #2 log.debug("all")
    store.set("all", value)


def lock(host, port, name):
    store = redis.Redis(host=host, port=port, socket_timeout=1)
    first = store.lock(name, timeout=5)
    first.acquire()
    store.delete(name)
    #2 log.debug("lock")
    first.release()


def publish(url, name, number):
    from celery import Celery

    app = Celery(broker=url)
    app.conf.broker_transport_options = {"socket_connect_timeout": 0.3, "max_retries": 1}
    #2 log.debug("publish")
    app.send_task(name, args=[number], retry=False)
