"""Utilization by GPM, NVML's performance monitoring: of cards from Hopper on, and of their GPU instances."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple


class GpmFigures(NamedTuple):
    """Parts from 0 to 1 of a device's units that were busy; None where GPM does not tell."""

    sm: float | None = None
    tensor: float | None = None


class GpmReader:
    """Reads the figures between two samples: the one of the last reading, and one of now.

    A failure leaves the figures unknown. The next reading then takes a first sample again.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        #: NVML's own samples by device: of the last reading, and of the one before that.
        self._samples: dict[str, list[Any]] = {}
        self._question = nvml.c_nvmlGpmMetricsGet_t()
        self._question.version = nvml.NVML_GPM_METRICS_GET_VERSION
        metrics = (nvml.NVML_GPM_METRIC_SM_UTIL, nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL)
        self._question.numMetrics = len(metrics)
        for place, metric in enumerate(metrics):
            self._question.metrics[place].metricId = metric

    def read(self, uuid: str, handle: Any, gi: int | None = None) -> GpmFigures:
        """The figures of a card, or of one of its GPU instances; `handle` is the card's, `uuid` any name."""
        try:
            return self._read(uuid, handle, gi)
        except self._nvml.NVMLError:
            self._free(uuid)
            return GpmFigures()

    def keep(self, uuids: Collection[str]) -> None:
        """Free the samples of all other devices. At the end of the session, free all."""
        for uuid in self._samples.keys() - set(uuids):
            self._free(uuid)

    def _read(self, uuid: str, handle: Any, gi: int | None) -> GpmFigures:
        nvml = self._nvml
        if uuid not in self._samples and not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return GpmFigures()
        samples = self._samples.setdefault(uuid, [])
        if len(samples) < 2:
            samples.append(nvml.nvmlGpmSampleAlloc())
        else:
            samples.reverse()
        if gi is None:
            nvml.nvmlGpmSampleGet(handle, samples[-1])
        else:
            nvml.nvmlGpmMigSampleGet(handle, gi, samples[-1])
        if len(samples) < 2:
            return GpmFigures()
        self._question.sample1, self._question.sample2 = samples
        nvml.nvmlGpmMetricsGet(self._question)
        sm, tensor = self._question.metrics[: self._question.numMetrics]
        return GpmFigures(_part(sm), _part(tensor))

    def _free(self, uuid: str) -> None:
        for sample in self._samples.pop(uuid, ()):
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except self._nvml.NVMLError:
                continue  # the driver may be gone, and the sample with it


def _part(metric: Any) -> float | None:
    """The value of nvmlGpmMetric_t, which is percent; None where NVML did not give one."""
    return None if metric.nvmlReturn or not math.isfinite(metric.value) else metric.value / 100
