"""Each fault that is made is found, named with its place, and told what mends it; a healthy node has none."""

from __future__ import annotations

import pytest
from schedulers.koordinator.doctor import koordinator_faults  # noqa: F401

from agent.doctor.checks import CHECKS, FINDING_KINDS
from agent.scheduler_api.findings import Severity

from .faults import FAULTS
from .patient import Patient

KINDS = {it.name: it for it in FINDING_KINDS}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_is_found_with_its_place_why_it_matters_and_what_mends_it(
    name: str, patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = await FAULTS[name](patient, monkeypatch)

    findings = await patient.findings()

    found = [it for it in findings if it.kind == name]
    assert found, "\n".join(map(str, findings))
    assert any(said in it.what for it in found), found
    assert {it.severity for it in found} == {KINDS[name].severity}
    for it in found:
        assert it.why == KINDS[name].why
        assert it.remedy
        assert "{" not in it.remedy.replace("{KubeletPodResources: true}", "")


def test_every_kind_of_finding_is_made_by_a_fault() -> None:
    assert set(FAULTS) == set(KINDS)
    assert len(KINDS) == len(FINDING_KINDS)


async def test_a_healthy_node_has_every_check_made_and_nothing_that_stops(patient: Patient) -> None:
    await patient.start()

    findings = await patient.findings()

    assert {it.check for it in findings} == {it.name for it in CHECKS}
    assert [it for it in findings if it.severity is not Severity.OK] == []


async def test_a_program_whose_socket_begins_like_an_agent_s_is_no_agent(patient: Patient) -> None:
    await patient.start()
    await patient.listen(patient.kubelet.plugin_dir / "xpu-smi.sock")

    assert [it for it in await patient.findings() if it.severity is not Severity.OK] == []
