"""sysfs and /dev as Enflame's driver has them, for the cards of the stub."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from efml_stub import DRIVER, Card, EfmlStub

#: The kernel gives it; nothing may rely on the number.
MAJOR = 239
#: What white-label drivers call the folder of their cards.
FOLDERS = ("enflame", "zixiao")


class Tree:
    """The files of a node, below `sysfs` and `root` of a directory; what is in them a test may write anew."""

    def __init__(self, directory: Path, stub: EfmlStub, folder: str = FOLDERS[0]) -> None:
        self.stub, self.folder = stub, folder
        self.sysfs, self.root = directory / "sys", directory / "host"
        version = self.sysfs / "module/enflame/version"
        version.parent.mkdir(parents=True)
        version.write_text(f"{DRIVER}\n")
        self._make("/dev/gcuctl")
        for slot in stub.slots:
            self.add(slot)
        stub.access_point(f"{self.sysfs}/bus/pci/devices/")

    def path(self, slot: int) -> Path:
        """The card's directory, as its address leads there."""
        return self.sysfs / "bus/pci/devices" / self.stub.card(slot).bdf

    def add(self, slot: int) -> None:
        """Put a card in: slots 0 to 3 on NUMA node 0, unless the stub was told otherwise."""
        card = self.stub.card(slot)
        files = self._files(card)
        device = self.sysfs / f"devices/pci0000:{slot // 4}a/0000:{slot // 4}a:00.0" / card.bdf
        for name, text in files.items():
            (device / name).parent.mkdir(parents=True, exist_ok=True)
            (device / name).write_text(f"{text}\n")
        self.path(slot).parent.mkdir(parents=True, exist_ok=True)
        self.path(slot).symlink_to(device)
        self._make(f"/dev/gcu{card.minor}")

    def remove(self, slot: int) -> None:
        """Take the card off the bus; its node stays until the driver notices."""
        self.path(slot).unlink()

    def add_back(self, slot: int) -> None:
        [device] = self.sysfs.glob(f"devices/*/*/{self.stub.card(slot).bdf}")
        self.path(slot).symlink_to(device)

    def write(self, slot: int, name: str, text: str) -> None:
        """Write a file of the card's anew: device_state, ssm/status, numa_node."""
        (self.path(slot) / name).write_text(f"{text}\n")

    def beat(self, slot: int) -> None:
        """Let the card's firmware count on; one that does not is dead."""
        count = self.path(slot) / "ssm/count"
        self.write(slot, "ssm/count", str(int(count.read_text()) + 1))

    def no_driver(self) -> None:
        """Unload the driver: what it added to the bus's own files is gone."""
        shutil.rmtree(self.sysfs / "module/enflame")
        for slot in self.stub.slots:
            for folder in (self.folder, "ssm"):
                shutil.rmtree(self.path(slot) / folder)
            (self.path(slot) / "device_state").unlink()

    def _files(self, card: Card) -> dict[str, str]:
        """What the words of `device_state` and `ssm/status` are, beside 0 for awake, is our assumption."""
        return {
            "vendor": "0x1e36",
            "device": "0xc035",
            "class": "0x120000",
            "numa_node": str(card.numa),
            f"{self.folder}/gcu{card.logic}/dev": f"{MAJOR}:{card.minor}",
            "ssm/chipid": card.uuid,
            "ssm/count": "1",
            "ssm/status": "0",
            "device_state": "normal",
        }

    def _make(self, node: str) -> None:
        """A link to a node that every machine has, since not everybody may make some."""
        path = self.root / node.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.devnull)
