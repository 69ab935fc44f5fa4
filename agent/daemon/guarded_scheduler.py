"""Guards a scheduler's plugin: whatever its functions for reports and for the doctor do, the agent goes on.

Core guards the functions that read and write pods: claims, receipts, measures and external use.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, get_args

import structlog

from agent.core.errors import SchedulerError
from agent.daemon.field_types import field_hints, function_hint, wrong_value
from agent.scheduler_api.node_checks import SchedulerChecks
from agent.scheduler_api.node_report import NodeReport
from agent.scheduler_api.scheduler import Scheduler
from agent.vendor_api.text import error_text

log = structlog.get_logger()
T = TypeVar("T")

#: Functions that may raise ValueError, for texts and objects of other authors.
REFUSING = ("report.file.cards",)
#: Functions that return an object which the agent sends to the API server.
SENT = ("report.object.wanted", "report.object.withdrawn")


def guarded(scheduler: Scheduler) -> Scheduler:
    """The scheduler; its functions for reports and for the doctor's pods raise `SchedulerError` alone.

    A function that raises anything else, or returns a value of another type than its field says, is logged
    once until it works again. Its caller keeps what was published before.
    """
    name, report, checks = scheduler.name, scheduler.report, scheduler.checks
    return replace(
        scheduler,
        report=_guarded_report(name, report) if report is not None else None,
        checks=_guarded_checks(name, checks) if checks is not None else None,
    )


def _guarded_report(name: str, report: NodeReport) -> NodeReport:
    return replace(
        _with_guards(name, report, "report."),
        object=_with_guards(name, report.object, "report.object."),
        file=_with_guards(name, report.file, "report.file."),
    )


def _guarded_checks(name: str, checks: SchedulerChecks) -> SchedulerChecks:
    config_map = checks.config_map
    return replace(
        checks,
        pods={key: _with_guards(name, query, f"checks.pods[{key!r}].") for key, query in checks.pods.items()},
        config_map=_with_guards(name, config_map, "checks.config_map.") if config_map is not None else None,
    )


def _with_guards(name: str, group: T, prefix: str) -> T:
    """The frozen value with a guard around each function among its fields."""
    hints = field_hints(type(group))  # type: ignore[arg-type]  # classes are hashable
    guards = {
        field: _guard(name, function, prefix + field, get_args(hint)[-1])
        for field, any_hint in hints.items()
        if (hint := function_hint(any_hint)) is not None and (function := getattr(group, field)) is not None
    }
    return replace(group, **guards)  # type: ignore[type-var]


def _guard(name: str, function: Callable[..., object], path: str, returns: Any) -> Callable[..., object]:
    logged = ""

    @wraps(function)
    def call(*arguments: object) -> object:
        nonlocal logged
        try:
            answer = function(*arguments)
            what = wrong_value(answer, returns, "its answer")
            if not what and path in SENT:
                json.dumps(answer)
        except Exception as exc:  # contributors' code
            if path in REFUSING and isinstance(exc, ValueError):
                raise
            what = error_text(exc)
        if not what:
            logged = ""
            return answer
        error = SchedulerError(name, path, what)
        if str(error) != logged:
            logged = str(error)
            log.error("a scheduler's plugin fails", scheduler=name, function=path, error=what)
        raise error from None

    return call
