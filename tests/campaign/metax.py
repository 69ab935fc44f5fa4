"""MetaX's cards in the hands of the campaign: slices on the compiled stub of their library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scenarios.metax import MetaX

from agent.testing.node_kubelet import RunOptions

MARK = "xpu-"
SPEC = "metax-tech.com-sgpu.json"
#: Slices of others: card, MiB, percent; the first as one that nobody chose for would be.
FOREIGN = ((0, 4096, 6), (1, 128, 1))
#: What a call of the vendor contract waits for.
CALLS = {"prepare": "CreateSgpu", "release": "RemoveSgpu", "partitions": "GetSgpuInfo"}
STEPS = tuple(
    (symbol, when) for symbol in ("CreateSgpu", "SetSgpuAlias", "RemoveSgpu") for when in ("before", "after")
)


class MetaXCards(MetaX):
    """In mode sgpu, with slices that nobody of ours made."""

    def __init__(self, directory: Path, count: int) -> None:
        super().__init__(directory, count)
        self.mode = "sgpu"
        self._cdi = directory / "cdi"
        self._counts = [0] * count
        self._order = list(range(count))
        for card, memory, compute in FOREIGN:
            self.stub.make_slice(card, memory, compute)

    # Faults

    def fail(self, index: int) -> None:
        """Count one more error that only a fresh start ends."""
        self._counts[index] += 1
        self.stub.ecc(index, dram=self._counts[index])

    def reset(self, index: int) -> None:
        """Let the counts begin anew, which they do with the driver alone."""
        self._counts[index] = 0
        self.stub.ecc(index)

    def heal(self, index: int) -> None:
        """A count is no less for that nobody counts."""

    def load(self) -> None:
        """Load the driver anew: slices, those of others too, and counts are gone."""
        super().load()
        self._counts = [0] * len(self._counts)

    def hide(self) -> None:
        """Let the library find no driver, which is there: sysfs shows it, and it keeps what it has."""
        self.stub.driver_gone()

    def show(self) -> None:
        self.stub.clear()

    def remove(self, index: int) -> None:
        self.stub.remove(index)

    def restore(self, index: int) -> None:
        self.stub.restore(index)

    def renumber(self) -> None:
        """Let the library find the cards in another order."""
        self._order = [self._order[-1], *self._order[:-1]]
        self.stub.order(*self._order)

    def garbage(self) -> None:
        self.stub.fail("GetDeviceInfo", 999)

    def hang_in(self, call: str) -> None:
        self.stub.hang(CALLS[call])

    def dies_at(self, symbol: str, when: str) -> None:
        """Let the vendor's process die when it comes by, once."""
        (self.stub.kill_before if when == "before" else self.stub.kill_after)(symbol)

    # Slices

    def there(self) -> Iterator[Mapping[str, Any]]:
        """As the campaign sees slices: the card's uuid, and whose it is."""
        for it in self.stub.slices():
            allocation = it.alias.removeprefix(MARK) if it.alias.startswith(MARK) else None
            yield {"id": it.uuid, "uuid": self.stub.uuid(it.slot), "allocation": allocation}

    def take(self, name: str) -> None:
        """Remove a slice from under whoever has it."""
        found = next(it for it in self.stub.slices() if it.uuid == name)
        self.stub.vanish(found.slot, found.id)

    def told(self, options: RunOptions) -> frozenset[str]:
        """The cards whose slices' device nodes the container gets by its CDI names, as their spec stands."""
        spec = json.loads((self._cdi / SPEC).read_text())
        nodes = {
            node["path"]
            for it in spec["devices"]
            if f"{spec['kind']}={it['name']}" in options.cdi_devices
            for node in it["containerEdits"].get("deviceNodes", ())
        }
        return frozenset(
            self.stub.uuid(it.slot) for it in self.stub.slices() if f"/dev/dri/renderD{it.minor}" in nodes
        )
