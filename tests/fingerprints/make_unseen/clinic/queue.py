import asyncio

import boto3
import botocore.config
import grpc
import pika
import websockets


def announce(host, port, patient):
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, connection_attempts=1))
    connection.channel().basic_publish("", "admissions", patient.encode())


def follow(port, ward):
    async def main():
        async with websockets.connect(f"ws://127.0.0.1:{port}/wards/{ward}") as feed:
            while True:
                await feed.recv()

    asyncio.run(main())


def dose(port, patient, timeout=3):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/pharmacy.Doses/Get")
        return call(patient.encode(), timeout=timeout)


def book_bed(port, table, bed):
    config = botocore.config.Config(retries={"max_attempts": 0})
    beds = boto3.client("dynamodb", endpoint_url=f"http://127.0.0.1:{port}", region_name="eu-central-1",
        aws_access_key_id="x", aws_secret_access_key="y", config=config)
    beds.put_item(TableName=table, Item={"bed": {"S": bed}}, ConditionExpression="attribute_not_exists(bed)")
