"""What is owed to pods follows pods, allocations and vendors, each soon after it changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from core.values import GPU, allocation
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.ledger import Ledger
from agent.core.cell import Cell
from agent.core.model import Owner
from agent.daemon.publishing.wanted_receipts import NAMED_ERRORS, WantedReceipts
from agent.scheduler_api import Candidate, Claim, Dialect, PodContainer, ServedClaim
from agent.scheduler_api.scheduler import AnnotationFilter
from agent.vendor_api.agent import ContainerEdits, Vendor

KEY = "acme.com/given"


def told(pod: Candidate, its: Sequence[ServedClaim]) -> Mapping[str, str]:
    return {KEY: " ".join(one for it in its for one in it.devices)}


def acme(receipt: object = told) -> Vendor:
    dialect = Dialect("acme", lambda *_: (), receipt=receipt, receipt_keys=(KEY,))  # type: ignore[arg-type]
    return Vendor("acme", "x:Y", "acme.com/card", lambda *_: ContainerEdits(), dialects=(dialect,))


def pod(name: str) -> Candidate:
    return Candidate(f"uid-{name}", "default", name, (PodContainer("main", {GPU: 1}),))


class Here:
    """A Receipting, and what it looks at."""

    def __init__(self) -> None:
        self.pods: Cell[KnownPods] = Cell(KnownPods())
        self.ledger = Ledger()
        self.configured: Cell[AnnotationFilter] = Cell(AnnotationFilter())
        self.vendors = [acme()]
        self.receipting = WantedReceipts(
            self.pods, self.ledger, self.configured, lambda: self.vendors, settle=0.001
        )

    def gives(self, name: str) -> None:
        """Allocate answers, as far as the ledger knows of it."""
        claim = Claim(f"uid-{name}", "default", name, "main", dialect="acme")
        self.ledger.record(allocation(name, ("c0",), claim=claim))

    def texts(self) -> Mapping[str, Mapping[str, str]]:
        return {it.pod: it.texts for it in self.receipting.wanted.value}

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(self.receipting.run)
            yield
            group.cancel_scope.cancel()


async def test_it_follows_the_ledger_the_pods_and_the_vendors() -> None:
    here = Here()
    here.gives("web")
    async with here.runs():
        here.ledger.confirm("web", Owner("uid-web", "main"))
        here.pods.set(KnownPods.of((pod("web"),)))
        await eventually(lambda: here.texts() == {"web": {KEY: "c0"}})
        held = here.ledger.get("web")
        assert held is not None
        here.ledger.record(replace(held, diverged=("c1",)))
        await eventually(lambda: here.texts() == {"web": {KEY: "c1"}})
        here.ledger.record(held)
        await eventually(lambda: here.texts() == {"web": {KEY: "c0"}})

        here.pods.set(KnownPods.of((replace(pod("web"), annotations={KEY: "c0"}),)))
        await eventually(lambda: here.texts() == {})

        here.pods.set(KnownPods.of((pod("web"),)))
        await eventually(lambda: here.texts())
        here.vendors.clear()
        here.configured.set(AnnotationFilter(("acme.com/",)))
        await eventually(lambda: here.texts() == {})


async def test_until_the_kubelet_confirms_it_no_pod_says_anything() -> None:
    here = Here()
    here.pods.set(KnownPods.of((pod("web"), pod("job"))))
    here.gives("web")

    await here.receipting.once()
    assert here.texts() == {}

    here.ledger.confirm("web", Owner("uid-job", "main"))
    await here.receipting.once()
    assert here.texts() == {}


async def test_what_is_wrong_is_told_once_of_few_pods_and_ends() -> None:
    def failing(pod: Candidate, its: Sequence[ServedClaim]) -> Mapping[str, str]:
        raise ValueError(f"no sense in {pod.name}")

    here = Here()
    names = [f"pod-{n}" for n in range(NAMED_ERRORS + 2)]
    here.pods.set(KnownPods.of(tuple(map(pod, names))))
    for name in names:
        here.gives(name)
        here.ledger.confirm(name, Owner(f"uid-{name}", "main"))
    here.vendors[:] = [acme(failing)]

    with capture_logs() as logs:
        await here.receipting.once()
        await here.receipting.once()

    assert here.receipting.error.startswith("default/pod-0: acme: no sense in pod-0; ")
    assert here.receipting.error.endswith("; and 2 more")
    assert [it["event"] for it in logs] == ["receipts not made"]
    here.vendors[:] = [acme()]
    await here.receipting.once()
    assert here.receipting.error == ""


@pytest.mark.parametrize("receipt", [told, None])
async def test_a_vendors_own_dialect_of_a_generic_name_is_the_one_that_counts(receipt: object) -> None:
    here = Here()
    (dialect,) = acme(receipt).dialects
    here.vendors[:] = [replace(acme(), dialects=(replace(dialect, name="hami"),))]
    here.pods.set(KnownPods.of((pod("web"),)))
    claim = Claim("uid-web", "default", "web", "main", dialect="hami")
    here.ledger.record(allocation("web", ("c0",), claim=claim, owner=Owner("uid-web", "main")))

    await here.receipting.once()

    assert bool(here.texts()) is (receipt is told)
