"""Reads meters: over head-ends that answer HTTP, and telegrams that arrive as bytes."""

import asyncio
import json
import struct
import urllib.request

import aiohttp


class MeterError(Exception):
    pass


class TelegramError(ValueError):
    pass


def fetch_profile(base, meter, day):
    request = urllib.request.Request(f"{base}/meters/{meter}/profile?day={day}") #A
    with urllib.request.urlopen(request, timeout=5) as answer: #A
        return json.load(answer) #A
    headers = {"Accept": "application/json"} #B
    request = urllib.request.Request(f"{base}/meters/{meter}/profile?day={day}", headers=headers) #B
    with urllib.request.urlopen(request, timeout=5) as answer: #B
        return json.load(answer) #B


async def _register(base, meter):
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{base}/meters/{meter}/registers") as answer:
            answer.raise_for_status()
            return await answer.json()


def fetch_registers(base, meter):
    return asyncio.run(_register(base, meter))


async def _ping(base, meter):
    timeout = aiohttp.ClientTimeout(total=0.3)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        async with session.get(f"{base}/meters/{meter}/ping") as answer:
            return float((await answer.json())["age"])


async def _sweep(base, meters):
    async with asyncio.TaskGroup() as group:
        for meter in meters:
            group.create_task(_ping(base, meter))


def sweep(base, meters):
    asyncio.run(_sweep(base, meters))


async def _first(base, meter):
    async with asyncio.timeout(0.2):
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{base}/meters/{meter}/ping") as answer:
                return await answer.json()


def wake(base, meter):
    return asyncio.run(_first(base, meter))


def switch_off(base, meter):
    return asyncio.run(_first(base, meter))


def read_once(base, meter):
    try:
        with urllib.request.urlopen(f"{base}/meters/{meter}/now", timeout=5) as answer:
            return json.load(answer)
    except OSError as error:
        status = getattr(error, "code", None)
    if status:
        raise MeterError(f"head-end returned {status} for meter {meter}")


def commission(meters, location):
    if location not in meters:
        raise MeterError(f"market location {location} is not commissioned")
    return meters[location]


def decode(telegram):
    data = bytes.fromhex(telegram)
    kind, length, serial = struct.unpack_from(">BBH", data)
    if length != len(data):
        raise TelegramError(f"telegram too short: {len(data)} of {length} bytes")
    if sum(data[:-1]) % 256 != data[-1]:
        raise TelegramError(f"checksum mismatch: expected {sum(data[:-1]) % 256:#04x}, got {data[-1]:#04x}")
    return kind, serial


def unpack_rows(payload, fields):
    return struct.unpack(">" + "d" * fields, bytes.fromhex(payload))


def register_of(registers, contract):
    found = registers[contract]
    return found["value"]


def pick(reading):
    return {name: reading[name] for name in ("meter", "at", "contract", "value")}
