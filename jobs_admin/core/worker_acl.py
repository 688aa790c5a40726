"""The rights of a source's workers in the store, as its access control list takes them: `ACL SETUSER name …`.

A worker reads and writes what belongs to its own source, reads what the desk publishes for all, and reaches nothing else. Its
scripts run under the same rights.
"""

from __future__ import annotations

from jobs_admin.core import keys

# Of redis-py and the Node agent, with each connection.
_CONNECTION = ("ping", "select", "client|setname", "client|setinfo", "acl|whoami")
_SCRIPTS = ("eval", "evalsha", "script|load", "time")
_TRANSACTIONS = ("multi", "exec", "discard")
_READS = (
    "exists", "get", "hexists", "hget", "hgetall", "hkeys", "hlen", "lindex", "memory|usage", "mget", "pttl", "sismember", "smembers",
    "type", "xlen", "zcard", "zcount", "zrange", "zrangebyscore", "zrank", "zscore",
)  # fmt: skip
_WRITES = (
    "del", "expire", "hdel", "hincrby", "hset", "hsetnx", "lpush", "ltrim", "pexpire", "sadd", "set", "srem", "xadd", "zadd", "zrem",
    "zremrangebyscore",
)  # fmt: skip
COMMANDS = (*_CONNECTION, *_SCRIPTS, *_TRANSACTIONS, *_READS, *_WRITES)


def user_of(source: str) -> str:
    """The name that `manage.py worker-acl` gives to the user of a source's workers."""
    return f"redrive-{source}"


def read_keys(source: str, prefix: str = keys.PREFIX) -> list[str]:
    """The keys that a source's workers read and none writes."""
    return [keys.switch(prefix), keys.policies(prefix), keys.policies_version(prefix), keys.pauses(source, prefix)]


def written_keys(source: str, prefix: str = keys.PREFIX) -> list[str]:
    """Patterns of what a source's workers read and write. A source's name holds no character that means something in one."""
    exact = (keys.failures, keys.failures_bytes, keys.workers, keys.dropped, keys.in_hand, keys.kept_boots)
    return [
        *(name(source, prefix) for name in exact),
        keys.tasks(source, "*", prefix),
        keys.configuration(source, "*", prefix),
        keys.kept(source, "*", prefix),
        *(f"{prefix}:{{{source}}}:{family}*" for family in keys.LAYOUTS),
        f"{prefix}:{{{source}}}:once:*",
    ]


def beyond(source: str, prefix: str = keys.PREFIX) -> list[tuple[str, ...]]:
    """Commands that such a user must not be allowed: for ACL DRYRUN."""
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
    """Everything of a user but its passwords, as arguments of ACL SETUSER. They replace what it was allowed before."""
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
