"""What leaves: mail, objects, documents."""

import smtplib
import subprocess
from email.message import EmailMessage

import boto3
import jinja2
from botocore.config import Config


def send_receipt(port, to, number):
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "billing@fulfil.example", to, f"Receipt {number}"
    mail.set_content("Thank you.")
    with smtplib.SMTP("127.0.0.1", port, timeout=3) as server:
        server.send_message(mail)


def _s3(endpoint):
    config = Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"})
    return boto3.client("s3", endpoint_url=endpoint, region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="x", config=config)


def load_document(endpoint, bucket, key):
    found = _s3(endpoint).get_object(Bucket=bucket, Key=key)
    return found["Body"].read()


def keep_document(endpoint, bucket, key):
    _s3(endpoint).put_object(Bucket=bucket, Key=key, Body=b"%PDF")


def to_pdf(source, target, tool):
    subprocess.run([tool, "-o", target, source], check=True, capture_output=True)


REMINDER = """Dear {{ customer.name }},
{% if order.late %}
your order {{ order.number }} of {{ order.shop.city.upper() }} is late.
{% endif %}
Pay {{ "%.2f"|format(order.total * vat.rate) }}.
"""


def reminder(customer, order, vat):
    pages = jinja2.Environment(loader=jinja2.DictLoader({"mail/reminder.txt": REMINDER}), undefined=jinja2.Undefined)
    return pages.get_template("mail/reminder.txt").render(customer=customer, order=order, vat=vat)
