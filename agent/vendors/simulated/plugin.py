"""Registers the simulated vendor where its settings ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from agent.vendor_api.agent import Host, NodeFacts, Settings, SettingsError, Slices, Vendor
from agent.vendor_api.hooks import hookimpl
from agent.vendor_api.kubernetes_names import wrong_name
from agent.vendors.simulated.agent.claims import DIALECT, WITH_RECEIPT
from agent.vendors.simulated.agent.container_edits import VISIBLE, container_edits, edits_by_cdi
from agent.vendors.simulated.agent.labels import counted, given_out, labels

RESOURCE = "xpu-agent.io/simulated"
SETTINGS = {
    "devices": "a whole number from 0 to 1024",
    "scenario": "the absolute path of a scenario",
    "resource": f"the name of the resource; {RESOURCE}",
    "labels": "true or false",
    "prepares": "true or false",
    "partitions": "the absolute path of the file that keeps the slices",
    "cdi": "true or false; needs prepares",
    "annotation": "the key of an annotation of the Node",
    "extendedResource": "the name of an extended resource of the Node",
    "receipts": "true or false",
    "deviceNodes": "true or false",
}


@hookimpl
def register_backend(settings: Mapping[str, Any]) -> Vendor | None:
    """Sit out unless the settings name a scenario or a number of devices: made-up cards must be intended."""
    _check(settings)
    if not (settings.get("scenario") or settings.get("devices")):
        return None
    resource = settings.get("resource", RESOURCE)
    annotation, extended = settings.get("annotation", ""), settings.get("extendedResource", "")
    return Vendor(
        name="simulated",
        backend="agent.vendors.simulated.child.backend:SimulatedBackend",
        resource=resource,
        container_edits=edits_by_cdi if settings.get("cdi") else container_edits,
        settings=Settings(dict(settings), descriptions=SETTINGS),
        makes=Slices() if settings.get("prepares") else None,
        publishes=NodeFacts(
            labels=partial(labels, resource) if settings.get("labels") else None,
            annotations=partial(given_out, annotation) if annotation else None,
            annotation_keys=(annotation,) if annotation else (),
            extended_resources=partial(counted, extended) if extended else None,
            extended_resource_keys=(extended,) if extended else (),
        ),
        dialects=(WITH_RECEIPT if settings.get("receipts") else DIALECT,),
        host=Host(devices_variable=VISIBLE),
    )


def _check(settings: Mapping[str, Any]) -> None:
    unknown = sorted(set(settings) - set(SETTINGS))
    if unknown:
        raise SettingsError(f"{unknown[0]!r} is not known; these are: {', '.join(SETTINGS)}")
    devices = settings.get("devices", 0)
    if type(devices) is not int or not 0 <= devices <= 1024:
        raise SettingsError(f"devices: {devices!r} is no number from 0 to 1024")
    for name in ("labels", "deviceNodes", "cdi", "receipts"):
        if type(settings.get(name, False)) is not bool:
            raise SettingsError(f"{name}: {settings[name]!r} is neither true nor false")
    for name, what in (("annotation", "key of an annotation"), ("extendedResource", "name of a resource")):
        if not isinstance(settings.get(name, ""), str):
            raise SettingsError(f"{name}: {settings[name]!r} is no {what}")
    resource = settings.get("resource", RESOURCE)
    if not isinstance(resource, str):
        raise SettingsError(f"resource: {resource!r} is no text", ("resource",))
    if wrong := wrong_name(resource):
        raise SettingsError(wrong, ("resource",))
    for name in ("scenario", "partitions"):
        path = settings.get(name, "/")
        if not (isinstance(path, str) and path.startswith("/")):
            raise SettingsError(f"{name}: {path!r} is no absolute path")
    if settings.get("cdi") and not settings.get("prepares"):
        raise SettingsError("cdi: needs `prepares`: what it names are slices")
    if settings.get("prepares") and not settings.get("partitions"):
        raise SettingsError("prepares: needs `partitions`, the file that keeps the slices")
