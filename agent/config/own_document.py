"""Reads the agent's own configuration file into the values that apply to this node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from agent.config import node_overrides, vendor_files
from agent.config.known_labels import NodeLabels
from agent.config.location import KeyLocation
from agent.config.schema import build, mapping, refuse_unknown_keys
from agent.config.schema import vendors as vendor_settings
from agent.config.settings import (
    AgentSettings,
    Config,
    MetricsSettings,
    ReportSettings,
    UsageSettings,
    VendorSettings,
)
from agent.config.side_files import SideFiles
from agent.config.vendor_formats import keys_of_formats
from agent.vendor_api.config_inputs import ConfigInputs, YamlNode, nearest

KEYS = ("agent", "vendors", "report", "usage", "metrics", "nodes")

T = TypeVar("T")


def read(
    root: YamlNode,
    source: str,
    node_name: str,
    vendors: Collection[str] | None,
    labels: NodeLabels,
    inputs: Mapping[str, ConfigInputs],
    side_files: Sequence[SideFiles] = (),
) -> Config:
    """Read the whole file; what its values mean together is judged once the flags lie over it.

    `inputs`: what each vendor reads besides the file. `side_files`: the files that
    the file names, as they were read with it.

    Raises:
        ConfigError: A key or a type is wrong, or a vendor is none of `vendors`.
        LabelsUnknown: It depends on a label of the Node that is not known yet.
    """
    names = dict.fromkeys(("version", *KEYS, *keys_of_formats(inputs)), "")
    refuse_unknown_keys(Config, mapping(root, source, ()), names, source, ())
    applied = node_overrides.applied(root, source, node_name, labels)
    tree = applied.tree
    given = mapping(tree, source, ())
    config = Config(
        agent=_part(AgentSettings, "agent", given, source),
        vendors=vendor_settings(given["vendors"], source, VendorSettings) if "vendors" in given else {},
        report=_part(ReportSettings, "report", given, source),
        usage=_part(UsageSettings, "usage", given, source),
        metrics=_part(MetricsSettings, "metrics", given, source),
        places={(): KeyLocation(source, tree)},
        asks=applied.asks,
    )
    for name in config.vendors:
        if vendors is not None and name not in vendors:
            raise config.refused(("vendors", name), f"no such vendor; {nearest(name, vendors)}")
    return vendor_files.applied(config, node_name, inputs, side_files)


def _part(shape: type[T], key: str, given: Mapping[str, YamlNode], source: str) -> T:
    return build(shape, given[key], source, (key,)) if key in given else shape()
