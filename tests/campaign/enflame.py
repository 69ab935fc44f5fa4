"""Enflame's cards in the hands of the campaign: sliced by the double of their tool, shared, counted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scenarios.enflame import GB, Enflame

from agent.testing.node_kubelet import RunOptions
from agent.vendors.enflame.shared.cdi_spec import PREFIX, SLICE
from agent.vendors.enflame.shared.constants import CDI_FILE

#: What a call of the vendor contract waits for.
CALLS = {"prepare": "create", "release": "destroy", "partitions": "list"}
#: Codes of the two families that say nothing of driver or card.
_FAIL, _UNKNOWN = 254, 999


class EnflameCards(Enflame):
    """Slots that are sliced have a slice each that nobody of ours made."""

    def __init__(self, directory: Path, count: int, sliced: int) -> None:
        super().__init__(directory, count)
        self.dialect = "gcushare-v4"
        self.sized(*[16 * GB] * count)
        self._cdi = directory / "cdi"
        self._own = directory / "state/vendors/enflame"
        self._counts = [0] * count
        self._order = list(range(count))
        self._sliced = range(sliced)
        self.foreigners_come()

    # Faults

    def fail(self, index: int) -> None:
        """Count one more error that only a fresh start ends."""
        self._counts[index] += 1
        self.stub.ecc(index, double=self._counts[index])

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
        """Let the library answer nothing; the driver is there, and keeps what it has."""
        self.stub.fail("Efml*", _FAIL)
        self.stub.fail("efml*", _UNKNOWN)

    def show(self) -> None:
        self.stub.clear()

    def remove(self, index: int) -> None:
        self.stub.remove(index)

    def restore(self, index: int) -> None:
        self.stub.restore(index)

    def renumber(self) -> None:
        """Let library and tool find the cards in another order."""
        self._order = [self._order[-1], *self._order[:-1]]
        self.stub.order(*self._order)

    def garbage(self) -> None:
        self.stub.fail("EfmlGetDevInfo", _UNKNOWN)

    def hang_in(self, call: str) -> None:
        self.stub.efsmi_hangs(CALLS[call])

    def behave(self) -> None:
        super().behave()
        self.stub.efsmi_works()

    def dies_at(self, command: str, when: str, *, caller: bool) -> None:
        """Let the tool die, or the vendor's process that runs it, at a command, once."""
        self.stub.efsmi_kills(command, when, caller=caller)

    # Slices

    def foreigners_come(self) -> None:
        """Let cards have a slice each that nobody of ours made."""
        for slot in self._sliced:
            self.stub.make_instance(slot)

    def make(self) -> str:
        """Make a slice as a person would, on a card that is sliced already; empty where none has room."""
        for slot in self.stub.drs():
            with suppress(Exception):  # the tool's own word for a card without room
                it = self.stub.make_instance(slot)
                return f"{it.id}:{it.uuid}"
        return ""

    def there(self) -> Iterator[Mapping[str, Any]]:
        """As the campaign sees slices: the card's uuid, and whose it is by what the vendor wrote down."""
        ours = dict(self._ours())
        for it in self.slices:
            yield {"id": f"{it.id}:{it.uuid}", "uuid": self.uuids[it.slot], "allocation": ours.get(it.uuid)}

    def _ours(self) -> Iterator[tuple[str, str]]:
        for path in self._own.glob("slices-*.json"):
            with suppress(FileNotFoundError):  # removed with the last slice of its card
                for allocation, uuid in json.loads(path.read_text())["ours"]:
                    yield uuid, allocation

    def take(self, name: str) -> None:
        """Remove a slice from under whoever has it."""
        self.stub.vanish(name.partition(":")[2])

    def told(self, options: RunOptions) -> frozenset[str]:
        """The cards that the container sees; of a slice, where it is that its CDI name leads to."""
        if not options.cdi_devices:
            return frozenset(map(self.named, options.env[self.visible].split(",")))
        spec = json.loads((self._cdi / CDI_FILE).read_text())
        env = {
            text
            for it in spec["devices"]
            if f"{spec['kind']}={it['name']}" in options.cdi_devices
            for text in it["containerEdits"]["env"]
        }
        return frozenset(self.uuids[it.slot] for it in self.slices if f"{SLICE}={PREFIX}{it.uuid}" in env)
