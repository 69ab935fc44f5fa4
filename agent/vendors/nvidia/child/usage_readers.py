"""What reads the use of the cards in one NVML session, loaded at the first question about use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from .driver_errors import DriverErrors

if TYPE_CHECKING:
    from .card_processes import CardProcesses
    from .card_usage import CardUsage


class UsageReaders:
    """The readers. An agent that does not measure use never loads their modules."""

    def __init__(self, nvml: Any, errors: DriverErrors) -> None:
        self._nvml = nvml
        self._errors = errors

    @cached_property
    def usage(self) -> CardUsage:
        from .card_usage import CardUsage

        return CardUsage(self._nvml, self._errors)

    @cached_property
    def processes(self) -> CardProcesses:
        from .card_processes import CardProcesses

        return CardProcesses(self._nvml)

    def close(self) -> None:
        if "usage" in vars(self):
            self.usage.close()
