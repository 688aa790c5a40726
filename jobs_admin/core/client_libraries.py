"""Client libraries and the service that each calls: by Python module, Node package and standard-library file."""

from __future__ import annotations

import re

from jobs_admin.core.traces import Frame

# Names of unspecific services.
ANY_HTTP, ANY_DATABASE, ANY_BROKER = "http", "database", "broker"

_PYTHON = {
    ANY_HTTP: "requests urllib3 httpx httpcore aiohttp urllib http h11 h2 pycurl tornado treq zeep",
    "redis": "redis valkey redis_cluster coredis",
    "postgresql": "psycopg psycopg2 psycopg_pool asyncpg pg8000",
    "mysql": "pymysql MySQLdb mysql aiomysql asyncmy mariadb",
    "mongodb": "pymongo motor mongoengine",
    "oracle": "cx_Oracle oracledb",
    "sqlserver": "pymssql",
    "odbc": "pyodbc",
    "amqp": "amqp pika aio_pika aiormq aioamqp",
    "kafka": "kafka aiokafka confluent_kafka cimpl",
    "nats": "nats",
    "smtp": "smtplib aiosmtplib",
    "ftp": "ftplib aioftp",
    "imap": "imaplib",
    "ldap": "ldap ldap3",
    "ssh": "paramiko asyncssh",
    "grpc": "grpc grpclib",
    "elasticsearch": "elasticsearch elastic_transport opensearchpy",
    "aws": "botocore boto3 aiobotocore s3transfer",
    "google": "google",
    "azure": "azure",
    "memcached": "pymemcache bmemcached memcache pylibmc",
    "cassandra": "cassandra",
    "clickhouse": "clickhouse_driver clickhouse_connect",
    "neo4j": "neo4j",
    "snowflake": "snowflake",
    "websocket": "websockets websocket",
    "stripe": "stripe",
    "slack": "slack_sdk slack",
    "twilio": "twilio",
    "openai": "openai",
    "anthropic": "anthropic",
    "sentry": "sentry_sdk",
}
_NODE = {
    ANY_HTTP: "axios node-fetch undici got superagent request needle ky follow-redirects",
    "redis": "ioredis redis @redis",
    "postgresql": "pg pg-pool pg-protocol postgres",
    "mysql": "mysql mysql2 mariadb",
    "mongodb": "mongodb mongoose",
    "sqlserver": "mssql tedious",
    "amqp": "amqplib",
    "kafka": "kafkajs",
    "nats": "nats",
    "smtp": "nodemailer",
    "grpc": "@grpc",
    "elasticsearch": "@elastic @opensearch-project",
    "aws": "aws-sdk @aws-sdk @smithy",
    "google": "googleapis google-auth-library gaxios @google-cloud",
    "azure": "@azure",
    "stripe": "stripe",
    "slack": "@slack",
    "twilio": "twilio",
    "websocket": "ws",
}
OF_MODULE = {module: service for service, modules in _PYTHON.items() for module in modules.split()}
_OF_PACKAGE = {package: service for service, packages in _NODE.items() for package in packages.split()}
# Layers over several services: the underlying error identifies the service.
OF_LAYER = {"sqlalchemy": ANY_DATABASE, "django": ANY_DATABASE, "kombu": ANY_BROKER, "tortoise": ANY_DATABASE}
_OF_STANDARD_LIBRARY = {
    "smtplib.py": "smtp",
    "ftplib.py": "ftp",
    "imaplib.py": "imap",
    "http/client.py": ANY_HTTP,
    "urllib/request.py": ANY_HTTP,
}
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([A-Za-z_]\w{0,60})")
_NODE_PACKAGE = re.compile(r"node_modules/(@?[\w.-]{1,60})")

# Default ports of a service.
PORTS = {
    "http": (80,), "https": (443,), "redis": (6379,), "postgresql": (5432,), "mysql": (3306,), "mongodb": (27017,),
    "oracle": (1521,), "sqlserver": (1433,), "amqp": (5672, 5671), "kafka": (9092,), "nats": (4222,), "smtp": (25, 465, 587),
    "ftp": (21,), "imap": (143, 993), "ldap": (389, 636), "ssh": (22,), "memcached": (11211,), "elasticsearch": (9200,),
}  # fmt: skip


def service_of_type(error: str) -> str:
    """Return the service whose client library defines this error type (`smtplib.SMTPException`); "" for none."""
    root, dot, rest = error.partition(".")
    if not dot:
        return ""
    if root == "django" and not rest.startswith("db."):
        return ""
    if root == "http" and not rest.startswith("client."):
        return ""
    return OF_MODULE.get(root) or OF_LAYER.get(root, "")


def service_of_frame(frame: Frame) -> str:
    """Return the service that a frame's library calls; "" for the application and other libraries."""
    if frame.is_application:
        return ""
    file = frame.file.replace("\\", "/")
    if packages := _NODE_PACKAGE.findall(file):
        return _OF_PACKAGE.get(packages[-1], "")
    if packages := _PACKAGE.findall(file):
        return OF_MODULE.get(packages[-1], "")
    if file.startswith("node:internal/deps/undici/"):
        return ANY_HTTP
    if "/lib/" not in file and "/python" not in file:
        return ""
    return next((service for name, service in _OF_STANDARD_LIBRARY.items() if file.endswith(f"/{name}")), "")
