"""Checks of a configuration beyond types: valid names, one resource a card, limits, combinations."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path as FilePath
from typing import get_args

from agent.config.http_address import parse_address
from agent.config.settings import (
    AgentSettings,
    Config,
    LogSettings,
    ReconcileSettings,
    ReportSettings,
    UsageSettings,
    VendorSettings,
)
from agent.core.devices.dynamic_modes import rules_with_equal_ids
from agent.core.devices.health_thresholds import HealthThresholds
from agent.core.errors import ConfigError
from agent.scheduler_api.scheduler import Scheduler
from agent.vendor_api.agent import MAX_REPLICAS, ResourceRule, Sharing, Unit
from agent.vendor_api.config_inputs import Path
from agent.vendor_api.kubernetes_names import LABEL, wrong_name
from agent.vendor_api.text import shorten

MIN_LOG_BYTES = 10_000
#: An idle vendor process uses 8 MiB; a smaller limit would keep it from starting.
MIN_MEMORY, MAX_MEMORY = 64 << 20, 1 << 40
MAX_POLLS = 1000
MINUTE, HOUR = 60, 3600

_VENDOR = re.compile(LABEL)


@dataclass(frozen=True, slots=True)
class Problem:
    """One error or warning, and the key that it is about."""

    path: Path
    message: str
    #: Other keys that take part; one that a flag or variable sets is named instead of a key in a file.
    others: tuple[Path, ...] = ()


def check(config: Config) -> None:
    """Refuse a configuration that cannot be used.

    Raises:
        ConfigError: With the place of the first thing that is wrong.
    """
    refuse(config, problems(config))


def refuse(config: Config, found: Iterable[Problem]) -> None:
    """Refuse the configuration for the first of these problems; without one nothing happens.

    Raises:
        ConfigError: With the place of the problem.
    """
    for problem in found:
        stated = (path for path in (problem.path, *problem.others) if path in config.places)
        raise config.refused(next(stated, problem.path), problem.message)


def problems(config: Config) -> Iterator[Problem]:
    """All problems of the effective configuration, in the order of the file."""
    yield from _agent(config.agent)
    yield from _report(config.report)
    yield from _usage(config.usage)
    for name, vendor in config.vendors.items():
        if not _VENDOR.fullmatch(name) or len(name) > 63:
            yield Problem(("vendors", name), "a vendor's name is lower-case letters, digits and '-'")
        if vendor.memory_limit and not MIN_MEMORY <= vendor.memory_limit <= MAX_MEMORY:
            why = f"must be 0 for none, or from 64MiB to 1TiB; found {vendor.memory_limit} bytes"
            yield Problem(("vendors", name, "memoryLimit"), why)
        yield from _libraries(name, vendor)
        for index, rule in enumerate(vendor.resources):
            yield from _rule(rule, ("vendors", name, "resources", index))
    yield from _duplicate_names(config.vendors)
    yield from _claims_without_pods(config)
    yield from _device_infos_dir(config)


def shares_in_doubt(config: Config, scheduler: Scheduler) -> Iterator[Problem]:
    """Warnings about shares that a scheduler would count as whole cards. `report.mode` is set to `auto`.

    The agent then reports no cards to that scheduler.
    """
    if config.report.mode != "auto" or not config.is_set(("report", "mode")) or scheduler.report is None:
        return
    unreported = f"the agent does not report the cards to {scheduler.report.scheduler}"
    for vendor, index, rule in replicas_as_cards(config, scheduler.report.whole_cards):
        why = (
            f"'{rule.name}' counts {_shares(rule)}, which {scheduler.program} takes for whole cards: "
            f"{unreported}; rename them: '{rule.name}.shared' would do"
        )
        yield Problem(("vendors", vendor, "resources", index, "name"), why)


def settings_without_use(config: Config) -> Iterator[Problem]:
    """Warnings about settings that have no effect because the use of cards is not measured."""
    usage, usual = config.usage, UsageSettings()
    if usage.enabled:
        return
    exceeded, idle = usage.limit_exceeded, usage.idle
    for changed, path in (
        (usage.interval != usual.interval, ("usage", "interval")),
        (usage.proc_dir != usual.proc_dir, ("usage", "procDir")),
        (exceeded.by != usual.limit_exceeded.by, ("usage", "limitExceeded", "by")),
        (exceeded.for_ != usual.limit_exceeded.for_, ("usage", "limitExceeded", "for")),
        (idle.event, ("usage", "idle", "event")),
        (idle.after != usual.idle.after, ("usage", "idle", "after")),
        (config.metrics.compat, ("metrics", "compat")),
    ):
        if changed:
            yield Problem(path, "has no effect while usage.enabled is false")


def _agent(agent: AgentSettings) -> Iterator[Problem]:
    for key, path in (
        ("kubeletDir", agent.kubelet_dir),
        ("podResourcesSocket", agent.pod_resources_socket),
        ("stateDir", agent.state_dir),
        ("cdiDir", agent.cdi_dir),
    ):
        yield from _absolute(str(path), ("agent", key))
    if agent.state_dir.is_relative_to(agent.kubelet_dir):
        yield Problem(
            ("agent", "stateDir"),
            f"the state directory '{shorten(str(agent.state_dir))}' lies in the kubelet's directory "
            f"'{shorten(str(agent.kubelet_dir))}', and older kubelets delete the files in that directory; "
            "name a directory of the agent's own",
            (("agent", "kubeletDir"),),
        )
    if agent.http:
        try:
            parse_address(agent.http)
        except ConfigError as error:
            yield Problem(("agent", "http"), str(error))
    yield from _log(agent.log)
    yield from _health(agent.health)
    yield from _reconcile(agent.reconcile)


def _health(health: HealthThresholds) -> Iterator[Problem]:
    for key, polls in (("badPolls", health.bad_polls), ("goodPolls", health.good_polls)):
        if not 1 <= polls <= MAX_POLLS:
            yield Problem(("agent", "health", key), f"must be from 1 to {MAX_POLLS} polls, found {polls}")
    for key, seconds, most in (
        ("goodFor", health.good_for, HOUR),
        ("patience", health.patience, HOUR),
        ("forgetAfter", health.forget_after, 7 * 24 * HOUR),
    ):
        if not 0 <= seconds <= most:
            yield Problem(("agent", "health", key), f"must be from 0s to {most // HOUR}h, found {seconds:g}s")


def _reconcile(reconcile: ReconcileSettings) -> Iterator[Problem]:
    for key, seconds in (("interval", reconcile.interval), ("grace", reconcile.grace)):
        if not 1 <= seconds <= HOUR:
            yield Problem(("agent", "reconcile", key), f"must be from 1s to 1h, found {seconds:g}s")


def _report(report: ReportSettings) -> Iterator[Problem]:
    for key, path in (("featuresFile", report.features_file), ("machineFile", report.machine_file)):
        if path:
            yield from _absolute(path, ("report", key))
    yield from _absolute(report.device_infos_dir, ("report", "deviceInfosDir"))
    if report.labels_as == "file" and not report.features_file:
        why = "needs the file that the labels go to: set report.featuresFile"
        yield Problem(("report", "labelsAs"), why, (("report", "featuresFile"),))
    if report.namespace and not (_VENDOR.fullmatch(report.namespace) and len(report.namespace) <= 63):
        why = f"'{shorten(report.namespace, 60)}' is no namespace: lower-case letters, digits and '-'"
        yield Problem(("report", "namespace"), why)


def _usage(usage: UsageSettings) -> Iterator[Problem]:
    if not 1 <= usage.interval <= MINUTE:
        why = f"must be from 1s to 1m, found {usage.interval:g}s"
        yield Problem(("usage", "interval"), why)
    yield from _absolute(str(usage.proc_dir), ("usage", "procDir"))
    exceeded, idle = usage.limit_exceeded, usage.idle
    if not 0 <= exceeded.by <= 1:
        yield Problem(("usage", "limitExceeded", "by"), f"must be from 0 to 1, found {exceeded.by:g}")
    if not 0 <= exceeded.for_ <= HOUR:
        why = f"must be from 0s to 1h, found {exceeded.for_:g}s"
        yield Problem(("usage", "limitExceeded", "for"), why)
    if not MINUTE <= idle.after <= 7 * 24 * HOUR:
        yield Problem(("usage", "idle", "after"), f"must be from 1m to 168h, found {idle.after:g}s")


def _log(log: LogSettings) -> Iterator[Problem]:
    if log.dir:
        yield from _absolute(log.dir, ("agent", "log", "dir"))
    if log.max_bytes < MIN_LOG_BYTES:
        yield Problem(("agent", "log", "maxBytes"), f"must be at least {MIN_LOG_BYTES} bytes")
    if not 1 <= log.keep <= 1000:
        yield Problem(("agent", "log", "keep"), "must be from 1 to 1000 files")


def _absolute(text: str, path: Path) -> Iterator[Problem]:
    if why := not_absolute(text):
        yield Problem(path, why)


def not_absolute(text: str) -> str:
    """Why the text is no absolute path; empty if it is one."""
    absolute = text.startswith("/") and "\0" not in text
    return "" if absolute else f"must be an absolute path, found '{shorten(text, 60)}'"


def _rule(rule: ResourceRule, path: Path) -> Iterator[Problem]:
    if wrong := wrong_name(rule.name):
        yield Problem((*path, "name"), wrong)
    yield from _sharing(rule.sharing, (*path, "sharing"))
    yield from _devices(rule, (*path, "devices"))


def shares_as_cards(config: Config, scheduler: Scheduler) -> Iterator[Problem]:
    """Shares that a scheduler would count as whole cards, though the config sets the mode of its report."""
    if config.report.mode not in ("feed", "device") or scheduler.report is None:
        return
    for vendor, index, rule in replicas_as_cards(config, scheduler.report.whole_cards):
        why = (
            f"'{rule.name}' counts {_shares(rule)}, which {scheduler.program} takes for whole cards "
            f"(report.mode is '{config.report.mode}'); rename them: '{rule.name}.shared' would do"
        )
        at: Path = ("vendors", vendor, "resources", index, "name")
        yield Problem(at, why, (("report", "mode"),))


def replicas_as_cards(
    config: Config, whole_cards: Collection[str]
) -> Iterator[tuple[str, int, ResourceRule]]:
    """The rules of shares that are named as `whole_cards`, with vendor and position in the vendor's list."""
    for vendor, settings in config.vendors.items():
        for index, rule in enumerate(settings.resources):
            if rule.name in whole_cards and rule.sharing.kind != "exclusive":
                yield vendor, index, rule


def _shares(rule: ResourceRule) -> str:
    return "units of memory" if rule.sharing.kind == "memory" else "replicas"


def _claims_without_pods(config: Config) -> Iterator[Problem]:
    """Problems of resources with placement `claim` where the agent does not read the pods with the claims."""
    if config.agent.watch_pods:
        return
    for vendor, settings in config.vendors.items():
        for index, rule in enumerate(settings.resources):
            if rule.placement == "claim":
                why = (
                    "with agent.watchPods false no scheduler's choice is seen, and every pod would be "
                    "refused; set agent.watchPods to true (in the chart pods.enabled and api.enabled), or "
                    "placement to auto"
                )
                at: Path = ("vendors", vendor, "resources", index, "placement")
                yield Problem(at, why, (("agent", "watchPods"),))


def _device_infos_dir(config: Config) -> Iterator[Problem]:
    """Problems of `report.deviceInfosDir` that lies in another directory, or contains one.

    Another program reads all files of `report.deviceInfosDir`, and the agent deletes old ones there.
    """
    agent, wanted = config.agent, FilePath(normpath(config.report.device_infos_dir))
    own = "every file in the directory counts as a list of cards; name another directory"
    at: Path = ("report", "deviceInfosDir")
    shown = f"the directory '{shorten(config.report.device_infos_dir)}'"
    for key, path in (
        ("kubeletDir", agent.kubelet_dir),
        ("stateDir", agent.state_dir),
        ("cdiDir", agent.cdi_dir),
    ):
        if wanted.is_relative_to(normpath(path)):
            why = f"{shown} lies in '{shorten(str(path))}' (agent.{key}), and {own}"
            yield Problem(at, why, (("agent", key),))
    for key, path in (("kubeletDir", agent.kubelet_dir), ("podResourcesSocket", agent.pod_resources_socket)):
        own_path = FilePath(normpath(path))
        if own_path != wanted and own_path.is_relative_to(wanted):
            why = f"{shown} has the kubelet's '{shorten(str(path))}' (agent.{key}) in it, and {own}"
            yield Problem(at, why, (("agent", key),))


def _libraries(name: str, vendor: VendorSettings) -> Iterator[Problem]:
    """`library` becomes a setting of the vendor, so both must not be set."""
    if vendor.library and vendor.settings.get("library"):
        setting = shorten(str(vendor.settings["library"]))
        why = (
            f"is '{setting}', and vendors.{shorten(name)}.library is '{shorten(vendor.library)}'; "
            "both are one setting: remove one"
        )
        own_key: Path = ("vendors", name, "library")
        yield Problem(("vendors", name, "settings", "library"), why, (own_key,))


def _sharing(sharing: Sharing, path: Path) -> Iterator[Problem]:
    if sharing.kind == "replicas":
        if sharing.replicas < 2:
            yield Problem((*path, "replicas"), f"must be 2 or more, found {sharing.replicas}")
        if sharing.replicas > MAX_REPLICAS:
            yield Problem(
                (*path, "replicas"), f"must be {MAX_REPLICAS} or fewer: the kubelet takes a list of 4 MiB"
            )
        return
    if sharing.kind == "memory" and sharing.unit is None:
        yield Problem((*path, "kind"), f"'memory' needs the key 'unit': one of {', '.join(get_args(Unit))}")
    if sharing.kind != "memory" and sharing.unit is not None:
        yield Problem((*path, "unit"), f"belongs to kind 'memory', found with kind '{sharing.kind}'")
    for key, changed in (
        ("replicas", sharing.replicas != 1),
        ("failRequestsGreaterThanOne", sharing.fail_requests_greater_than_one),
        ("spanCards", not sharing.span_cards),
    ):
        if changed:
            yield Problem((*path, key), f"belongs to kind 'replicas', found with kind '{sharing.kind}'")


def _devices(rule: ResourceRule, path: Path) -> Iterator[Problem]:
    if isinstance(rule.devices, str):
        return
    if isinstance(rule.devices, int):
        if rule.devices < 1:
            yield Problem(path, f"a count of cards must be 1 or more, found {rule.devices}")
        return
    if not rule.devices:
        yield Problem(path, "names no card; write all, a count, or a list of indices and uuids")
    named: set[int | str] = set()
    for index, card in enumerate(rule.devices):
        if isinstance(card, int) and card < 0:
            yield Problem((*path, index), f"an index must be 0 or more, found {card}")
        if isinstance(card, str) and (not card or card.isdigit()):
            yield Problem(
                (*path, index), f"write an index as a plain number, found the text '{shorten(card, 40)}'"
            )
        if card in named:
            yield Problem((*path, index), f"the card {shorten(str(card))} is named twice")
        named.add(card)


def overlaps(rules: Sequence[ResourceRule], path: Path, *, dynamic: bool) -> Iterator[Problem]:
    """Problems between the rules of a vendor, after the vendor has filled in what they leave open."""
    yield from (_equal_ids if dynamic else _shared_cards)(rules, path)


def _shared_cards(rules: Sequence[ResourceRule], path: Path) -> Iterator[Problem]:
    """Problems where a card is listed by two resources. Only the vendor knows the cards that `all` means."""
    owners: dict[int | str, str] = {}
    for index, rule in enumerate(rules):
        if isinstance(rule.devices, tuple):
            for position, card in enumerate(rule.devices):
                owner = owners.setdefault(card, rule.name)
                if owner != rule.name:
                    message = f"the card {shorten(str(card))} belongs to '{shorten(owner)}' already"
                    yield Problem((*path, index, "devices", position), message)


def _equal_ids(rules: Sequence[ResourceRule], path: Path) -> Iterator[Problem]:
    """Problems where two resources on the same cards would make equal device IDs."""
    for one, other in rules_with_equal_ids(rules):
        message = (
            f"'{shorten(other.name)}' would make the same IDs of a card as '{shorten(one.name)}'; "
            f"both use ids: '{one.form}'; set ids of one of them to another form: uuid, minor or short"
        )
        yield Problem((*path, rules.index(other), "ids"), message)


def _duplicate_names(vendors: Mapping[str, VendorSettings]) -> Iterator[Problem]:
    """Problems where two resources of the config have one name."""
    first: dict[str, str] = {}
    for vendor, settings in vendors.items():
        for index, rule in enumerate(settings.resources):
            if rule.name in first:
                place = f"vendors.{shorten(first[rule.name])}"
                message = f"the resource '{shorten(rule.name)}' is named twice; the first is under {place}"
                yield Problem(("vendors", vendor, "resources", index, "name"), message)
            first.setdefault(rule.name, vendor)
