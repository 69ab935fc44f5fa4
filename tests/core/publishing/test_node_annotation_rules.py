"""Annotations of the Node follow from what a vendor says of its devices and of what is given out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.core.errors import VendorError
from agent.core.model import Owner
from agent.core.publishing.node_annotation_rules import MAX_BYTES, annotations_of, grants, wrong_key
from agent.scheduler_api import Candidate, Claim
from agent.vendor_api.agent import ContainerEdits, Device, Grant, NodeFacts, Request, Vendor
from core.values import allocation

KEY, OTHER = "acme.com/devices", "acme.com/more"
DEVICES = (Device("c0", 0), Device("c1", 1))


def vendor(texts: Any, keys: tuple[str, ...] = (KEY, OTHER)) -> Vendor:
    def annotations(rules: Any, devices: Any, given: Any) -> Mapping[str, str | None]:
        found: Mapping[str, str | None] = texts(devices, given) if callable(texts) else texts
        return found

    return Vendor(
        "acme",
        "acme:Backend",
        "acme.com/xpu",
        lambda devices, request: ContainerEdits(),
        publishes=NodeFacts(annotations=annotations, annotation_keys=keys),
    )


def test_a_vendor_says_what_stands_there_and_what_it_does_not_say_shall_not() -> None:
    counted = vendor(lambda devices, given: {KEY: f"{len(given)}/{len(devices)}"})

    assert annotations_of(counted, (), DEVICES, (Grant(Request("a1", "r", ("i",)), ("c0",)),)) == {
        KEY: "1/2",
        OTHER: None,
    }
    assert annotations_of(vendor({KEY: None}), (), DEVICES, ()) == {KEY: None, OTHER: None}
    silent = replace(counted, publishes=replace(counted.publishes, annotations=None))
    assert annotations_of(silent, (), DEVICES, ()) == {KEY: None, OTHER: None}


@pytest.mark.parametrize(
    ("texts", "keys", "why"),
    [
        pytest.param({"acme.com/x": "1"}, (KEY,), "not among its annotation_keys", id="a foreign key"),
        pytest.param({KEY: 7}, (KEY,), "a text is needed, or None, and no int", id="a number"),
        pytest.param({}, ("devices",), "has no domain", id="no domain"),
        pytest.param({}, ("a.kubernetes.io/x",), "no vendor's", id="Kubernetes' own"),
        pytest.param({}, ("xpu-agent.io/labels",), "no vendor's", id="the agent's own"),
        pytest.param({}, ("acme.com/a b",), "letters, digits", id="no key at all"),
        pytest.param({}, tuple(f"acme.com/{n}" for n in range(17)), "at most 16", id="too many"),
        pytest.param({KEY: "x" * MAX_BYTES}, (KEY,), f"at most {MAX_BYTES} work", id="too large"),
        pytest.param([1], (KEY,), "TypeError", id="no mapping"),
        pytest.param(lambda *_: 1 / 0, (KEY,), "ZeroDivisionError", id="a bug"),
    ],
)
def test_what_can_not_be_written_is_an_error_of_the_vendor(
    texts: Any, keys: tuple[str, ...], why: str
) -> None:
    with pytest.raises(VendorError, match=why):
        annotations_of(vendor(texts, keys), (), DEVICES, ())


def test_a_vendors_domain_may_be_any_but_those_of_kubernetes_and_ours() -> None:
    assert [wrong_key(it) for it in ("metax-tech.com/node-gpu-devices", "hami.io/x", "notk8s.io/x")] == [
        ""
    ] * 3


def test_what_is_given_out_has_the_claims_parameters_and_the_cards_that_it_has() -> None:
    claim = Claim("u", "ns", "pod", "c", ("c1",), {"core": "30"})
    mine = replace(allocation("a1", ["c0::0"], claim=claim, partitions=("s1",)), diverged=("c1",))
    others = replace(allocation("a2", ["d0"]), vendor="other")

    (found,) = grants([mine, others], "acme")

    request = Request("a1", mine.resource, mine.ids, {"core": "30"})
    assert found == Grant(request, ("c1",), ("s1",), None, "c")


def test_what_is_given_out_has_the_pod_of_its_owner_where_that_is_shown() -> None:
    shown, other = Candidate("u", "ns", "pod"), Candidate("v", "ns", "other")
    its = [allocation("a1", ["c0"], owner=Owner("u", "c")), allocation("a2", ["c1"])]

    found = grants(its, "acme", (other, shown))

    assert [(it.pod, it.container) for it in found] == [(shown, "c"), (None, "")]
