"""The pods' cgroups of a node, where its agent can see them."""

from __future__ import annotations

from pathlib import Path

#: Names the root of the cgroup tree to the agent's process.
VARIABLE = "CAMPAIGN_CGROUPS"


class Cgroups:
    """What a container runtime does: a pod has a cgroup from its admission to its end."""

    def __init__(self, root: Path, *, seen: bool) -> None:
        self.root = root
        self._pods = root / "kubepods"
        if seen:
            self._pods.mkdir(parents=True)

    def add(self, uid: str) -> None:
        if self._pods.exists():
            self._of(uid).mkdir()

    def remove(self, uid: str) -> None:
        if self._pods.exists():
            self._of(uid).rmdir()

    def _of(self, uid: str) -> Path:
        return self._pods / f"pod{uid}"
