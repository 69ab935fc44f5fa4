"""Conformance checks of a vendor's agent half: pure functions, valid names, and a complete README."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from agent.core.publishing import extended_resource_rules
from agent.core.publishing.node_annotation_rules import annotations_of
from agent.daemon.scheduler_plugins import reserved
from agent.isolation.presence import absence
from agent.scheduler_api.observed import Observed
from agent.scheduler_api.reserved_names import unserved_name
from agent.testing.bench import Bench, NotMade
from agent.vendor_api.agent import (
    CardCount,
    ContainerEdits,
    ContainerShare,
    Device,
    Format,
    Grant,
    ListedPod,
    NodeListing,
    NotShown,
    Offering,
    Request,
    ResourceRule,
    Vendor,
    VendorLook,
)
from agent.vendor_api.kubernetes_names import wrong_label

#: The node name in the listings that formats are tried with.
NODE = "conformance"
SECTIONS = ("Settings", "Resources", "Health reasons", "Tested with")
_IMPORTS = """
import hashlib, importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
import agent.daemon.vendor_plugins  # libraries that this loads are not the vendor's
def libraries():
    with open("/proc/self/maps") as maps:
        return {line.split()[-1] for line in maps if ".so" in line and "lib-dynload" not in line}
before = libraries()
for name in sys.argv[3:]:
    importlib.import_module(name)
print(json.dumps([sorted(libraries() - before), sys.argv[2] in sys.modules]))
"""


async def edits_are_pure(bench: Bench) -> None:
    """`container_edits` returns equal edits for equal input, with texts as variables and absolute paths."""
    devices = await bench.devices()
    for chosen in (devices[:1], devices):
        request = Request("conformance", bench.vendor.resource, tuple(device.uuid for device in chosen))
        edits = bench.vendor.container_edits(chosen, request)
        assert edits == bench.vendor.container_edits(chosen, request), "the second answer differs"
        check_edits(edits)


def check_edits(edits: ContainerEdits) -> None:
    """Raise AssertionError where an answer to the kubelet cannot contain these edits."""
    for name, value in [*edits.env.items(), *edits.annotations.items()]:
        _check_text(name, f"{name!r}")
        _check_text(value, f"{name} is {value!r}, which")
        assert name, "a name is empty"
    for name in edits.env:
        assert "=" not in name, f"{name!r} has '=' in the name of a variable"
    for name in edits.cdi_devices:
        _check_text(name, f"the CDI device {name!r}")
    places = [(it.path, it.host_path) for it in edits.device_nodes]
    places += [(it.path, it.host_path) for it in edits.mounts]
    for path in (path for place in places for path in place):
        _check_text(path, f"the path {path!r}")
        assert path.startswith("/"), f"{path!r} is no absolute path"
    for node in edits.device_nodes:
        right = isinstance(node.permissions, str) and node.permissions and set(node.permissions) <= set("rwm")
        assert right, f"{node.path}: permissions are {node.permissions!r}; use letters of 'rwm'"
    for mount in edits.mounts:
        assert isinstance(mount.read_only, bool), f"{mount.path}: read_only is {mount.read_only!r}"


def _check_text(text: object, what: str) -> None:
    assert isinstance(text, str), f"{what} is no text"
    assert "\0" not in text, f"{what} has a NUL"
    try:
        text.encode()
    except UnicodeEncodeError:
        raise AssertionError(f"{what} is no UTF-8") from None


async def resource_is_accepted(bench: Bench) -> None:
    """`resource` is a name that the kubelet accepts."""
    wrong = unserved_name(bench.vendor.resource, reserved())
    assert not wrong, wrong


async def signs_are_seen(bench: Bench) -> None:
    """On a node where the vendor opens, its signs or its library files are found."""
    if bench.vendor.host.signs is None:
        raise NotMade("the vendor has no signs: its process is started on every node")
    await bench.devices()
    missing = absence(bench.vendor)
    assert not missing, f"the backend opens here, and the agent would not start it: {missing}"


async def resources_are_pure(bench: Bench) -> None:
    """`resources` returns equal rules for equal devices, names listed devices once, and never raises."""
    make = bench.vendor.offers.resources
    if make is None:
        raise NotMade("the vendor has no resources of its own")
    async with bench.opened() as talk:
        devices = await talk.discover()
    known = {device.uuid for device in devices}
    for listed in (devices, devices[:1], tuple(replace(it, attributes={}) for it in devices)):
        first, second = make((), listed), make((), listed)
        assert first == second, f"first {first}, then {second}"
        assert isinstance(first, Offering), (
            f"`resources` returned a {type(first).__name__}; an Offering is needed"
        )
        named = [uuid for rule in first.rules for uuid in _named(rule)]
        each = [_named(rule) for rule in first.rules] if bench.vendor.offers.modes == "dynamic" else [named]
        assert set(named) <= known, f"`resources` names {sorted(set(named) - known)}, which are not listed"
        assert all(len(its) == len(set(its)) for its in each), "`resources` offers a device twice"
        for rule in first.rules:
            trouble = unserved_name(rule.name, reserved())
            assert not trouble, trouble


def _named(rule: ResourceRule) -> tuple[str, ...]:
    assert isinstance(rule.devices, tuple), f"{rule.name} says {rule.devices!r}; uuids are needed"
    return tuple(str(it) for it in rule.devices)


async def labels_are_pure(bench: Bench) -> None:
    """`labels` returns equal labels for equal devices, and Kubernetes accepts them."""
    make = bench.vendor.publishes.labels
    if make is None:
        raise NotMade("the vendor has no labels")
    async with bench.opened() as talk:
        devices = await talk.discover()
    for listed in (devices, devices[:1], ()):
        first, second = make((), listed), make((), listed)
        assert first == second, f"first {first}, then {second}"
        for key, value in first.items():
            trouble = wrong_label(key, value)
            assert not trouble, trouble


async def annotations_and_extended_resources_are_pure(bench: Bench) -> None:
    """Annotations and extended resources of equal devices are equal, and Kubernetes accepts them."""
    vendor = bench.vendor
    if vendor.publishes.annotations is None and vendor.publishes.extended_resources is None:
        raise NotMade("the vendor has no annotations and no extended resources")
    async with bench.opened() as talk:
        devices = await talk.discover()
    for listed in (devices, devices[:1], ()):
        given = [Grant(Request("conformance", vendor.resource, (it.uuid,)), (it.uuid,)) for it in listed]
        for grants in ((), given):
            first, second = (
                annotations_of(vendor, (), listed, grants),
                annotations_of(vendor, (), listed, grants),
            )
            assert first == second, f"first {first}, then {second}"
        counts, again = (
            extended_resource_rules.counts_of(vendor, (), listed),
            extended_resource_rules.counts_of(vendor, (), listed),
        )
        assert counts == again, f"first {counts}, then {again}"


async def formats_are_pure(bench: Bench) -> None:
    """Each format makes equal JSON of equal listings, or raises NotShown."""
    vendor = bench.vendor
    if not vendor.formats:
        raise NotMade("the vendor has no formats")
    async with bench.opened() as talk:
        devices = tuple(await talk.discover())
    names = [it.name for it in vendor.formats]
    assert len(names) == len(set(names)), f"two of {', '.join(names)} have one name"
    for tool_format in vendor.formats:
        assert re.fullmatch(r"[a-z0-9-]+", tool_format.name), (
            f"{tool_format.name!r} is no name that a path and a command line take"
        )
        assert not tool_format.path or tool_format.path.startswith("/"), (
            f"{tool_format.name}: {tool_format.path!r} is no absolute path"
        )
        for listing in _node_listings(vendor, devices):
            for node in ("", NODE, "another"):
                first, second = (_document(tool_format, listing, node) for _ in range(2))
                assert first == second, f"{tool_format.name}: first {first}, then {second}"


def _node_listings(vendor: Vendor, devices: tuple[Device, ...]) -> list[NodeListing]:
    """Listings without cards, with free cards, and with cards that pods have or wait for.

    The cards have minor numbers and attributes in one listing and none in another.
    """
    counts = tuple(CardCount(vendor.resource, it.uuid, 4) for it in devices)
    holders = (None, ListedPod("ns", "has", "1", 1.0, pending=False), ListedPod("ns", "waits"))
    held = tuple(
        ContainerShare(
            vendor.resource, device.uuid, 1, holder, "main", allocated=holder is None or not holder.pending
        )
        for device in devices
        for holder in holders
    )
    bare = tuple(replace(it, minor=None, attributes={}) for it in devices)
    return [
        NodeListing(NODE),
        NodeListing(NODE, devices, counts),
        NodeListing(NODE, devices, counts, held),
        NodeListing(NODE, bare, counts, held),
    ]


def _document(tool_format: Format, listing: NodeListing, node: str) -> str:
    """The format's document as JSON text.

    Raises:
        AssertionError: The document has other values than JSON can hold.
    """
    try:
        made = tool_format.document(listing, node, {})
    except NotShown as none:
        made = none.document
    try:
        return json.dumps(made, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise AssertionError(f"{tool_format.name}: the document is no JSON: {exc}") from None


async def doctor_checks_are_pure(bench: Bench) -> None:
    """Each check of the doctor returns equal findings under its own name for equal looks."""
    vendor = bench.vendor
    if not vendor.checks:
        raise NotMade("the vendor has no checks of the doctor")
    async with bench.opened() as talk:
        devices = tuple(await talk.discover())
    unread: Observed[str] = Observed(why="not read", is_absent=True)
    unasked: Observed[tuple[Device, ...]] = Observed(why="not asked")
    for check in vendor.checks:
        for text in (unread, Observed(""), Observed("1")):
            for listed in (Observed(devices), unasked):
                look = VendorLook(listed, dict.fromkeys(check.files, text))
                first, second = tuple(check.make(look)), tuple(check.make(look))
                assert first == second, f"{check.name}: first {first}, then {second}"
                assert first, f"{check.name} returned no finding"
                names = {it.check for it in first}
                assert names == {check.name}, f"{check.name} returned findings of {', '.join(sorted(names))}"


async def imports_do_nothing(bench: Bench) -> None:
    """Importing the vendor's agent half loads no library and does not import the backend."""
    backend = bench.vendor.backend.partition(":")[0]
    path = json.dumps([*bench.python_path, *sys.path])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _IMPORTS, path, backend, *_agents_half(bench.vendor)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode().strip().rpartition("\n")[2]
    libraries, imported = json.loads(out.splitlines()[-1])
    assert not libraries, f"the import loads {', '.join(libraries)}"
    assert not imported, f"the import also imports {backend}"


def _agents_half(vendor: Vendor) -> list[str]:
    """The modules that the agent imports: the plugin, and the module of `container_edits`."""
    plugin = _plugin_of(vendor)
    edits = getattr(vendor.container_edits, "__module__", None)
    return [name for name in (plugin, edits) if name]


def _plugin_of(vendor: Vendor) -> str | None:
    plugin = f"{_folder(vendor)}.plugin"
    return plugin if not plugin.startswith(".") and importlib.util.find_spec(plugin) is not None else None


def _folder(vendor: Vendor) -> str:
    """The package of the plugin. The backend is in the same package, or in its subpackage `child`."""
    return vendor.backend.partition(":")[0].rpartition(".")[0].removesuffix(".child")


async def readme_is_complete(bench: Bench) -> None:
    """The README in the vendor's folder has all sections, and a table of exactly the known settings."""
    text = _readme(bench.vendor).read_text()
    for section in SECTIONS:
        assert re.search(rf"^#+ {section}\s*$", text, re.MULTILINE), f"the README lacks the section {section}"
    section = re.split(r"^#+ ", text.partition("Settings\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    documented = set(re.findall(r"^\| *`(\w+)` *\|", section, re.MULTILINE))
    known = _known_settings(bench.vendor)
    for setting in sorted(bench.vendor.settings.for_backend if known is None else known):
        assert setting in documented, f"the README lacks the setting {setting}"
    assert known is None or documented <= known, (
        f"the plugin does not know {', '.join(sorted(documented - (known or set())))}"
    )
    assert documented or known == set(), (
        "the section Settings of the README has no table, and the plugin no empty SETTINGS"
    )


def _known_settings(vendor: Vendor) -> set[str] | None:
    """The settings that the vendor describes, or else those that `SETTINGS` in plugin.py names.

    None where the vendor describes none and plugin.py has no `SETTINGS`.
    """
    if vendor.settings.descriptions:
        return set(vendor.settings.descriptions)
    names = _plugin_of(vendor)
    known = getattr(importlib.import_module(names), "SETTINGS", None) if names else None
    return None if known is None else set(known)


def _readme(vendor: Vendor) -> Path:
    package = _folder(vendor)
    spec = importlib.util.find_spec(package) if package else None
    if spec is None or spec.origin is None:
        raise NotMade("the backend lives in no folder of its own")
    readme = Path(spec.origin).with_name("README.md")
    assert readme.exists(), f"{readme} does not exist"
    return readme
