"""Databases and the objects of three clouds."""

import boto3
import botocore.config
import google.api_core.exceptions
import oracledb
import psycopg
import requests
import sqlalchemy
from azure.storage.blob import BlobClient


class LegacyError(Exception):
    pass


def save_reading(url, reading):
    engine = sqlalchemy.create_engine(url)
    statement = sqlalchemy.text("INSERT INTO readings (meter, contract, at, kwh) VALUES (:meter, :contract, :at, :kwh)")
    with engine.begin() as connection:
        connection.execute(statement, reading)


def import_row(dsn, row):
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO readings (meter, contract, at, kwh) VALUES (%s, %s, %s, %s::text::numeric)", row) #A
        statement = "INSERT INTO readings (meter, contract, at, kwh) VALUES (%s, %s, %s, %s::text::numeric)" #B
        connection.execute(statement, row) #B


def export(dsn, tables):
    counts = {}
    with psycopg.connect(dsn) as connection:
        for table in tables:
            counts[table] = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return counts


def aggregate(dsn, seconds):
    with psycopg.connect(dsn, options="-c statement_timeout=150") as connection:
        return connection.execute("SELECT sum(kwh), pg_sleep(%s) FROM readings", (seconds,)).fetchone()


def legacy_totals(host, port, service):
    with oracledb.connect(user="grid", password="x", dsn=f"{host}:{port}/{service}") as connection:
        return connection.cursor().execute("select sum(kwh) from totals").fetchone()


def legacy_call(answers, procedure, key):
    answer = answers[key]
    if not answer.startswith("OK"):
        raise LegacyError(f"{procedure}: {answer}")


def fetch_blob(base, container, name):
    blob = BlobClient(base + "/gridstore", container, name, credential={"account_name": "gridstore", "account_key": "a2V5"}, retry_total=0)
    return blob.download_blob().readall()


def fetch_object(base, bucket, name):
    answer = requests.get(f"{base}/storage/v1/b/{bucket}/o/{name}", timeout=5)
    if answer.status_code != 200:
        raise google.api_core.exceptions.from_http_response(answer)
    return answer.content


def fetch_secret(base, name):
    client = boto3.client("secretsmanager", endpoint_url=base, region_name="eu-central-1", aws_access_key_id="a", aws_secret_access_key="b",
        config=botocore.config.Config(retries={"max_attempts": 0}))
    return client.get_secret_value(SecretId=name)["SecretString"]
