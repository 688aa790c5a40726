"""Rules that watch the shop."""

from __future__ import annotations

from tests.kit.alerts import desk
from tests.kit.alerts import shop_rule as rule
