"""The help texts of the counters, which the wires count by name alone."""

from __future__ import annotations

from collections.abc import Mapping

#: The text of a counter that is not listed here.
UNNAMED = "Counted since the agent started."

_OF_A_RESOURCE = {
    "allocations": "Allocate calls of the kubelet.",
    "allocations_failed": "Allocate calls that were refused or failed.",
    "list_bytes": "Bytes of the lists of devices that were sent to the kubelet.",
    "lists": "Lists of devices that were sent to the kubelet.",
    "lists_failed": "Lists that could not be encoded; the last one stays.",
    "lists_too_long": "Lists longer than the 4 MiB that the kubelet takes; the last that fits stays.",
    "pre_starts": "PreStartContainer calls of the kubelet.",
    "pre_starts_failed": "PreStartContainer calls that were refused or failed.",
    "preferred": "GetPreferredAllocation calls of the kubelet.",
    "preferred_empty": "GetPreferredAllocation calls that left the choice to the kubelet.",
    "registrations_failed": "Registrations that the kubelet refused or did not answer.",
    "streams": "ListAndWatch streams that the kubelet opened.",
    "streams_refused": "ListAndWatch streams of other clients than the kubelet, refused or ended.",
}

#: Name of the counter in the status, without prefix and `_total`, to its text.
COUNTED: Mapping[str, str] = {
    "annotation_writes": "Writes of the annotations that vendors give the Node.",
    "checkpoint_saves": "Times that the checkpoint or its journal was written.",
    "checkpoint_set_aside": "Whether the agent began without its checkpoint or some of its journal, and why.",
    "events": "Events of the cluster: sent, tried again, refused, dropped, suppressed.",
    "evidence_unreadable": "Passes of reconcile in which a source could not be read.",
    "extended_writes": "Writes of the extended resources that vendors count for the Node.",
    "device_infos_writes": "Writes of the file from which koordlet knows the cards.",
    "locks_freed": "Locks of schedulers on the node that were freed.",
    "koordinator_device_writes": "Writes of the node's Device object.",
    "label_writes": "Writes of the Node's labels, or of its NodeFeature object.",
    "receipt_writes": "Writes to pods by which schedulers know that these have their devices.",
    "reconcile_actions": "What reconcile did to allocations and slices.",
    "vendor_restarts": "How often the vendor's process was lost by its own fault.",
    **{f"plugin_{name}": help_ for name, help_ in _OF_A_RESOURCE.items()},
}
