"""A set of Redis servers with Sentinels: a primary, a replica and three Sentinels, which anyone may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dashboard.setup.engine import die_with_parent, free_port, server_binary
from tests.kit.waiting import wait_until

SET, PASSWORD, USER, SENTINEL_PASSWORD = "shop-set", "pa:ss,wo;rd", "desk", "sentinels-own"
QUOTED = "pa%3Ass%2Cwo%3Brd"


class Server:
    """One process of the set, a server or a Sentinel."""

    def __init__(self, folder: Path, settings: str, *arguments: str, password: str) -> None:
        self.port = free_port()
        self.folder, self.password = folder, password
        folder.mkdir(parents=True)
        self.arguments = arguments
        self.settings = folder / "server.conf"
        self.settings.write_text(f'port {self.port}\nbind 127.0.0.1\ndir "{folder}"\nloglevel notice\n{settings}')
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [str(server_binary()), str(self.settings), *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            preexec_fn=die_with_parent,
        )
        log.close()
        wait_until(self.answers, f"the server at {self.port}", text=lambda: (self.folder / "log").read_text()[-600:])

    def client(self) -> redis.Redis:
        retry = Retry(NoBackoff(), 0)
        return redis.Redis(port=self.port, password=self.password, socket_timeout=2, decode_responses=True, retry=retry)

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


class SentinelSet:
    """The servers and Sentinels. `servers[0]` is the first primary."""

    def __init__(self, folder: Path) -> None:
        # A user of its own, with what docs/operations.md names.
        own = (
            f'requirepass "{PASSWORD}"\nmasterauth "{PASSWORD}"\nappendonly yes\nsave ""\nrepl-diskless-sync-delay 0\n'
            f'user {USER} on ">{PASSWORD}" ~* &* +@all\n'
        )
        self.servers = [Server(folder / "a", own, password=PASSWORD)]
        self.servers[0].start()
        first = self.servers[0].port
        self.servers.append(Server(folder / "b", f"{own}replicaof 127.0.0.1 {first}\n", password=PASSWORD))
        self.servers[1].start()
        wait_until(self.is_in_step, "the replica")
        watched = (
            f'requirepass "{SENTINEL_PASSWORD}"\nsentinel sentinel-pass "{SENTINEL_PASSWORD}"\n'
            f"sentinel monitor {SET} 127.0.0.1 {first} 2\n"
            f'sentinel auth-pass {SET} "{PASSWORD}"\nsentinel down-after-milliseconds {SET} 500\n'
            f"sentinel failover-timeout {SET} 2000\n"
        )
        self.sentinels = [Server(folder / f"s{n}", watched, "--sentinel", password=SENTINEL_PASSWORD) for n in range(3)]
        for sentinel in self.sentinels:
            sentinel.start()
        wait_until(self.is_known, "the Sentinels know each other and the replica")

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)

    @property
    def url(self) -> str:
        return f"redis+sentinel://{USER}:{QUOTED}@{self.hosts}/{SET}/0?sentinel_password={SENTINEL_PASSWORD}"

    @property
    def celery_url(self) -> str:
        return ";".join(f"sentinel://:{QUOTED}@127.0.0.1:{one.port}/0" for one in self.sentinels)

    @property
    def celery_options(self) -> dict[str, object]:
        return {"master_name": SET, "sentinel_kwargs": {"password": SENTINEL_PASSWORD}}

    def is_in_step(self) -> bool:
        roles = self.roles()
        return sorted(roles.values()) == ["master", "slave"] and all(
            server.client().info("replication").get("master_link_status", "up") == "up" for server in self.servers
        )

    def roles(self) -> dict[int, str]:
        found = {}
        for server in self.servers:
            try:
                with server.client() as client:
                    found[server.port] = client.info("replication")["role"]
            except redis.RedisError:
                continue
        return found

    def is_known(self) -> bool:
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                state = client.execute_command("SENTINEL", "MASTER", SET)
            pairs = dict(zip(state[::2], state[1::2], strict=True)) if isinstance(state, list) else state
            if int(pairs["num-slaves"]) < 1 or int(pairs["num-other-sentinels"]) < 2:
                return False
            if {"s_down", "o_down"} & set(str(pairs["flags"]).split(",")):
                return False
        return True

    @property
    def primary(self) -> Server:
        return next(server for server in self.servers if self.roles().get(server.port) == "master")

    @property
    def replica(self) -> Server:
        return next(server for server in self.servers if self.roles().get(server.port) == "slave")

    def heal(self) -> None:
        """Start what was killed, and wait until there are a primary and a replica in step, known to all Sentinels."""
        for server in [*self.servers, *self.sentinels]:
            if server.process is not None and server.process.poll() is not None:
                server.start()
            else:
                server.signal(signal.SIGCONT)
        wait_until(lambda: self.is_in_step() and self.is_known(), "a set in step")

    def stop(self) -> None:
        for server in [*self.sentinels, *self.servers]:
            if server.process is not None and server.process.poll() is None:
                server.kill()


def seconds_until(what) -> float:
    """Return the seconds until `what` is true without raising redis.RedisError."""
    began = time.monotonic()

    def is_so() -> bool:
        try:
            return bool(what())
        except redis.RedisError:
            return False

    wait_until(is_so, "an answer of the set")
    return time.monotonic() - began
