"""The values of a Vendor against the type hints of their fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import pytest

from agent.daemon.field_types import wrong_field
from agent.scheduler_api import Candidate, Claim, Dialect
from agent.vendor_api.agent import (
    ContainerEdits,
    Exporter,
    ExporterOf,
    Format,
    FormatOf,
    Host,
    HostPart,
    HostRuntime,
    NodeFactsOf,
    Settings,
    SettingsWarning,
    Signs,
    Slices,
    Vendor,
    VendorCheck,
)
from agent.vendor_api.config_flags import ConfigFlag, Flag, FlagGroup, FlagKind
from agent.vendor_api.config_inputs import ConfigFiles, ConfigFormat, ConfigInputs, FileContent


def _claims(pod: Candidate, resource: str, cards: Mapping[str, int | None]) -> Sequence[Claim]:
    return ()


#: With a value in each place in which there is one group, or one element, more to look into.
COMPLETE = Vendor(
    "acme",
    "acme:B",
    "a.com/x",
    lambda devices, request: ContainerEdits(),
    settings=Settings(warnings=(SettingsWarning("is old"),)),
    makes=Slices(),
    dialects=(Dialect("acme", _claims),),
    pod_limits=Dialect("limits", _claims),
    host=Host(
        signs=Signs(),
        parts=(HostPart("driver", ("/dev/acme",), "nothing works", "install it"),),
        runtime=HostRuntime("Acme's runtime", "acme", ("acme-runtime",), "containers see no card"),
    ),
    formats=(Format("acme", lambda picture, node, query: {}),),
    named_node_facts=NodeFactsOf("acme", "v1", {}, lambda rules, devices: ()),
    named_formats=(FormatOf("acme", "v1"),),
    exporters=(Exporter("acme-exporter", lambda usage: ()), ExporterOf("acme", "monitor")),
    checks=(VendorCheck("acme-check", lambda look: ()),),
)


#: The same of what a vendor reads beside the configuration.
COMPLETE_INPUTS = ConfigInputs(
    FlagGroup(
        "Acme's flags",
        "As acme has them.",
        (Flag(FlagKind.TEXT, ("acme-mode",), ("ACME_MODE",), value=str),),
        (ConfigFlag("config", ("acme-config",)),),
    ),
    (ConfigFormat("Acme's file", ("acme",), lambda document, flags: FileContent()),),
    (ConfigFiles("configDir", ("mode",), lambda files, node: FileContent()),),
)


def _places(group: Any, prefix: str = "") -> Iterator[str]:
    """The path of each field, those of groups and of elements of tuples included."""
    for name in (it.name for it in fields(group)):
        value = getattr(group, name)
        yield prefix + name
        if is_dataclass(value):
            yield from _places(value, f"{prefix}{name}.")
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            yield from _places(value[0], f"{prefix}{name}[0].")


def _with(group: Any, path: str, value: object) -> Any:
    name, _, rest = path.partition(".")
    field = name.removesuffix("[0]")
    if rest:
        inner = getattr(group, field)
        value = _with(inner, rest, value) if field == name else (_with(inner[0], rest, value),)
    return replace(group, **{field: value})


@pytest.mark.parametrize(
    ("registered", "place"), [(it, place) for it in (COMPLETE, COMPLETE_INPUTS) for place in _places(it)]
)
def test_a_value_of_another_type_is_refused_by_the_path_of_its_field(registered: Any, place: str) -> None:
    stranger = object()

    refusal = wrong_field(_with(registered, place, stranger))

    assert refusal.startswith(f"{place} is {stranger}; ")
    assert refusal.endswith(" is needed")


def test_what_is_right_is_not_refused() -> None:
    assert wrong_field(COMPLETE) == ""
    assert wrong_field(COMPLETE_INPUTS) == ""


FUNCTIONS = [
    *("container_edits", "host.libraries", "replaces.cards_of_answer", "formats[0].document"),
    *(
        f"offers.{it}"
        for it in ("resources", "check_rules", "default_rule", "cards_with_room", "without_choice")
    ),
    *(f"publishes.{it}" for it in ("labels", "annotations", "extended_resources")),
    *(f"dialects[0].{it}" for it in ("claims", "measure", "receipt")),
]


@pytest.mark.parametrize("place", FUNCTIONS)
def test_a_function_of_another_number_of_arguments_is_refused_by_the_path_of_its_field(place: str) -> None:
    def strange(a, b, c, d): ...  # type: ignore[no-untyped-def]

    refusal = wrong_field(_with(COMPLETE, place, strange))

    assert refusal.startswith(f"{place} takes (a, b, c, d); a function of ")
    assert wrong_field(_with(COMPLETE, place, lambda *_: None)) == ""
    assert wrong_field(_with(COMPLETE, place, partial(lambda *_, options: None, options={}))) == ""


def test_a_function_that_does_not_tell_its_arguments_is_taken() -> None:
    assert wrong_field(_with(COMPLETE, "publishes.labels", dict)) == ""
