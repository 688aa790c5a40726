"""Checked configuration of an SQS source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs_admin.core import service_url
from jobs_admin.sources.base import SourceRefused, SourceSettings, refuse_unknown_options

_OPTIONS = {"dead_letter_queues", "prefix", "endpoint_url", "read_only", "every_s"}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_REGION = re.compile(r"[a-z0-9-]{0,40}")


@dataclass(frozen=True, slots=True)
class Settings:
    region: str  # "": from the SDK's own configuration
    endpoint_url: str  # "": from the region
    queues: tuple[str, ...]
    dead: tuple[str, ...]  # dead-letter queues; empty: from the redrive policies
    prefix: str
    is_read_only: bool
    every_s: float

    @classmethod
    def from_source(cls, given: SourceSettings) -> Settings:
        """Check the settings of a source. Raises SourceRefused, with a sentence."""
        name, options = given.name, given.options
        refuse_unknown_options(name, options, _OPTIONS)
        queues, dead = _names(name, "queues", given.queues), _names(name, "dead_letter_queues", options)
        prefix = options.get("prefix", "")
        if not isinstance(prefix, str) or (prefix and not _NAME.fullmatch(prefix)):
            raise SourceRefused(f"Source {name}: prefix must be the start of queue names.")
        if not (queues or dead or prefix):
            raise SourceRefused(
                f'Source {name}: set queues (queues = ["orders"]), dead_letter_queues or prefix. Redrive removes dead '
                "letters from their queues, so it does not select queues automatically."
            )
        is_read_only = options.get("read_only", False)
        if not isinstance(is_read_only, bool):
            raise SourceRefused(f"Source {name}: read_only must be true or false.")
        region, endpoint_url = _region(name, given.url), _endpoint(name, options)
        return cls(region, endpoint_url, queues, dead, prefix, is_read_only, _every_s(name, options))

    @property
    def is_aws(self) -> bool:
        """Return whether the server is AWS.

        Only AWS names the source queue of each message that a redrive policy moved.
        """
        host = service_url.split(self.endpoint_url).hostname if self.endpoint_url else ""
        return not host or host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))

    def is_of_source(self, queue: str) -> bool:
        """Return whether `queues` or `prefix` name a queue; True if neither is set."""
        if not self.queues and not self.prefix:
            return True
        return queue in (*self.queues, *self.dead) or bool(self.prefix and queue.startswith(self.prefix))


def _region(name: str, url: str) -> str:
    scheme, separator, region = url.partition("://")
    region = region.removesuffix("/")
    if scheme != "sqs" or not separator or not _REGION.fullmatch(region):
        raise SourceRefused(
            f'Source {name}: its URL must be sqs:// and a region, such as "sqs://eu-west-1". Credentials come from the '
            "environment, the profile or the role, as for any program that uses the AWS SDK."
        )
    return region


def _endpoint(name: str, options: Mapping[str, Any]) -> str:
    value = options.get("endpoint_url", "")
    try:
        if not isinstance(value, str) or (value and service_url.split(value).scheme not in ("http", "https")):
            raise ValueError("no URL")
        if value and (service_url.split(value).username or not service_url.split(value).hostname):
            raise ValueError("a login")
    except ValueError:
        raise SourceRefused(
            f"Source {name}: endpoint_url must be http:// or https:// and a host, without a login."
        ) from None
    return value


def _every_s(name: str, options: Mapping[str, Any]) -> float:
    value = options.get("every_s", 5)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 3600:
        raise SourceRefused(f"Source {name}: every_s must be a number of seconds from 1 to 3600.")
    return float(value)


def _names(name: str, option: str, given: Any) -> tuple[str, ...]:
    value = given.get(option, ()) if isinstance(given, Mapping) else given
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) and _NAME.fullmatch(one) for one in value):
        raise SourceRefused(f'Source {name}: {option} must be a list of queue names, such as ["orders"], not of URLs.')
    return tuple(dict.fromkeys(value))
