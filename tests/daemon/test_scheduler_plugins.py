"""Rules of finding and loading schedulers' plugins."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs
from support.installed_schedulers import Installed

from agent.daemon import scheduler_plugins
from agent.daemon.scheduler_plugins import SITS_OUT, SchedulerPlugin, in_order
from agent.scheduler_api import Scheduler


def named(name: str) -> SchedulerPlugin:
    return next(it for it in reversed(scheduler_plugins.load()) if it.name == name)


def returning(parts: str) -> str:
    return f"@hookimpl\ndef register_scheduler(): return {parts}"


def names() -> list[str]:
    return [it.name for it in scheduler_plugins.registered()]


def test_koordinator_is_heard_before_hami_whose_annotation_it_writes_too() -> None:
    assert names().index("koordinator") < names().index("hami")


def test_a_scheduler_of_another_distribution_is_heard_with_those_in_tree(installed: Installed) -> None:
    installed.add(
        "acme", returning("Scheduler('acme', after=('hami',), reserved=(Reserved('a.com/', 'no'),))")
    )

    assert (named("acme").origin, named("acme").version, named("acme").reason) == ("acme", "1.2", "")
    assert names().index("hami") < names().index("acme")
    assert "a.com/" in {it.prefix for it in scheduler_plugins.reserved()}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise OSError('no such file')", "OSError: no such file"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def register_scheduler(): return None", "implements no hook; decorate register_scheduler with"),
        ("@hookimpl\ndef register_schedulers(): return None", "PluginValidationError: "),
        (returning("1 / 0"), "ZeroDivisionError: "),
        (returning("None"), SITS_OUT),
        (returning("object()"), "returned a object, a Scheduler is needed"),
        (returning("Scheduler('acne')"), "name is 'acne'; it is registered as 'acme'"),
        (returning("Scheduler('acme', program=object())"), "program is <object"),
        (returning("Scheduler('acme', writes=object())"), "writes is <object"),
        (returning("Scheduler('acme', after='hami')"), "after is 'hami'; a tuple of texts is needed"),
        (returning("Scheduler('acme', after=object())"), "after is <object"),
        (returning("Scheduler('acme', reads=object())"), "reads is <object"),
        (returning("Scheduler('acme', locks=object())"), "locks is <object"),
        (returning("Scheduler('acme', reserved=object())"), "reserved is <object"),
        (returning("Scheduler(object())"), "name is <object"),
        (returning("Scheduler('acme', asks=object())"), "a function of 1 argument or None is needed"),
        (returning("Scheduler('acme', external=object())"), "an ExternalUse or None is needed"),
        (
            returning("Scheduler('acme', external=ExternalUse('a.com/x', 1))"),
            "external.claim is 1; a function of 2",
        ),
        (
            returning("Scheduler('acme', reserved=('a.com/',))"),
            "reserved[0] is 'a.com/'; a Reserved is needed",
        ),
        (
            returning("Scheduler('acme', reserved=(Reserved('', 'no'),))"),
            "a prefix and a reason are needed in each",
        ),
        (
            returning("Scheduler('acme', vendor_dialects={'v1': 1})"),
            "vendor_dialects['v1'] is 1; a function of",
        ),
        (returning("Scheduler('acme', vendor_dialects=object())"), "a Mapping is needed"),
        (returning("Scheduler('acme', vendor_formats=object())"), "vendor_formats is <object"),
        (
            returning("Scheduler('acme', vendor_formats={'v1': 1})"),
            "vendor_formats['v1'] is 1; a function of 1",
        ),
        (returning("Scheduler('acme', vendor_node_facts=object())"), "vendor_node_facts is <object"),
        (
            returning("Scheduler('acme', vendor_node_facts={'v1': 1})"),
            "vendor_node_facts['v1'] is 1; a function of 1",
        ),
        (returning("Scheduler('acme', dialects=object())"), "a tuple of Dialect is needed"),
        (returning("Scheduler('acme', dialects=(Dialect('a', lambda *_: ()),))"), "'a' sees none of a pod's"),
        (
            returning("Scheduler('acme', dialects=(Dialect('a', {}),))"),
            "dialects[0].claims is {}; a function of 3",
        ),
    ],
)
def test_a_plugin_that_breaks_the_contract_is_said_and_costs_no_other_anything(
    code: str, why: str, installed: Installed
) -> None:
    installed.add("acme", code)

    assert why in named("acme").reason
    assert named("acme").scheduler is None
    assert {"koordinator", "hami"} <= {*names()}
    with capture_logs() as logs:
        scheduler_plugins.log_left_out()
    said = [it for it in logs if it["event"] == "scheduler plugin left out"]
    assert [it["scheduler"] for it in said] == ([] if why == SITS_OUT else ["acme"])


def test_a_dialect_s_name_that_is_taken_is_said_with_its_owner(installed: Installed) -> None:
    dialect = "Dialect('metax', lambda *_: (), reads=('acme.com/',))"
    installed.add("acme", returning(f"Scheduler('acme', dialects=({dialect},))"))

    assert named("acme").reason == "hami already brings a dialect named 'metax'"
    assert "acme" not in names()


def test_of_two_schedulers_with_a_report_of_the_cards_the_second_is_left_out(installed: Installed) -> None:
    body = returning("Scheduler('acme', report=NODE_REPORT)")
    installed.add("acme", f"from agent.schedulers.koordinator.node_report import NODE_REPORT\n{body}")

    assert named("acme").reason == "koordinator already brings a report of the node's cards"


def test_a_name_that_is_taken_is_said_with_its_owner(installed: Installed) -> None:
    installed.add("hami", returning("Scheduler('hami')"))

    assert named("hami").reason == "xpu-agent already brings a scheduler named 'hami'"
    assert names().count("hami") == 1


@pytest.mark.parametrize(
    ("after", "order"),
    [
        ({}, "abc"),
        ({"a": "c"}, "bca"),
        ({"a": "b", "b": "c"}, "cba"),
        ({"a": "z"}, "abc"),
        ({"a": "a"}, "abc"),
        ({"a": "b", "b": "a"}, "cab"),
    ],
)
def test_each_is_heard_after_those_that_it_names_wherever_they_are_registered(
    after: dict[str, str], order: str
) -> None:
    its = [Scheduler(name, after=tuple(after.get(name, ""))) for name in "cab"]

    assert "".join(it.name for it in in_order(its)) == order
