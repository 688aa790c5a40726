"""What pyproject.toml leaves to the build: the dependencies of an installed Redrive, read from the files that the locks come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.requirements import Requirement


class Dependencies(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dependencies and extras. `extras` of the hook's table: extra -> names in requirements.in that only it installs."""
        server = self._ranges("requirements.in")
        extras = {extra: [one for one in server if one.name in names] for extra, names in self.config["extras"].items()}
        optional = {one.name for ranges in extras.values() for one in ranges}
        # The guard's package alone has `jobs_admin.core`, `jobs_admin.worker` and `jobs_admin/__init__.py`.
        ours = f"redrive-worker=={metadata['version']}"
        metadata["dependencies"] = [ours, *(str(one) for one in server if one.name not in optional)]
        for extra in ("sqs", "oidc"):
            extras[extra] = self._ranges(f"requirements-{extra}.in")
        extras["dev"] = self._ranges("requirements-test.in")
        metadata["optional-dependencies"] = {extra: list(map(str, ranges)) for extra, ranges in extras.items()}

    def _ranges(self, name: str) -> list[Requirement]:
        lines = (Path(self.root) / name).read_text().splitlines()
        texts = [line.partition("#")[0].strip() for line in lines]
        return [Requirement(text) for text in texts if text and not text.startswith("-")]
