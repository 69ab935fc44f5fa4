"""The doctor's check of the sampling of use: what the finding says of a vendor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.config import Config
from agent.config.settings import UsageSettings
from agent.doctor.measured_use import UNSAMPLED, use
from agent.http.inspect_document import InspectDocument
from agent.http.usage.usage_document import UsageDocument, VendorSampling
from agent.scheduler_api.node_checks import Observed

from .surveyed import NOWHERE, around


@pytest.mark.parametrize("error", ["acme: sampling has ended", "sampling has ended"])
def test_a_vendor_without_samples_is_named_once(error: str) -> None:
    document = UsageDocument(sampling=(VendorSampling(vendor="acme", error=error),))
    surroundings = replace(
        around(config=Config(NOWHERE, usage=UsageSettings(enabled=True))),
        inspected=Observed(InspectDocument()),
        use=Observed(document),
    )

    assert list(use(surroundings)) == [UNSAMPLED.found("acme: sampling has ended")]
