"""Extended resources of the Node follow from what a vendor counts, and are none that the kubelet counts."""

from __future__ import annotations

from typing import Any

import pytest

from agent.core.errors import VendorError
from agent.core.publishing.extended_resource_rules import MAX_COUNT, counts_of, wrong_key
from agent.vendor_api.agent import ContainerEdits, Device, NodeFacts, ResourceRule, Vendor

NAME, OTHER = "acme.com/card-count", "acme.com/board-count"
DEVICES = (Device("c0", 0), Device("c1", 1))


def vendor(counts: Any, keys: tuple[str, ...] = (NAME, OTHER)) -> Vendor:
    def counted(rules: Any, devices: Any) -> Any:
        return counts(devices) if callable(counts) else counts

    return Vendor(
        "acme",
        "acme:Backend",
        "acme.com/xpu",
        lambda devices, request: ContainerEdits(),
        publishes=NodeFacts(
            extended_resources=counted if counts is not None else None, extended_resource_keys=keys
        ),
    )


def test_a_vendor_says_how_many_and_what_it_does_not_say_shall_not_be_there() -> None:
    assert counts_of(vendor(lambda devices: {NAME: len(devices)}), (), DEVICES) == {NAME: 2, OTHER: None}
    assert counts_of(vendor({NAME: 0, OTHER: None}), (), DEVICES) == {NAME: 0, OTHER: None}
    assert counts_of(vendor(None), (), DEVICES) == {NAME: None, OTHER: None}


@pytest.mark.parametrize(
    ("counts", "keys", "why"),
    [
        pytest.param({"acme.com/x": 1}, (NAME,), "not among its extended_resource_keys", id="a foreign name"),
        pytest.param({NAME: "1"}, (NAME,), "'1' is no count", id="a text"),
        pytest.param({NAME: True}, (NAME,), "True is no count", id="a truth"),
        pytest.param({NAME: -1}, (NAME,), "-1 is no count", id="less than none"),
        pytest.param({NAME: MAX_COUNT + 1}, (NAME,), "is no count", id="more than there are"),
        pytest.param({}, ("cpu",), "has no domain", id="no domain"),
        pytest.param({}, ("a.kubernetes.io/x",), "no vendor's", id="Kubernetes' own"),
        pytest.param({}, ("xpu-agent.io/x",), "no vendor's", id="the agent's own"),
        pytest.param({}, ("Acme.com/x",), "not a domain", id="no name at all"),
        pytest.param({}, tuple(f"acme.com/{n}" for n in range(17)), "at most 16", id="too many"),
        pytest.param({}, ("acme.com/xpu",), "the kubelet counts by itself", id="the vendor's resource"),
        pytest.param({}, ("acme.com/rule",), "the kubelet counts by itself", id="a rule's resource"),
        pytest.param([1], (NAME,), "TypeError", id="no mapping"),
        pytest.param(lambda *_: 1 / 0, (NAME,), "ZeroDivisionError", id="a bug"),
    ],
)
def test_what_can_not_be_written_is_an_error_of_the_vendor(
    counts: Any, keys: tuple[str, ...], why: str
) -> None:
    with pytest.raises(VendorError, match=why):
        counts_of(vendor(counts, keys), (ResourceRule("acme.com/rule"),), DEVICES)


def test_a_vendors_domain_may_be_any_but_those_of_kubernetes_and_ours() -> None:
    assert [wrong_key(it) for it in ("enflame.com/gcu-count", "hami.io/x", "notk8s.io/x")] == [""] * 3
