"""Connections to RabbitMQ, and what is read and sent over them."""

SCHEMES = frozenset({"amqp", "amqps", "pyamqp"})  # of a URL
