"""Rules of the parts of a vendor that schedulers' plugins bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.installed_schedulers import Installed

from agent.daemon.plugin_discovery import BrokenPlugin
from agent.daemon.scheduler_parts import with_named_parts
from agent.scheduler_api import Dialect, DialectOf, Part
from agent.vendor_api.agent import (
    ContainerEdits,
    CountedCard,
    Device,
    Exporter,
    ExporterOf,
    Format,
    FormatOf,
    NodeFacts,
    NodeFactsOf,
    ResourceRule,
    Vendor,
)
from agent.vendor_api.node_usage import NodeUsage
from agent.vendors.enflame.agent.names import ENFLAME


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


def test_an_exporter_of_another_distribution_is_made_in_a_vendor_s_terms_at_its_place(
    installed: Installed,
) -> None:
    installed.add(
        "acme",
        """
        from agent.vendor_api.agent import Exporter
        from agent.vendor_api.metric_families import MetricFamily
        def make(terms):
            return Exporter("another-name", lambda usage: [MetricFamily(terms["name"], "", [])])
        @hookimpl
        def register_scheduler():
            return Scheduler("acme", vendor_exporters={"cards": make})
        """,
    )
    first, last = Exporter("first", lambda usage: ()), Exporter("last", lambda usage: ())

    made = with_named_parts(
        vendor(exporters=(first, ExporterOf("acme", "cards", {"name": "acme_memory"}), last))
    )

    exporters = [it for it in made.exporters if isinstance(it, Exporter)]
    assert [it.name for it in exporters] == ["first", "cards", "last"]
    (family,) = exporters[1].families(NodeUsage("n", 0.0, {}))
    assert family.name == "acme_memory"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("cards", "'cards' of the scheduler 'acme', which cannot be made: KeyError: 'name'"),
        ("v9", "'v9' of the scheduler 'acme', which is not here; there are: cards of acme"),
    ],
)
def test_an_exporter_that_cannot_be_made_costs_no_card_and_says_why_where_it_is_asked(
    name: str, why: str, installed: Installed
) -> None:
    installed.add(
        "acme",
        """
        @hookimpl
        def register_scheduler():
            return Scheduler("acme", vendor_exporters={"cards": lambda terms: terms["name"]})
        """,
    )

    (exporter,) = with_named_parts(vendor(exporters=(ExporterOf("acme", name),))).exporters

    assert isinstance(exporter, Exporter)
    assert exporter.name == name
    with pytest.raises(BrokenPlugin, match=f"names the exporter {why}"):
        exporter.families(NodeUsage("n", 0.0, {}))


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
