"""Versions of the store that let a worker's script take it over."""

from __future__ import annotations

from dashboard.setup.connections import REDIS, VALKEY, least_fixed_version
from tests.kit.cases import with_cases


@with_cases(
    "product, version, least",
    [
        (REDIS, "6.2.19", "6.2.20"),
        (REDIS, "6.2.20", None),
        (REDIS, "7.0.15", "7.2.11"),  # the line has no version with the fixes
        (REDIS, "7.2.10", "7.2.11"),
        (REDIS, "7.2.11", None),
        (REDIS, "7.4.5", "7.4.6"),
        (REDIS, "7.4.10", None),
        (REDIS, "8.0.3", "8.0.4"),
        (REDIS, "8.2.1", "8.2.2"),
        (REDIS, "8.4.0", None),
        (VALKEY, "7.2.11", "7.2.12"),
        (VALKEY, "8.0.6", "8.0.7"),
        (VALKEY, "8.1.5", "8.1.6"),
        (VALKEY, "8.1.6", None),
        (VALKEY, "9.0.2", "9.0.3"),
        (VALKEY, "9.0.3-rc1", None),
        (VALKEY, "9.1.0", None),
        (VALKEY, "10.0.0", None),
        (REDIS, "7.2", "7.2.11"),
        (REDIS, "?", None),
        (REDIS, "", None),
    ],
)
def test_a_version_below_the_fixes_of_its_line_has_the_least_to_upgrade_to(product, version, least):
    assert least_fixed_version(product, version) == least
