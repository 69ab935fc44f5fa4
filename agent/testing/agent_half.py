"""Checks of the half of a vendor that runs in the agent: pure functions, names, and a README that is true."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from agent.core.kubernetes_names import unserved_name, wrong_label
from agent.core.publishing import extended_resource_rules
from agent.core.publishing.node_annotation_rules import made as annotated
from agent.daemon.scheduler_plugins import reserved
from agent.isolation.presence import absence
from agent.testing.bench import Bench, NotMade
from agent.vendor_api.agent import (
    ContainerEdits,
    Device,
    Format,
    Grant,
    Holder,
    Holding,
    Listing,
    NotShown,
    Offering,
    Picture,
    Request,
    ResourceRule,
    Vendor,
)

#: Whose picture a format is shown.
NODE = "conformance"
SECTIONS = ("Settings", "Resources", "Health reasons", "Tested with")
_IMPORTS = """
import hashlib, importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
import agent.daemon.vendor_plugins  # what has loaded them by then itself is none of theirs
def libraries():
    with open("/proc/self/maps") as maps:
        return {line.split()[-1] for line in maps if ".so" in line and "lib-dynload" not in line}
before = libraries()
for name in sys.argv[3:]:
    importlib.import_module(name)
print(json.dumps([sorted(libraries() - before), sys.argv[2] in sys.modules]))
"""


async def edits_are_pure(bench: Bench) -> None:
    """`container_edits` says the same twice: text in the environment, absolute paths."""
    devices = await bench.devices()
    for chosen in (devices[:1], devices):
        request = Request("conformance", bench.vendor.resource, tuple(device.uuid for device in chosen))
        edits = bench.vendor.container_edits(chosen, request)
        assert edits == bench.vendor.container_edits(chosen, request), "the second answer differs"
        check_edits(edits)


def check_edits(edits: ContainerEdits) -> None:
    """Raise AssertionError where no answer to the kubelet can hold them."""
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


async def the_resource_is_taken(bench: Bench) -> None:
    """`resource` is a name that the kubelet takes."""
    wrong = unserved_name(bench.vendor.resource, reserved())
    assert not wrong, wrong


async def its_signs_are_seen(bench: Bench) -> None:
    """A vendor that opens is seen by its signs, or by the files of its library."""
    if bench.vendor.host.signs is None:
        raise NotMade("the vendor has no signs: its process is started on every node")
    await bench.devices()
    missing = absence(bench.vendor)
    assert not missing, f"it opened, and would not be started: {missing}"


async def resources_are_pure(bench: Bench) -> None:
    """`resources` of equal devices are equal, name listed devices, each of them once, and never raise."""
    make = bench.vendor.offers.resources
    if make is None:
        raise NotMade("the vendor has no resources of its own")
    async with bench.opened() as talk:
        devices = await talk.discover()
    known = {device.uuid for device in devices}
    for listed in (devices, devices[:1], tuple(replace(it, attributes={}) for it in devices)):
        first, second = make((), listed), make((), listed)
        assert first == second, f"first {first}, then {second}"
        assert isinstance(first, Offering), f"it is a {type(first).__name__}; an Offering is needed"
        named = [uuid for rule in first.rules for uuid in _named(rule)]
        each = [_named(rule) for rule in first.rules] if bench.vendor.offers.modes == "dynamic" else [named]
        assert set(named) <= known, f"it names {sorted(set(named) - known)}, which are not listed"
        assert all(len(its) == len(set(its)) for its in each), "it offers a device twice"
        for rule in first.rules:
            trouble = unserved_name(rule.name, reserved())
            assert not trouble, trouble


def _named(rule: ResourceRule) -> tuple[str, ...]:
    assert isinstance(rule.devices, tuple), f"{rule.name} says {rule.devices!r}; uuids are needed"
    return tuple(str(it) for it in rule.devices)


async def labels_are_pure(bench: Bench) -> None:
    """`labels` of equal devices are equal, and such as Kubernetes takes."""
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


async def what_the_node_bears_is_pure(bench: Bench) -> None:
    """Annotations and extended resources of equal devices are equal, and such as Kubernetes takes."""
    vendor = bench.vendor
    if vendor.publishes.annotations is None and vendor.publishes.extended_resources is None:
        raise NotMade("the vendor has no annotations and no extended resources")
    async with bench.opened() as talk:
        devices = await talk.discover()
    for listed in (devices, devices[:1], ()):
        given = [Grant(Request("conformance", vendor.resource, (it.uuid,)), (it.uuid,)) for it in listed]
        for grants in ((), given):
            first, second = (
                annotated(vendor, (), listed, grants),
                annotated(vendor, (), listed, grants),
            )
            assert first == second, f"first {first}, then {second}"
        counts, again = (
            extended_resource_rules.made(vendor, (), listed),
            extended_resource_rules.made(vendor, (), listed),
        )
        assert counts == again, f"first {counts}, then {again}"


async def formats_are_pure(bench: Bench) -> None:
    """Each format makes JSON of any picture, the same twice, or says that it has nothing."""
    vendor = bench.vendor
    if not vendor.formats:
        raise NotMade("the vendor has no formats")
    async with bench.opened() as talk:
        devices = tuple(await talk.discover())
    names = [it.name for it in vendor.formats]
    assert len(names) == len(set(names)), f"two of {', '.join(names)} have one name"
    for it in vendor.formats:
        assert re.fullmatch(r"[a-z0-9-]+", it.name), (
            f"{it.name!r} is no name that a path and a command line take"
        )
        assert not it.path or it.path.startswith("/"), f"{it.name}: {it.path!r} is no absolute path"
        for picture in _pictures(vendor, devices):
            for node in ("", NODE, "another"):
                first, second = (_document(it, picture, node) for _ in range(2))
                assert first == second, f"{it.name}: first {first}, then {second}"


def _pictures(vendor: Vendor, devices: tuple[Device, ...]) -> list[Picture]:
    """Nothing, what nobody has, and what pods have and wait for, of cards with and without a number."""
    listings = tuple(Listing(vendor.resource, it.uuid, 4) for it in devices)
    holders = (None, Holder("ns", "has", "1", 1.0, pending=False), Holder("ns", "waits"))
    held = tuple(
        Holding(vendor.resource, it.uuid, 1, holder, "main", allocated=holder is None or not holder.pending)
        for it in devices
        for holder in holders
    )
    bare = tuple(replace(it, minor=None, attributes={}) for it in devices)
    return [
        Picture(NODE),
        Picture(NODE, devices, listings),
        Picture(NODE, devices, listings, held),
        Picture(NODE, bare, listings, held),
    ]


def _document(it: Format, picture: Picture, node: str) -> str:
    """In JSON, which needs plain values."""
    try:
        made = it.document(picture, node, {})
    except NotShown as none:
        made = none.document
    try:
        return json.dumps(made, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise AssertionError(f"{it.name}: what it makes is no JSON: {exc}") from None


async def imports_do_nothing(bench: Bench) -> None:
    """The agent's half of the vendor loads no library, and does not import the backend."""
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
    assert not libraries, f"importing it loads {', '.join(libraries)}"
    assert not imported, f"importing it imports {backend}"


def _agents_half(vendor: Vendor) -> list[str]:
    """The modules that the agent imports: edits, and the plugin beside the backend."""
    plugin = _plugin_of(vendor)
    edits = getattr(vendor.container_edits, "__module__", None)
    return [name for name in (plugin, edits) if name]


def _plugin_of(vendor: Vendor) -> str | None:
    plugin = f"{_folder(vendor)}.plugin"
    return plugin if not plugin.startswith(".") and importlib.util.find_spec(plugin) is not None else None


def _folder(vendor: Vendor) -> str:
    """The package that the plugin lies in; the backend lies beside the plugin, or in `child` there."""
    return vendor.backend.partition(":")[0].rpartition(".")[0].removesuffix(".child")


async def the_readme_tells_all(bench: Bench) -> None:
    """The README of the folder has its sections, and a table of the settings that the plugin knows."""
    text = _readme(bench.vendor).read_text()
    for section in SECTIONS:
        assert re.search(rf"^#+ {section}\s*$", text, re.MULTILINE), f"it lacks the section {section}"
    section = re.split(r"^#+ ", text.partition("Settings\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    told = set(re.findall(r"^\| *`(\w+)` *\|", section, re.MULTILINE))
    known = _known_settings(bench.vendor)
    for setting in sorted(bench.vendor.settings.for_backend if known is None else known):
        assert setting in told, f"it lacks the setting {setting}"
    assert known is None or told <= known, (
        f"the plugin does not know {', '.join(sorted(told - (known or set())))}"
    )
    assert told or known == set(), "its section Settings has no table, and the plugin no empty SETTINGS"


def _known_settings(vendor: Vendor) -> set[str] | None:
    """What `SETTINGS` in plugin.py names; None where the plugin does not say."""
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
