"""What a sample says of devices that the vendor does not list is shown nowhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from agent.core.attribution.scheduler_promises import Promises
from agent.core.usage.unlisted_devices import ListedSample, listed
from agent.core.usage.usage_report import VendorSample

from .cards_in_use import CARD, GIB, card, device, held, moment, process

STRANGE = "GPU-strange"
OF_CARD, OF_PROCESS = card(GIB), process(1)
GOOD = VendorSample((OF_CARD,), (OF_PROCESS,), {"usage": "1 figure cannot be used"})
WITH_STRANGERS = structs.replace(
    GOOD,
    usages=(OF_CARD, card(GIB, STRANGE)),
    processes=(process(2, uuid=STRANGE), OF_PROCESS, process(3, uuid=STRANGE)),
)


def test_a_sample_of_listed_devices_stays_as_it_is() -> None:
    assert listed("acme", GOOD, moment()).sample is GOOD
    assert listed("acme", VendorSample(None, None), moment()) == ListedSample(VendorSample(None, None))


def test_entries_of_other_devices_are_left_out_and_counted() -> None:
    found = listed("acme", WITH_STRANGERS, moment())
    assert found == ListedSample(GOOD, frozenset({STRANGE}), 2)


def test_a_device_that_the_last_sample_named_too_is_complained_of() -> None:
    found = listed("acme", WITH_STRANGERS, moment(), frozenset({STRANGE}))
    no_device = f"left out: {STRANGE} is no device that the vendor lists"
    assert found.sample.complaints == {
        "usage": f"1 figure cannot be used; 1 entry is {no_device}",
        "processes": f"2 entries are {no_device}",
    }


def test_a_device_of_another_vendor_is_not_listed() -> None:
    now = moment(devices=(device(CARD), device(STRANGE, vendor="other")))
    assert listed("acme", WITH_STRANGERS, now).sample == GOOD


SLICE = "sgpu-9"
OF_SLICE = VendorSample((OF_CARD, card(GIB, SLICE)), (process(1, uuid=SLICE),))
WITH_PARENT = structs.replace(OF_SLICE, usages=(OF_CARD, replace(card(GIB, SLICE), parent=CARD)))


@pytest.mark.parametrize(
    ("sample", "now"),
    [
        (OF_SLICE, moment(devices=(device(CARD), device(SLICE, parent=CARD)))),
        (OF_SLICE, moment(held("p", partitions=(SLICE,)))),
        (WITH_PARENT, moment()),
    ],
    ids=["listed", "made for a pod", "made by others, by its card"],
)
def test_a_slice_of_a_listed_card_stays(sample: VendorSample, now: Promises) -> None:
    assert listed("acme", sample, now) == ListedSample(sample)


def test_a_slice_of_a_card_that_is_not_listed_is_left_out() -> None:
    sample = structs.replace(OF_SLICE, usages=(OF_CARD, replace(card(GIB, SLICE), parent=STRANGE)))
    found = listed("acme", sample, moment())
    assert (found.sample.usages, found.sample.processes, found.processes) == ((OF_CARD,), (), 1)
