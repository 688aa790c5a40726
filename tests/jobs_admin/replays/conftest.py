from __future__ import annotations

from tests.kit.sources import demo_worker as worker
