"""Rights of a source's workers in the store, as arguments of `ACL SETUSER name …`.

A worker reads and writes its own source's data, reads what the desk publishes for all, and can access nothing else. Its
scripts run with the same rights.
"""

from __future__ import annotations

from jobs_admin.core import keys

# Commands that redis-py and the Node agent send with each connection.
_CONNECTION = ("ping", "select", "client|setname", "client|setinfo", "acl|whoami")
_SCRIPTS = ("eval", "evalsha", "script|load", "time")
_TRANSACTIONS = ("multi", "exec", "discard")
_READS = (
    "exists", "get", "hexists", "hget", "hgetall", "hkeys", "hlen", "hmget", "lindex",
    "memory|usage", "mget", "pttl", "sismember", "smembers",
    "type", "xlen", "zcard", "zcount", "zrange", "zrangebyscore", "zrank", "zscore",
)  # fmt: skip
_WRITES = (
    "del", "expire", "hdel", "hincrby", "hset", "hsetnx", "lpush", "ltrim", "pexpire", "sadd", "set", "srem", "xadd", "zadd", "zrem",
    "zremrangebyscore",
)  # fmt: skip
COMMANDS = (*_CONNECTION, *_SCRIPTS, *_TRANSACTIONS, *_READS, *_WRITES)


def user_of(source: str) -> str:
    """Return the name that `manage.py worker-acl` gives to a source's workers."""
    return f"redrive-{source}"


def read_keys(source: str, prefix: str = keys.PREFIX) -> list[str]:
    """Return the keys that a source's workers may read and not write."""
    return [keys.switch(prefix), keys.policies(prefix), keys.policies_version(prefix), keys.pauses(source, prefix)]


def written_keys(source: str, prefix: str = keys.PREFIX) -> list[str]:
    """Return patterns of keys that a source's workers read and write.

    A source name contains no special character of patterns.
    """
    exact = (
        keys.failures,
        keys.failures_bytes,
        keys.workers,
        keys.dropped,
        keys.in_hand,
        keys.kept_boots,
        keys.breakers,
    )
    return [
        *(name(source, prefix) for name in exact),
        keys.tasks(source, "*", prefix),
        keys.configuration(source, "*", prefix),
        keys.kept(source, "*", prefix),
        *(f"{prefix}:{{{source}}}:{family}*" for family in keys.LAYOUTS),
        f"{prefix}:{{{source}}}:once:*",
    ]


def beyond(source: str, prefix: str = keys.PREFIX) -> list[tuple[str, ...]]:
    """Return commands that the user must not be allowed to run, for ACL DRYRUN."""
    another = "other" if source != "other" else "another"
    return [
        ("XADD", keys.failures(another, prefix), "*", "v", "1"),
        ("HSET", keys.workers(another, prefix), "w", "{}"),
        ("SET", keys.switch(prefix), "off"),
        ("HSET", keys.policies(prefix), "p", "{}"),
        ("SET", keys.pauses(source, prefix), "{}"),
        ("KEYS", "*"),
        ("FLUSHALL",),
    ]


def rules(source: str, prefix: str = keys.PREFIX) -> list[str]:
    """Return the user's definition without passwords, as arguments of ACL SETUSER. It replaces earlier rights."""
    return [
        "on",
        "resetkeys",
        "resetchannels",
        "clearselectors",
        "-@all",
        *(f"+{command}" for command in COMMANDS),
        *(f"~{pattern}" for pattern in written_keys(source, prefix)),
        *(f"%R~{key}" for key in read_keys(source, prefix)),
    ]
