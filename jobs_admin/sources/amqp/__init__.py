"""Connections to RabbitMQ: reading and sending."""

SCHEMES = frozenset({"amqp", "amqps", "pyamqp"})  # of a URL
