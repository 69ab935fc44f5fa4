"""The behaviour that changed from one kubelet release to the next."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Release:
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a release such as 1.36."""
        match = re.fullmatch(r"v?1\.(\d+)(\.\d+)?", text)
        if match is None:
            raise ValueError(f"{text!r} is no Kubernetes release; write one such as '1.36'")
        return cls(int(match[1]))

    @property
    def per_endpoint(self) -> bool:
        """Register answers before it dials, its options count, and each endpoint ends alone."""
        return self.minor <= 24

    @property
    def per_socket(self) -> bool:
        """Plugins of one resource are told apart by their sockets."""
        return self.minor >= 37

    @property
    def dials_within_register(self) -> bool:
        """A plugin that gives up its Register call ends the dialling as well."""
        return self.minor >= 35

    @property
    def wipes_files(self) -> bool:
        """The start removes every file from the plugin directory, not just sockets."""
        return self.minor <= 32

    @property
    def leaves_deprecation_file(self) -> bool:
        return self.minor <= 24

    @property
    def empty_answer(self) -> str:
        """How the kubelet prints an AllocateResponse without containers."""
        old = "&AllocateResponse{ContainerResponses:[]*ContainerAllocateResponse{},}"
        return old if self.minor <= 33 else ""

    @property
    def hints_only_where_devices_are(self) -> bool:
        return self.minor >= 35

    @property
    def reports_health(self) -> bool:
        """ResourceHealthStatus is on: a health flip updates the status of the pod."""
        return self.minor >= 36

    @property
    def lists_active_pods(self) -> bool:
        return self.minor >= 34

    @property
    def serves_get(self) -> bool:
        return self.minor >= 34

    @property
    def serves_allocatable(self) -> bool:
        return self.minor >= 23
