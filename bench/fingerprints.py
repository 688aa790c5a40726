"""Quality of fingerprints, by which errors are grouped: precision, recall and every miss, over the pairs of `tests/fingerprints`.

    python bench/fingerprints.py [pairs.jsonl …]

A pair counts as found when both sides have one fingerprint. Precision: of the pairs that were put together, how many are
one cause. Recall: of the pairs that are one cause, how many were put together. Prints JSON, for each file apart; without one, for
all sets: the first that rules were made with, and three that were each looked at after their first measure.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from jobs_admin.core.fingerprint import VERSION, fingerprint  # noqa: E402


def main(files: list[Path]) -> None:
    print(json.dumps({file.name: measured(file) for file in files}, indent=2))


def measured(file: Path) -> dict[str, object]:
    pairs = [json.loads(line) for line in file.read_text().splitlines()]
    began = time.perf_counter()
    values = [[fingerprint(**pair[side]).value for side in ("left", "right")] for pair in pairs]
    took = time.perf_counter() - began
    found = [left == right for left, right in values]
    right = sum(1 for pair, one in zip(pairs, found, strict=True) if one and pair["same"])
    wrongly = [pair["name"] for pair, one in zip(pairs, found, strict=True) if one and not pair["same"]]
    missed = [pair["name"] for pair, one in zip(pairs, found, strict=True) if not one and pair["same"]]
    return {
        "version": VERSION,
        "pairs": len(pairs),
        "precision": round(right / max(1, right + len(wrongly)), 4),
        "recall": round(right / max(1, right + len(missed)), 4),
        "put together wrongly": wrongly,
        "missed": missed,
        "microseconds each, nothing cached": round(took / max(1, 2 * len(pairs)) * 1e6, 1),
    }


if __name__ == "__main__":
    folder = ROOT / "tests/fingerprints"
    main(
        [Path(file) for file in sys.argv[1:]]
        or [folder / "pairs.jsonl", folder / "unseen.jsonl", folder / "unseen2.jsonl", folder / "unseen3.jsonl"]
    )
