"""Fixtures of the tests of BullMQ: a server, and a producer and worker of each major."""

from __future__ import annotations

from tests.kit.bullmq import bull, bullmq_client, server
