"""Reads how much of the cards and MIG devices is in use, and what else NVML measures of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from agent.vendor_api.backend import Usage
from agent.vendors.nvidia.shared import constants

from . import faults, mig
from .cards import NvidiaCard, NvidiaReading
from .driver_errors import DriverErrors
from .gpm import GpmReader


class CardUsage:
    """Reads the usage within one NVML session. All calls come from one thread at a time."""

    def __init__(self, nvml: Any, errors: DriverErrors) -> None:
        self._nvml = nvml
        self._errors = errors
        self._gpm = GpmReader(nvml)

    def read(self, cards: Collection[NvidiaCard]) -> list[Usage]:
        """The usage of these cards and of their MIG devices. A device without any figure is left out.

        A lost card is listed with the errors that the driver reported of it, if there were any.
        """
        self._gpm.keep({uuid for card in cards for uuid in card.uuids})
        found = (usage for card in cards for usage in (self._card(card), *self._slices(card)))
        return [usage for usage in found if usage != Usage(usage.uuid)]

    def close(self) -> None:
        self._gpm.keep(())

    def _card(self, card: NvidiaCard) -> Usage:
        errors, last = self._errors.of(card.uuid)
        figures = {} if card.handle is None else self._figures(card)
        return Usage(card.uuid, driver_errors=errors, last_driver_error=last, **figures)

    def _figures(self, card: NvidiaCard) -> dict[str, Any]:
        """The fields of `Usage` that NVML tells of a card now, None where NVML does not tell."""
        nvml, reading = self._nvml, NvidiaReading(self._nvml, card.handle)
        rates = reading.get("nvmlDeviceGetUtilizationRates", None)  # not in MIG mode
        gpm = self._gpm.read(card.uuid, card.handle)
        encoder, _ = reading.get("nvmlDeviceGetEncoderUtilization", (None, 0))
        decoder, _ = reading.get("nvmlDeviceGetDecoderUtilization", (None, 0))
        power = reading.get("nvmlDeviceGetPowerUsage", None)
        clock = reading.get("nvmlDeviceGetClockInfo", None, nvml.NVML_CLOCK_SM)
        memory_clock = reading.get("nvmlDeviceGetClockInfo", None, nvml.NVML_CLOCK_MEM)
        figures = {
            **_memory(reading),
            "utilization": _scaled(rates.gpu, per=100) if rates else gpm.sm,
            "memory_utilization": _scaled(rates.memory, per=100) if rates else None,
            "tensor_utilization": gpm.tensor,
            "encoder_utilization": _scaled(encoder, per=100),
            "decoder_utilization": _scaled(decoder, per=100),
            "power": _scaled(power, per=1000),
            # Of the last discovery: NVML takes some milliseconds to tell it.
            "energy": _scaled(card.device.counters.get("energy-mj"), per=1000),
            "temperature": reading.get("nvmlDeviceGetTemperature", None, nvml.NVML_TEMPERATURE_GPU),
            "memory_temperature": _memory_temperature(reading),
            "clock": _scaled(clock, times=1e6),
            "memory_clock": _scaled(memory_clock, times=1e6),
            "ecc_errors": _ecc_errors(reading),
        }
        return {} if reading.fault is faults.LOST else figures

    def _slices(self, card: NvidiaCard) -> Iterator[Usage]:
        """The usage of the card's MIG devices: their memory, and what GPM tells of their GPU instance.

        GPM does not tell several MIG devices in one GPU instance apart.
        """
        instances = Counter(device.attributes.get(constants.GI) for device in card.slices)
        for device, handle in mig.handles(self._nvml, card):
            memory = _memory(NvidiaReading(self._nvml, handle))
            gi = device.attributes.get(constants.GI)
            if gi is None or instances[gi] > 1:
                yield Usage(device.uuid, **memory)
            else:
                gpm = self._gpm.read(device.uuid, card.handle, int(gi))
                yield Usage(device.uuid, utilization=gpm.sm, tensor_utilization=gpm.tensor, **memory)


def _memory(reading: NvidiaReading) -> dict[str, Any]:
    """The fields of `Usage` about memory.

    The first version of the call is all that drivers before R510 have. What the driver reserves is then a
    part of what is used, and not known by itself.
    """
    nvml, handle = reading.nvml, reading.handle
    memory = reading.attempt(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2), None)
    reserved = {"memory_reserved": memory.reserved} if memory else {}
    memory = memory or reading.get("nvmlDeviceGetMemoryInfo", None)
    return {"memory_total": memory.total, "memory_used": memory.used, **reserved} if memory else {}


def _memory_temperature(reading: NvidiaReading) -> int | None:
    nvml = reading.nvml
    values = reading.get("nvmlDeviceGetFieldValues", None, [nvml.NVML_FI_DEV_MEMORY_TEMP])
    return None if values is None or values[0].nvmlReturn else int(values[0].value.uiVal)


def _ecc_errors(reading: NvidiaReading) -> dict[str, int]:
    """Memory errors since the driver was loaded, by kind. Empty for a card without ECC."""
    nvml = reading.nvml
    kinds = {
        "corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        "uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    }
    counts = {
        name: reading.get("nvmlDeviceGetTotalEccErrors", None, kind, nvml.NVML_VOLATILE_ECC)
        for name, kind in kinds.items()
    }
    return {name: count for name, count in counts.items() if count is not None}


def _scaled(value: float | None, *, times: float = 1, per: float = 1) -> float | None:
    return None if value is None else value * times / per
