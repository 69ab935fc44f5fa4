"""Rules of finding and loading schedulers' plugins."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.daemon import scheduler_plugins
from agent.daemon.plugin_discovery import BrokenPlugin
from agent.daemon.scheduler_plugins import SITS_OUT, SchedulerPlugin, in_order, with_named_parts
from agent.scheduler_api import Dialect, DialectOf, Part, Scheduler
from agent.vendor_api.agent import (
    ContainerEdits,
    CountedCard,
    Device,
    Format,
    FormatOf,
    NodeFacts,
    NodeFactsOf,
    ResourceRule,
    Vendor,
)
from agent.vendors.enflame.agent.names import ENFLAME

HEAD = """
from agent.scheduler_api import Dialect, ExternalUse, Reserved, Scheduler
from agent.scheduler_api.hooks import hookimpl
"""


class Installed:
    """Distributions as pip leaves them: a module and its metadata in a folder on sys.path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, code: str) -> None:
        (self.folder / f"scheduler_of_{name}.py").write_text(HEAD + dedent(code))
        info = self.folder / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[xpu_agent.schedulers]\n{name} = scheduler_of_{name}\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield Installed(tmp_path)
    for name in [name for name in sys.modules if name.startswith("scheduler_of_")]:
        del sys.modules[name]
    _forget()


def _forget() -> None:
    scheduler_plugins.load.cache_clear()
    scheduler_plugins.registered.cache_clear()
    importlib.invalidate_caches()


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


def vendor(*hears: DialectOf, **parts: Any) -> Vendor:
    return Vendor("acme", "acme:B", "acme.com/x", lambda *_: ContainerEdits(), named_dialects=hears, **parts)


def test_a_vendor_s_own_dialect_does_not_take_the_name_of_a_scheduler_s() -> None:
    with pytest.raises(BrokenPlugin, match="the scheduler hami already brings a dialect named 'metax'"):
        with_named_parts(vendor(dialects=(Dialect("metax", lambda *_: ()),)))


def test_one_dialect_alone_reads_the_limits_of_a_vendor_s_pods() -> None:
    own = Dialect("own", lambda *_: ())

    with pytest.raises(BrokenPlugin, match="'metax-limits' and 'own' read a pod's limits"):
        with_named_parts(vendor(DialectOf("hami", "metax-limits", of_limits=True), pod_limits=own))


def test_a_vendor_hears_the_dialects_that_it_names_before_its_own_and_limits_apart() -> None:
    own = Dialect("own", lambda *_: ())
    its = with_named_parts(
        vendor(
            DialectOf("gcushare", "gcushare-v1", ENFLAME.terms),
            DialectOf("hami", "metax-sgpu", measure=lambda *_: Part(0.5, 0.5)),
            DialectOf("hami", "metax-limits", of_limits=True),
            dialects=(own,),
        )
    )

    assert [it.name for it in its.dialects] == ["gcushare-v1", "metax-sgpu", "own"]
    assert its.pod_limits is not None
    assert (its.pod_limits.name, its.pod_limits.measure) == ("metax-limits", None)
    measure = its.dialects[1].measure
    assert measure is not None
    assert measure({}, 0) == Part(0.5, 0.5)


@pytest.mark.parametrize(
    ("named_", "why"),
    [
        (DialectOf("acme", "v1"), "hears 'v1' of the scheduler 'acme', which is not here; there are: "),
        (DialectOf("hami", "gcushare-v1"), "which is not here; there are: gcushare-v1 of gcushare, "),
        (
            DialectOf("gcushare", "hami"),
            "which cannot be made: ValueError: the terms are [], needed are ['dom",
        ),
    ],
)
def test_a_dialect_that_no_scheduler_makes_is_said_with_those_that_there_are(
    named_: DialectOf, why: str
) -> None:
    with pytest.raises(BrokenPlugin) as refused:
        with_named_parts(vendor(named_))

    assert why in str(refused.value)


def test_a_dialect_of_another_distribution_is_heard_in_a_vendor_s_terms(installed: Installed) -> None:
    installed.add(
        "acme",
        """
        def make(terms, schedulers):
            return Dialect("acme-v1", lambda *_: (), reads=(terms["domain"],))
        @hookimpl
        def register_scheduler():
            return Scheduler("acme", vendor_dialects={"v1": make, "none": lambda *_: None})
        """,
    )

    (dialect,) = with_named_parts(vendor(DialectOf("acme", "v1", {"domain": "a.com/"}))).dialects
    assert (dialect.name, dialect.reads) == ("acme-v1", ("a.com/",))
    with pytest.raises(BrokenPlugin, match="a Dialect is needed"):
        with_named_parts(vendor(DialectOf("acme", "none")))


def test_a_format_of_another_distribution_is_shown_in_a_vendor_s_terms(installed: Installed) -> None:
    installed.add(
        "acme",
        """
        from agent.vendor_api.agent import Format
        def make(terms):
            return Format(terms["name"], lambda picture, node, query: {}, "/acme")
        @hookimpl
        def register_scheduler():
            return Scheduler("acme", vendor_formats={"cards": make, "none": lambda _: None})
        """,
    )
    own = Format("own", lambda *_: {})

    vendor_with = with_named_parts(
        vendor(named_formats=(FormatOf("acme", "cards", {"name": "acme"}),), formats=(own,))
    )

    assert [(it.name, it.path) for it in vendor_with.formats] == [("acme", "/acme"), ("own", "")]
    with pytest.raises(BrokenPlugin, match="made as a NoneType; a Format is needed"):
        with_named_parts(vendor(named_formats=(FormatOf("acme", "none"),)))
    with pytest.raises(
        BrokenPlugin, match="names the format 'v9' of the scheduler 'acme', which is not here"
    ):
        with_named_parts(vendor(named_formats=(FormatOf("acme", "v9"),)))
    with pytest.raises(BrokenPlugin, match="cannot be made: KeyError: 'name'"):
        with_named_parts(vendor(named_formats=(FormatOf("acme", "cards"),)))


def test_facts_of_the_node_of_another_distribution_are_published_of_a_vendor_s_cards(
    installed: Installed,
) -> None:
    installed.add(
        "acme",
        """
        from agent.scheduler_api import SchedulerFacts
        def make(terms):
            key, name = terms["domain"] + "slices", terms["domain"] + "count"
            def annotations(cards, grants):
                return {key: f"{sum(it.count for it in cards)} {len(grants)}"}
            return SchedulerFacts(annotations, (key,), lambda cards: {name: len(cards)}, (name,))
        @hookimpl
        def register_scheduler():
            return Scheduler("acme", vendor_node_facts={"v1": make, "none": lambda _: SchedulerFacts()})
        """,
    )
    terms = {"domain": "acme.com/"}

    def cards(rules: Sequence[ResourceRule], devices: Sequence[Device]) -> list[CountedCard]:
        return [CountedCard("acme.com/x", it, 4) for it in devices]

    made = with_named_parts(vendor(named_node_facts=NodeFactsOf("acme", "v1", terms, cards))).publishes

    assert made.annotations is not None
    assert made.annotations((), (Device("A", 0), Device("B", 1)), ()) == {"acme.com/slices": "8 0"}
    assert made.extended_resources is not None
    assert made.extended_resources((), (Device("A", 0),)) == {"acme.com/count": 1}
    assert (made.annotation_keys, made.extended_resource_keys) == (("acme.com/slices",), ("acme.com/count",))
    removed = with_named_parts(vendor(named_node_facts=NodeFactsOf("acme", "none", {}, cards))).publishes
    assert (removed.annotations, removed.extended_resources) == (None, None)
    own = NodeFacts(annotation_keys=("acme.com/own",))
    with pytest.raises(BrokenPlugin, match="and publishes has annotations or extended resources; one works"):
        with_named_parts(vendor(named_node_facts=NodeFactsOf("acme", "v1", terms, cards), publishes=own))


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
