import csv
import gzip
import io
import json
#2 import logging
import zipfile
from datetime import date
import xml.etree.ElementTree as tree

#2 log = logging.getLogger(__name__)


def read_json(text):
    #2 log.debug("read")
    return json.loads(text)


def read_feed(text):
    return [json.loads(line) for line in text.splitlines()]


def write_json(kind, n):
    #2 log.debug("write")
    return json.dumps({"value": {"day": date(2026, 1, n), "bytes": b"x" * n}[kind]})


def open_invoice(folder, name):
    path = "%s/%s" % (folder, name)
    #2 log.debug("open")
    with open(path) as file:
        return file.read()


def open_letter(folder, name):
    with open("%s/%s" % (folder, name)) as file:
        return file.read()


def decode(content, encoding="utf-8"):
    #2 log.debug("decode")
    return content.encode("latin-1").decode(encoding)


def encode(content, encoding="ascii"):
    return content.encode(encoding)


def unzip(content):
    #2 log.debug("unzip")
    return zipfile.ZipFile(io.BytesIO(content.encode("latin-1"))).namelist()


def member(name):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.csv", "a")
    #2 log.debug("member")
    return zipfile.ZipFile(packed).read(name)


def gunzip(content):
    return gzip.decompress(content.encode("latin-1"))


def rows(text, column):
    reader = csv.DictReader(io.StringIO(text))
    #2 log.debug("rows")
    return [int(row[column]) for row in reader]


def totals(text, column):
    return {row["sku"]: float(row[column]) for row in csv.DictReader(io.StringIO(text))}


def quoted(text):
    return list(csv.reader(io.StringIO(text), strict=True))


def parse(text):
    #2 log.debug("parse")
    return tree.fromstring(text)


def parse_lxml(text):
    from lxml import etree

    return etree.fromstring(text)


def path_lxml(text, path):
    from lxml import etree

    #2 log.debug("path")
    return etree.fromstring(text).xpath(path)


def settings_of(text):
    import yaml

    return yaml.safe_load(text)


def bucket(endpoint, retries=0):
    import boto3
    from botocore.config import Config

    config = Config(retries={"max_attempts": retries}, connect_timeout=1, read_timeout=1, s3={"addressing_style": "path"})
    #2 log.debug("bucket")
    return boto3.client("s3", endpoint_url=endpoint, region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b", config=config)


def fetch(endpoint, name, key, retries=0):
    return bucket(endpoint, retries).get_object(Bucket=name, Key=key)["Body"].read()


def keep(endpoint, name, key):
    #2 log.debug("keep")
    return bucket(endpoint).put_object(Bucket=name, Key=key, Body=b"x")


def keep_wrongly(endpoint, **options):
    return bucket(endpoint).put_object(**options)


def nameless(name, key):
    import os

    import boto3
    from botocore.config import Config

    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    client = boto3.client("s3", region_name="eu-west-1", config=Config(retries={"max_attempts": 0}))
    #2 log.debug("nameless")
    return client.get_object(Bucket=name, Key=key)
