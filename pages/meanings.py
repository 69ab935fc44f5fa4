"""What each key of our file means, in the words of docs/config.md."""

from __future__ import annotations

from collections.abc import Mapping

from agent.config.validation import MAX_POLLS, MIN_LOG_BYTES
from agent.logs.log_file import RETRY_SECONDS
from agent.vendor_api.agent import MAX_REPLICAS

_LABELS_OFF = (
    "`false`: the agent's labels and its NodeFeature object are removed, `featuresFile` is no longer kept, "
    "and one that the running agent wrote is removed."
)
_DEVICES = (
    "`all`, a count of cards, or a list of indices and uuids. Two resources of one vendor both need it where "
    "`modes` is `fixed`: a card then belongs to one resource. Of NVIDIA `all` is what earlier resources "
    "left, and a MIG profile is a resource beside the whole cards."
)
_MEMORY = (
    "What the vendor's process may have of memory of its own (64MiB to 1TiB, `0` for no limit); one that has "
    "more is killed and started again. In a container with a memory limit all vendors on the node together "
    "may have that limit less 256 MiB, in equal parts where that is less than they would; of its part a "
    "process may have four fifths, and then `0` is as much. `xpu-agent inspect` shows what it has, with "
    "`--json` also what it may have (`memoryLimitBytes`). A change starts a new process."
)

#: Every key by its path; NAME stands for a vendor's.
MEANINGS: Mapping[str, str] = {
    "version": "`v1`, or left out.",
    "agent": "This program: where things are, and how patient it is.",
    "agent.kubeletDir": "Where the kubelet's socket is and the agent's own go.",
    "agent.podResourcesSocket": "The kubelet's word on which pods live.",
    "agent.stateDir": "The agent's checkpoint, lock and admin socket. Not within `kubeletDir`.",
    "agent.cdiDir": "Where specs for the Container Device Interface are written.",
    "agent.http": (
        'ADDR:PORT, `[::1]:9808` for IPv6; `""` or `off` for none. On loopback it serves everything, '
        "to clients that ask for `localhost`, `127.0.0.1` or `[::1]`; on any other address only "
        "`/healthz`, `/readyz` and `/metrics`."
    ),
    "agent.watchPods": (
        "Whether the API server is asked for this node's pods: which pods ask for devices, and which pods an "
        "[Event](events.md) is about."
        " `false` beside a [`placement: claim`](#placement) is refused."
    ),
    "agent.log": "How the agent logs, below.",
    "agent.log.level": "How much.",
    "agent.log.format": "`auto` is console on a terminal, JSON elsewhere.",
    "agent.log.dir": (
        "Also write JSON lines to `xpu-agent.log` in this directory, each with the line of code that it "
        "comes from, for its owner to read. One that cannot be written is tried again every "
        f"{RETRY_SECONDS:g} s, and nothing else waits for it: the log on standard error and `xpu-agent "
        "inspect` say why."
    ),
    "agent.log.maxBytes": (
        "Size at which that file turns: a number of bytes, or one with a unit (`50MB`, `16MiB`). At least "
        f"{MIN_LOG_BYTES}."
    ),
    "agent.log.keep": "Turned files kept beside it, 1 to 1000.",
    "agent.health": "How patient the [rules of health](operations.md#health) are, below.",
    "agent.health.badPolls": (
        f"Failed polls in a row that make a device unhealthy, 1 to {MAX_POLLS}. An event does at once."
    ),
    "agent.health.goodPolls": f"Clean polls that end a transient fault, 1 to {MAX_POLLS} ...",
    "agent.health.goodFor": "... and for how long it must have been clean, up to 1 h.",
    "agent.health.patience": (
        "How long a device keeps its last health in the kubelet's list while its vendor cannot be asked, "
        "up to 1 h."
    ),
    "agent.health.forgetAfter": "How long a free device that is gone stays listed, up to `168h`.",
    "agent.reconcile": (
        "How often allocations are compared with what the kubelet and the hardware say, below."
    ),
    "agent.reconcile.interval": (
        "Between two full passes, 1 s to 1 h, ten percent more or less at random so that a cluster's agents "
        "do not march in step. The first comes when the first resource is registered. A change of the "
        "kubelet's checkpoint is followed within a second."
    ),
    "agent.reconcile.grace": (
        "How long an allocation that was just answered, and a slice that was just found without an owner, is "
        "left alone, 1 s to 1 h. The kubelet may know of it a moment later."
    ),
    "usage": "How much each container uses of each card, below.",
    "usage.enabled": (
        "Whether the vendors' libraries are asked which processes use the cards. The agent then has to see "
        "the host's processes: in the chart `usage.enabled` says so."
    ),
    "usage.interval": "Between two samples, 1 s to 1 min.",
    "usage.procDir": "Where the `/proc` of the node is, as node_exporter's `--path.procfs`.",
    "usage.limitExceeded": (
        "When the Event `LimitExceeded` tells of a container that uses more memory of a card than it was "
        "granted, below."
    ),
    "usage.limitExceeded.by": "By which part of the limit the use exceeds the limit, 0 to 1 ...",
    "usage.limitExceeded.for": "... and for how long, up to 1 h.",
    "usage.idle": (
        "When the Event `IdleAccelerator` tells of a container that holds a card and does not use it, below."
    ),
    "usage.idle.event": "Whether there is this Event.",
    "usage.idle.after": "How long the card is not used, `1m` to `168h`.",
    "metrics": "What `/metrics` has besides the agent's own metrics, below.",
    "metrics.compat": (
        "Names under which the use of cards stands there, too, so that the boards of these programs work "
        "without them: `dcgm`, `hami`, `gpu-manager`. They need `usage.enabled`."
    ),
    "vendors": "One entry per vendor, by its name. A vendor that is not named is `enabled: auto`.",
    "vendors.NAME.enabled": (
        "`auto` serves the vendor where its hardware is, and starts nothing where there is no sign of it; "
        "with `true` the agent is not ready without it; "
        "`false` leaves it alone."
    ),
    "vendors.NAME.library": "File or directory of the vendor's library; empty searches the usual places.",
    "vendors.NAME.memoryLimit": _MEMORY,
    "vendors.NAME.settings": (
        "The vendor's own settings; the vendor judges them, also those that NVIDIA's file and flags become."
    ),
    "vendors.NAME.resources": (
        "What the kubelet counts, below; none means what the vendor offers by itself, which is its own "
        "resource, whole cards, unless its settings say otherwise."
    ),
    "vendors.NAME.modes": (
        "`fixed`: a card belongs to one resource. `dynamic`: several may name it, and it is the first's that "
        "takes of it, [below](#modes). Without it the vendor's way: `dynamic` of `enflame`, `fixed` of "
        "others."
    ),
    "vendors.NAME.foreign": (
        "What is done while another device plugin of the vendor's cards runs here, beside which nothing of "
        "them is registered: `refuse` keeps the agent from being ready, `yield` leaves the cards to that "
        "plugin until it goes. [Below](#foreign)."
    ),
    "vendors.NAME.configDir": (
        "A directory of files in the vendor's own form, for vendors that read one. MetaX: the keys of its "
        "ConfigMap `metax-device-config`, which say its setting `mode`. The agent reads and follows the "
        "directory in the same way [as this file](metax.md#metax-device-config)."
    ),
    "vendors.NAME.configFile": (
        "The path of a file in the vendor's own form, for vendors that read one. Enflame: its "
        "`topscloud.json`, with the first `registerResource` as the setting of this name. The agent reads "
        "and follows the file in the same way as this file. The setting may not be set as well."
    ),
    "vendors.NAME.resources.name": "`vendor.com/name`, once in the whole file.",
    "vendors.NAME.resources.devices": _DEVICES,
    "vendors.NAME.resources.sharing": "How a card is counted, below.",
    "vendors.NAME.resources.sharing.kind": (
        "`exclusive`: a card is one device. `replicas`: it is several, and pods share it without limits. "
        "`memory`: its memory is counted, [below](#memory-in-units)."
    ),
    "vendors.NAME.resources.sharing.unit": (
        "With kind `memory`, and needed there: how many GiB a device ID stands for. `auto` is the smallest "
        "of these with a list that the kubelet takes."
    ),
    "vendors.NAME.resources.sharing.replicas": f"With kind `replicas`: how many, 2 to {MAX_REPLICAS}.",
    "vendors.NAME.resources.sharing.failRequestsGreaterThanOne": (
        "With kind `replicas`: refuse a request for two or more, which would not be twice the share."
    ),
    "vendors.NAME.resources.sharing.spanCards": (
        "With kind `replicas`: whether those of one container may lie on several cards. With `false` they "
        "lie on one, and more than a card has free are refused. Always so are `enflame.com/shared-gcu`, "
        "`enflame.com/drs-gcu` and units of memory."
    ),
    "vendors.NAME.resources.policy": (
        "Which cards a request gets first: `distributed` (least used), `packed` (most used), `aligned` (best "
        "connected), `gpu-manager` ([by the tree of the links](#the-policy-gpu-manager)). Without it the "
        "vendor's way; units of memory then go where they fit best."
    ),
    "vendors.NAME.resources.placement": (
        "What chooses the card: `local`, the kubelet and this agent; `claim`, a scheduler, and a pod for "
        "which no scheduler has chosen is refused; `auto`, a scheduler where one has, else as `local`. The "
        "last two list no NUMA node. In MetaX's mode `sgpu`, and for resources of shares in a `dialect` of "
        "Enflame's other than `none`, it is `auto` unless said, and never `local`."
    ),
    "vendors.NAME.resources.ids": (
        "How device IDs are written: `uuid`, `minor` (a card that has none is not listed; use it for one "
        "vendor of a node) or `short` (six characters made of the uuid). Without it `short` for units of "
        "memory, else `uuid`."
    ),
    "report": "What the cluster is told.",
    "report.mode": (
        "How Koordinator hears of the cards: `feed` by a file for koordlet, `device` by the node's Device "
        "object, `auto` by whichever fits, `none` not at all. [More](#koordinator)."
    ),
    "report.vendor": 'The vendor of the cards that Koordinator hears of; `""` for the one with most cards.',
    "report.deviceInfosDir": (
        "Where koordlet looks for files of cards (its `-xpu-device-infos-dir`). Not within `kubeletDir`, "
        "`stateDir` or `cdiDir`, nor around the kubelet's: koordlet takes every file there for such a list."
    ),
    "report.labels": f"Whether the Node is labelled. {_LABELS_OFF}",
    "report.featuresFile": (
        'A file in node-feature-discovery\'s `features.d` that the labels are written to; `""` for none.'
    ),
    "report.timestamp": "Whether the labels say when they were made (`nvidia.com/gfd.timestamp`).",
    "report.machineFile": 'The file that names the model of the machine; `""` for none.',
    "report.labelsAs": (
        "How the Node gets them, below. `auto` is `file` where `featuresFile` names one, else `node` where "
        "there is an API server."
    ),
    "report.namespace": 'Where the NodeFeature object is made; `""` for the namespace of the agent\'s pod.',
    "report.events": "Whether what happens to cards, pods and config becomes cluster [Events](events.md).",
    "nodes": "What holds for some nodes only, below.",
    "nodes.match": "Which nodes; all that is given has to fit.",
    "nodes.match.names": "The node's name is one of these.",
    "nodes.match.labels": "The Node has all of these labels, each with this value.",
    "nodes.set": "What is laid over the file there: any of `agent`, `vendors`, `report`.",
}
