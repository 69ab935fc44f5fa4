"""Values of the model for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from agent.core.devices.health_rules import HealthRecord
from agent.core.model import Allocation, AllocationSource, AllocationState, Owner
from agent.scheduler_api import Claim
from agent.vendor_api.agent import Fault, HealthEvent, Proof, State

#: Anything that UTF-8 can carry.
texts = st.text(st.characters(codec="utf-8"), max_size=20)
#: Anything that a Python string can hold, lone surrogates too.
hostile_texts = st.text(st.characters(), max_size=200)
times = st.floats(min_value=0, max_value=4e9, allow_nan=False)

uuids = st.sampled_from([f"GPU-{n:08x}" for n in range(6)])
proofs = st.sampled_from(list(Proof))

sticky_faults = st.builds(
    Fault,
    reason=st.sampled_from(["xid-48", "xid-79", "gone"]),
    message=texts,
    cleared_by=st.lists(proofs, min_size=1, max_size=4, unique=True).map(tuple),
)
transient_faults = st.builds(Fault, reason=st.sampled_from(["hot", "busy"]), message=texts)
unknown_faults = st.builds(Fault, reason=st.just("not-watched"), state=st.just(State.UNKNOWN))
faults = st.one_of(sticky_faults, transient_faults, unknown_faults)
events = st.builds(
    HealthEvent,
    uuid=st.none() | uuids,
    fault=st.none() | faults,
    proof=st.none() | proofs,
)

records = st.builds(
    HealthRecord,
    fault=st.none() | faults,
    since=times,
    told_healthy=st.booleans(),
    bad=st.integers(0, 9),
    good=st.integers(0, 9),
    good_since=st.none() | times,
    lost=texts,
    lost_since=st.none() | times,
    counters=st.dictionaries(texts, st.integers(0, 2**63 - 1), max_size=3),
)

owners = st.builds(Owner, uid=texts, container=texts, namespace=texts, pod=texts)
parameters = st.dictionaries(texts, texts, max_size=2)
claims = st.builds(
    Claim,
    uid=texts,
    namespace=texts,
    pod=texts,
    container=texts,
    devices=st.lists(texts, max_size=2).map(tuple),
    parameters=parameters,
    remark=texts,
    dialect=texts,
)
allocations = st.builds(
    Allocation,
    id=texts,
    resource=texts,
    vendor=texts,
    ids=st.lists(texts, max_size=3).map(tuple),
    devices=st.lists(texts, max_size=3).map(tuple),
    state=st.sampled_from(list(AllocationState)),
    since=times,
    # As a file says it; what a scheduler alone gave loses its reason.
    source=st.sampled_from(
        [it for it in AllocationSource if it not in (AllocationSource.ALLOCATE, AllocationSource.ANNOTATION)]
    ),
    reason=texts,
    owner=st.none() | owners,
    partitions=st.lists(texts, max_size=2).map(tuple),
    claim=st.none() | claims,
    diverged=st.lists(texts, max_size=2).map(tuple),
    handed=st.none() | parameters,
    unit=st.sampled_from(["", "1", "0.001"]),
)
