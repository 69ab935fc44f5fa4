"""Whatever a scheduler's plugin does, the agent goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.core.errors import SchedulerError
from agent.daemon.guarded_scheduler import guarded
from agent.scheduler_api import Scheduler
from agent.scheduler_api.node_checks import ConfigMapQuery, PodQuery, SchedulerChecks
from agent.scheduler_api.node_report import NodeReport, ReportFile, ReportObject
from agent.schedulers.koordinator.node_report import NODE_REPORT

GROUPS = {"report": NodeReport, "report.object": ReportObject, "report.file": ReportFile}
#: The path of each function of a report.
FUNCTIONS = [
    f"{path}.{field.name}"
    for path, group in GROUPS.items()
    for field in fields(group)
    if "Callable" in str(field.type)
]
#: Of these the contract allows any value.
OF_ANY_TYPE = "report.object.listed"


def scheduler(path: str, function: Callable[..., Any]) -> Scheduler:
    """A scheduler with this function at this path of its report."""
    group, _, name = path.rpartition(".")
    changed: dict[str, Any] = {name: function}
    if group != "report":
        part = group.removeprefix("report.")
        changed = {part: replace(getattr(NODE_REPORT, part), **changed)}
    return Scheduler("acme", report=replace(NODE_REPORT, **changed))


def call(of: Scheduler, path: str) -> Any:
    value: Any = of
    for name in path.split("."):
        value = getattr(value, name)
    return value()


def fails(*_: object) -> Any:
    raise KeyError("spec")


def test_every_function_of_a_report_is_among_these() -> None:
    assert len(FUNCTIONS) == 17
    assert {"report.choose", "report.object.judge", "report.file.text"} <= {*FUNCTIONS}


@pytest.mark.parametrize("path", FUNCTIONS)
def test_a_function_that_raises_is_named_with_its_plugin(path: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        call(guarded(scheduler(path, fails)), path)

    assert str(caught.value) == f"acme: its plugin fails in {path}: KeyError: 'spec'"


@pytest.mark.parametrize("path", [it for it in FUNCTIONS if it != OF_ANY_TYPE])
def test_an_answer_of_another_type_than_the_contract_s_is_a_fault(path: str) -> None:
    with pytest.raises(SchedulerError, match="its answer is 5"):
        call(guarded(scheduler(path, lambda: 5)), path)


@pytest.mark.parametrize("path", ["report.object.wanted", "report.object.withdrawn"])
def test_an_object_that_cannot_be_sent_is_a_fault(path: str) -> None:
    with pytest.raises(SchedulerError, match="not JSON serializable"):
        call(guarded(scheduler(path, lambda: {"spec": {1}})), path)


def test_a_file_of_another_format_is_no_fault_of_the_plugin() -> None:
    def refuses() -> Any:
        raise ValueError("no list of cards")

    with capture_logs() as logs, pytest.raises(ValueError, match="no list of cards"):
        call(guarded(scheduler("report.file.cards", refuses)), "report.file.cards")

    assert logs == []


def test_a_fault_is_logged_once_until_the_function_works_again() -> None:
    answers = iter([5, 5, (), 5])
    it = guarded(scheduler("report.passed_over", lambda: next(answers)))
    with capture_logs() as logs:
        for is_fault in (True, True, False, True):
            if is_fault:
                with pytest.raises(SchedulerError):
                    call(it, "report.passed_over")
            else:
                assert call(it, "report.passed_over") == ()

    assert [log["function"] for log in logs] == ["report.passed_over"] * 2
    assert logs[0]["error"] == "its answer is 5; a Sequence is needed"


def test_the_queries_of_the_doctor_are_guarded_too() -> None:
    checks = SchedulerChecks(
        pods={"all": PodQuery(keep=fails), "every": PodQuery()}, config_map=ConfigMapQuery("config", fails)
    )
    of_doctor = guarded(Scheduler("acme", checks=checks)).checks
    assert of_doctor is not None
    assert of_doctor.pods["every"].keep is None
    assert of_doctor.config_map is not None

    for query in (of_doctor.pods["all"].keep, of_doctor.config_map.namespace):
        assert query is not None
        with pytest.raises(SchedulerError, match=r"acme: its plugin fails in checks\."):
            query({})
