"""Which resources the kubelet counts on NVIDIA's devices, by the settings or the rules of the config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agent.vendor_api.agent import Device, Offering, Policy, ResourceRule, SettingsWarning, Sharing
from agent.vendor_api.device_rules import all_taken, taken_whole
from agent.vendor_api.text import shorten
from agent.vendors.nvidia.shared.constants import index_of

from . import imex_channels
from .device_map import DeviceMap, device_map, known_names, nothing
from .names import DOMAIN, GPU
from .options import Options
from .time_slicing import Replicated

NOT_APPLIED = "timeSlicing is not applied if resources are configured; remove one of the two"
_EXCLUSIVE = Sharing()
_Parts = dict[str, dict[Sharing, list[Device]]]


def offering(options: Options, rules: Sequence[ResourceRule], devices: Sequence[Device]) -> Offering:
    """The resources with their devices by uuid, and a sentence for each thing that cannot be served.

    `rules` are those of the config; without any, NVIDIA's `timeSlicing` says which devices are shared. Rules
    of one name are one resource: replicated devices, and the devices that stay whole.
    """
    distinct = list({it.uuid: it for it in devices}.values())
    lacking = imex_channels.missing(options, distinct)
    base = nothing(options, lacking) if lacking else device_map(options, distinct)
    made = _configured(options, rules, base) if rules else _time_sliced(options, base)
    if base.refused:
        return replace(made, complaints=(base.refused,))
    return replace(made, complaints=tuple(dict.fromkeys((*base.complaints, *made.complaints))))


def check_rules(options: Options, rules: Sequence[ResourceRule]) -> Sequence[SettingsWarning]:
    """A warning for each rule with which the agent is never ready on a node with cards."""
    names = known_names(options)

    def pool(rule: ResourceRule) -> str | None:
        """The resource from which `all` or a count takes devices; None for a rule that lists devices."""
        if isinstance(rule.devices, tuple):
            return None
        return rule.name if rule.name in names or _is_profile(rule.name) else GPU

    sliced = [SettingsWarning(NOT_APPLIED)] if rules and options.time_slicing.resources else []
    return (*sliced, *taken_whole(rules, pool))


def _time_sliced(options: Options, base: DeviceMap) -> Offering:
    """NVIDIA's replicas. An entry of a resource without devices is ignored, as there; a note says so."""
    strict = options.time_slicing.fail_requests_greater_than_one
    parts: _Parts = {}
    complaints: list[str] = []
    for name, devices in base.resources.items():
        entries = [it for it in options.time_slicing.entries if it.resource == name]
        left = devices
        for entry in entries:
            chosen, wrong = _subset(entry, left)
            complaints += wrong
            left = _without(left, chosen)
            if chosen or not devices:
                _add(parts, entry.advertised, Sharing("replicas", entry.replicas, strict), chosen)
        if left or not (devices or any(it.devices == "all" for it in entries)):
            _add(parts, name, _EXCLUSIVE, left)
    served = ", ".join(base.resources)
    nowhere = [it.resource for it in options.time_slicing.entries if it.resource not in base.resources]
    notes = [f"timeSlicing names {name}, which no device here is; there are {served}" for name in nowhere]
    return Offering(tuple(_rules(options, parts)), tuple(complaints), tuple(notes))


def _add(parts: _Parts, name: str, sharing: Sharing, devices: Iterable[Device]) -> None:
    parts.setdefault(name, {}).setdefault(sharing, []).extend(devices)


def _rules(options: Options, parts: _Parts) -> Iterator[ResourceRule]:
    for name, sharings in parts.items():
        policy = _policy(options, sharings, [it for devices in sharings.values() for it in devices])
        for sharing, devices in sharings.items():
            yield ResourceRule(name, tuple(it.uuid for it in devices), sharing, policy)


def _policy(options: Options, sharings: Iterable[Sharing], devices: Iterable[Device]) -> Policy:
    """The policy of a whole resource (k8s-device-plugin v0.20, internal/rm/nvml_manager.go)."""
    if any(it.kind == "replicas" for it in sharings):
        return options.shared_devices_allocation_policy
    return "aligned" if all(it.parent is None for it in devices) else "distributed"


def _subset(entry: Replicated, devices: Sequence[Device]) -> tuple[Sequence[Device], Sequence[str]]:
    """The devices to replicate, and the sentences of NVIDIA's plugin for those that are not there."""
    wanted = entry.wanted
    if not devices or wanted == "all":
        return devices, ()
    place = f"unable to get IDs of devices to replicate for '{entry.resource}' resource"
    if isinstance(wanted, tuple):
        chosen, missing = _referred(wanted, devices)
        return chosen, [f"{place}: {_no_match(it)}" for it in missing]
    found = devices[:wanted]
    few = f"requested {wanted} devices to be replicated, but only {len(found)} devices available"
    return found, [f"{place}: {few}"] if len(found) < wanted else ()


def _no_match(reference: str) -> str:
    kind = "at index" if reference.replace(":", "", 1).isdecimal() else "with UUID"
    return f"no matching device {kind}: {shorten(reference)}"


def _referred(references: Iterable[int | str], devices: Iterable[Device]) -> tuple[list[Device], list[str]]:
    """The devices with these indices and uuids, each once, and the references that name no device."""
    known: dict[str, Device] = {}
    for device in devices:
        known |= {index_of(device): device, device.uuid: device}
    wanted = dict.fromkeys(map(str, references))
    chosen = {known[it].uuid: known[it] for it in wanted if it in known}
    return list(chosen.values()), [it for it in wanted if it not in known]


def _without(devices: Iterable[Device], taken: Iterable[Device]) -> tuple[Device, ...]:
    gone = {it.uuid for it in taken}
    return tuple(it for it in devices if it.uuid not in gone)


def _configured(options: Options, rules: Sequence[ResourceRule], base: DeviceMap) -> Offering:
    """The resources of the config; a device belongs to the first resource that takes it."""
    made: list[ResourceRule] = []
    complaints: list[str] = []
    if options.time_slicing.resources:
        complaints.append(NOT_APPLIED)
    owners: dict[str, str] = {}
    for rule in rules:
        chosen, wrong = _wanted(rule, base, owners)
        complaints += wrong
        owners |= {it.uuid: rule.name for it in chosen}
        policy = rule.policy or _policy(options, (rule.sharing,), chosen)
        made.append(replace(rule, devices=tuple(it.uuid for it in chosen), policy=policy))
    return Offering(tuple(made), tuple(complaints))


def _wanted(rule: ResourceRule, base: DeviceMap, owners: Mapping[str, str]) -> tuple[list[Device], list[str]]:
    """The devices of the rule, and a sentence for each device that the rule cannot have."""
    if isinstance(rule.devices, tuple):
        named, missing = _referred(
            rule.devices, [device for devices in base.resources.values() for device in devices]
        )
        wrong = [f"{rule.name} names {shorten(it)}, which nvidia does not offer" for it in missing]
        taken = [it for it in named if it.uuid in owners]
        wrong += [f"{rule.name} names {it.uuid}, which {owners[it.uuid]} has already" for it in taken]
        return [it for it in named if it.uuid not in owners], wrong
    meant = _meant(rule.name, base.resources)
    free = [it for it in meant if it.uuid not in owners]
    if rule.devices == "all":
        others = ", ".join(dict.fromkeys(owners[it.uuid] for it in meant if it.uuid in owners))
        return free, [all_taken(rule, others)] if meant and not free else []
    if rule.devices <= len(free):
        return free[: rule.devices], []
    return free, [f"{rule.name} asks for {rule.devices} devices, nvidia has {len(free)} for it"]


def _meant(name: str, resources: Mapping[str, tuple[Device, ...]]) -> tuple[Device, ...]:
    """The devices that `all` means: those of the name, else whole GPUs; never GPUs for a MIG name."""
    return resources.get(name, ()) if name in resources or _is_profile(name) else resources[GPU]


def _is_profile(name: str) -> bool:
    return name.startswith(f"{DOMAIN}mig-")
