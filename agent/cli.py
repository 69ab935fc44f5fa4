"""The command line: one verb, one function. Exit 0 ok, 1 refused, 2 usage."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.core.errors import AgentError
from agent.core.vendor import SettingsError, Vendor

REFUSED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb that the arguments name."""
    args = _parser().parse_args(argv)
    if args.version:
        from agent.version import version

        print(f"xpu-agent {version()}")
        return 0
    if args.verb is None:
        _parser().print_help()
        return 2
    try:
        return int(args.verb(args) or 0)
    except Exception as exc:
        if (refusal := _refusal(exc)) is None:
            raise
        print(f"xpu-agent: {refusal}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has seen enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return REFUSED if args.verb is demo else 0  # a story that was not heard out has proven nothing


def _refusal(exc: BaseException) -> BaseException | None:
    """The sentence for people, where the error is one of ours; task groups wrap it."""
    if isinstance(exc, AgentError | SettingsError):
        return exc
    inner = exc.exceptions if isinstance(exc, BaseExceptionGroup) else ()
    return next((it for it in map(_refusal, inner) if it is not None), None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="xpu-agent",
        description="One Kubernetes node agent for every vendor's accelerators.",
        epilog="Every flag of `run` can be set as environment variable XPU_AGENT_<FLAG>, for example "
        "XPU_AGENT_STATE_DIR, NVIDIA's flags as NVIDIA calls them; NODE_NAME names the node. "
        "Exit: 0 ok, 1 refused, 2 usage.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.set_defaults(verb=None)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    _run(verbs)
    _demo(verbs)
    _inspect(verbs)
    _health(verbs)
    _plugins(verbs)
    _labels(verbs)
    _config(verbs)
    _conformance(verbs)
    _uninstall(verbs)
    _doctor(verbs)
    return parser


Verbs = argparse._SubParsersAction  # the only name argparse has for it

#: How often a flag of NVIDIA's stands, and whether it needs a value. Switches also stand alone.
_ARITY: dict[str, dict[str, Any]] = {
    "TEXT": {"metavar": "TEXT"},
    "BOOL": {"nargs": "?", "const": "true", "metavar": "BOOL"},
    "TEXTS": {"action": "append", "metavar": "LIST"},
    "NUMBERS": {"action": "append", "metavar": "LIST"},
    "DURATION": {"metavar": "TIME"},
}


def _run(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("run", help="run the agent on this node", allow_abbrev=False)
    _configuration(parser)
    parser.set_defaults(verb=run)


def _configuration(parser: argparse.ArgumentParser) -> None:
    """What decides the configuration: ours first, then NVIDIA's."""
    parser.add_argument(
        "--config",
        metavar="F",
        help="config file, or a directory of named ones (default: every vendor, auto)",
    )
    parser.add_argument("--node-config", metavar="NAME", help="which of the directory holds on this node")
    parser.add_argument("--node-config-file", metavar="F", help="a file that holds this name; it is followed")
    parser.add_argument("--default-config", metavar="NAME", help="which holds on a node that names none")
    parser.add_argument(
        "--fallback-strategies",
        metavar="LIST",
        help="what holds without either: named, single, empty (default: named,single)",
    )
    parser.add_argument("--node-name", metavar="N", help="this node (default: NODE_NAME, else the host name)")
    parser.add_argument("--kubelet-dir", metavar="D", help="the kubelet's device-plugins directory")
    parser.add_argument("--pod-resources-socket", metavar="S", help="the kubelet's PodResources socket")
    parser.add_argument("--state-dir", metavar="D", help="where checkpoint, lock and admin socket live")
    parser.add_argument("--cdi-dir", metavar="D", help="where container runtimes look for CDI specs")
    parser.add_argument("--http", metavar="ADDR:PORT", help='where the views are served; "" is off')
    parser.add_argument(
        "--watch-pods", choices=["true", "false"], help="whether the node's pods are asked for"
    )
    parser.add_argument("--report-labels", choices=["true", "false"], help="whether the Node is labelled")
    parser.add_argument("--report-events", choices=["true", "false"], help="whether Events are written")
    parser.add_argument("--log-format", choices=["auto", "json", "console"], help="how to log")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], help="how much to log")
    _nvidia(parser)


def _nvidia(parser: argparse.ArgumentParser) -> None:
    """The flags of NVIDIA's programs. Go takes them with one dash as well."""
    from agent.config import NVIDIA_FLAGS

    told = (
        "As nvidia-device-plugin and gpu-feature-discovery v0.20 have them, with their variables and the "
        "keys of NVIDIA's file. DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS are variables alone."
    )
    group = parser.add_argument_group("NVIDIA's flags", told)
    group.add_argument(
        "--config-file", "-config-file", dest="config", metavar="F", help="the same as --config"
    )
    for flag in NVIDIA_FLAGS:
        dashed = [f"--{name}" if len(name) > 1 else f"-{name}" for name in flag.names]
        if dashed:
            help = ", ".join((*flag.variables, *([flag.tree] if flag.tree else [])))
            group.add_argument(*dashed, dest=flag.name, help=help, **_ARITY[flag.kind.name])
            once = [name.removeprefix("-") for name in dashed if name.startswith("--")]
            group.add_argument(*once, dest=flag.name, help=argparse.SUPPRESS, **_ARITY[flag.kind.name])


def run(args: argparse.Namespace) -> int:
    """`xpu-agent run`: serve until SIGTERM."""
    # Before there is a loop to receive them: an end is an end, and there is nothing to read again yet.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))

    import anyio
    import structlog

    from agent import logs
    from agent.cluster.access import find, named
    from agent.config import ConfigWatch, Labels, given_flags, given_source
    from agent.core.cell import Cell
    from agent.fleet import check
    from agent.process import recalled, serve

    given, node_name = _given(args), _node_name(args)
    source, flags = given_source(given, os.environ), given_flags(given, os.environ)
    kubeconfig = named(args.kubeconfig, os.environ)
    access = find(kubeconfig.path, os.environ, by=kubeconfig.by)
    labels: Cell[Labels | None] | None = Cell(None) if access else None
    watch = ConfigWatch(source, node_name, flags=flags, check=check, labels=labels, recall=recalled)
    logs.configure(watch.cell.value.config.agent.log)
    if kubeconfig.warning:
        structlog.get_logger().warning(kubeconfig.warning)
    anyio.run(serve, watch, node_name, None, access, labels)
    return 0


def _node_name(args: argparse.Namespace) -> str:
    named = args.node_name or os.environ.get("XPU_AGENT_NODE_NAME") or os.environ.get("NODE_NAME")
    return named or socket.gethostname()


def _given(args: argparse.Namespace) -> dict[str, object]:
    """The arguments, named as their flags."""
    return {name.replace("_", "-"): value for name, value in vars(args).items()}


def _demo(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("demo", help="a scripted day on an embedded node; needs no GPU, no cluster")
    parser.add_argument("--fast", action="store_true", help="without pauses for reading")
    parser.add_argument("--json", action="store_true", help="one JSON object per step")
    parser.set_defaults(verb=demo)


def demo(args: argparse.Namespace) -> int:
    """`xpu-agent demo`: exit 0 only if every step held."""
    from agent.demo.play import main as play

    return play(fast=args.fast, as_json=args.json)


def _inspect(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("inspect", help="what the running agent knows")
    parser.add_argument("--json", action="store_true", help="the document as JSON")
    _state_dir(parser)
    parser.set_defaults(verb=inspect)


def _state_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", type=Path, metavar="D", help="where the agent keeps its admin socket")


def _admin_socket(args: argparse.Namespace) -> Path:
    from agent.config import AgentSettings

    default = os.environ.get("XPU_AGENT_STATE_DIR") or AgentSettings().state_dir
    return Path(args.state_dir or default) / "agent.sock"


def inspect(args: argparse.Namespace) -> int:
    """`xpu-agent inspect`: tables and a tree for people, JSON for programs."""
    import msgspec

    from agent.inspect import fetch, show

    body = fetch(_admin_socket(args))
    if args.json:
        print(body.decode())
    else:
        show(msgspec.json.decode(body))
    return 0


def _health(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("health", help="the health of devices, and an operator's word on them")
    inner = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    listing = inner.add_parser("list", help="each device: what it has, what ends it, who cordoned it")
    listing.add_argument("--json", action="store_true", help="one JSON list")
    _state_dir(listing)
    listing.set_defaults(verb=health_list)
    for word, help in (
        ("cordon", "give the device to nobody new; who has it keeps it"),
        ("uncordon", "give it out again"),
        ("clear", "stand in for the proof that its fault is over; forget a device that is gone"),
    ):
        telling = inner.add_parser(word, help=help)
        telling.add_argument("device", metavar="UUID", help="its uuid, or how that alone begins")
        if word == "cordon":
            telling.add_argument("--reason", default="", metavar="TEXT", help="why, for who meets it")
        _state_dir(telling)
        telling.set_defaults(verb=health_word, word=word, reason="")


def health_list(args: argparse.Namespace) -> int:
    """`xpu-agent health list`: every device that is known or remembered."""
    import json

    from agent.operator import listed, show

    devices = listed(_admin_socket(args))
    if args.json:
        print(json.dumps(devices, indent=2))
    else:
        show(devices)
    return 0


def health_word(args: argparse.Namespace) -> int:
    """`xpu-agent health cordon|uncordon|clear UUID`: exit 1 where the agent refuses."""
    from agent.operator import say

    print(say(_admin_socket(args), args.word, args.device, args.reason))
    return 0


def _plugins(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("plugins", help="vendors found, from where, and why one was left out")
    parser.add_argument("--json", action="store_true", help="one JSON list")
    parser.set_defaults(verb=plugins)


def plugins(args: argparse.Namespace) -> int:
    """`xpu-agent plugins`: loads every vendor's plugin, and no vendor's library."""
    from agent import plugins as found

    rows = [
        {
            "name": it.name,
            "origin": it.origin,
            "version": it.version,
            "resource": it.vendor.resource if it.vendor else None,
            "reason": it.reason,
        }
        for it in found.load({}, None)
    ]
    if args.json:
        import json

        print(json.dumps(rows, indent=2))
        return 0
    from agent.inspect import table

    table("vendors", rows)
    return 0


def _labels(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("labels", help="the labels that the node's devices give it", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    _configuration(parser)
    _node_labels(parser)
    parser.set_defaults(verb=labels)


def labels(args: argparse.Namespace) -> int:
    """`xpu-agent labels`: ask the vendors once; print, or write where --output-file says."""
    from agent.config import configured, given_labels, seen_labels
    from agent.labels import show
    from agent.plugins import names

    given = _given(args)
    node = seen_labels(given_labels(args.node_label))
    config = configured(given, os.environ, _node_name(args), names(), node)
    output = Path(config.report.features_file) if given["output-file"] else None
    return show(config, output, as_json=args.json)


def _config(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("config", help="look at a configuration")
    inner = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    check = inner.add_parser(
        "check", help="print the effective config, or the error with its place", allow_abbrev=False
    )
    _configuration(check)
    _node_labels(check)
    check.set_defaults(verb=config_check)


def _node_labels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--node-label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label that the Node has, for a configuration that depends on it; may be repeated",
    )


def config_check(args: argparse.Namespace) -> int:
    """`xpu-agent config check`: what the agent would run with."""
    from agent.config import configured, given_labels, given_source, seen_labels, to_yaml
    from agent.fleet import check
    from agent.plugins import names

    given, told = _given(args), given_labels(args.node_label)
    node = seen_labels(told)
    config = check(configured(given, os.environ, _node_name(args), names(), node))
    missing = config.asks - told.keys()
    if missing:
        without = f"this is for a Node without {', '.join(sorted(missing))}; give --node-label KEY=VALUE"
        print(f"xpu-agent: warning: {without}", file=sys.stderr)
    for warning in config.warnings:
        print(f"xpu-agent: warning: {warning}", file=sys.stderr)
    print(f"# {given_source(given, os.environ).look(node).source}")
    print(to_yaml(config), end="")
    return 0


def _conformance(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("conformance", help="hold a vendor's backend against the vendor contract")
    parser.add_argument("vendor", metavar="VENDOR", help="a name that `xpu-agent plugins` lists")
    parser.add_argument("--config", type=Path, metavar="F", help="config file with the vendor's settings")
    parser.set_defaults(verb=conformance, node_name=None)


def conformance(args: argparse.Namespace) -> int:
    """`xpu-agent conformance VENDOR`: exit 1 where a check fails."""
    import asyncio

    from agent.config import configured, seen_labels
    from agent.core.errors import VendorError
    from agent.fleet import check, wanted

    config = check(configured({"config": args.config}, os.environ, _node_name(args), labels=seen_labels({})))
    found = {it.name: it for it in wanted(config)}
    plugin = found.get(args.vendor)
    if plugin is None:
        raise VendorError(f"no vendor {args.vendor!r} here; there are: {', '.join(sorted(found))}")
    if plugin.vendor is None:
        raise VendorError(f"{args.vendor} is left out: {plugin.reason}")
    return asyncio.run(_conform(plugin.vendor))


async def _conform(vendor: Vendor) -> int:
    from agent.testing.conformance import check_vendor

    words = {True: "ok", False: "FAILED", None: "not made"}
    failed = 0
    async for finding in check_vendor(vendor):
        print(f"{words[finding.ok]:9}{finding.name}" + (f": {finding.detail}" if finding.detail else ""))
        failed += finding.ok is False
    print(f"{vendor.name}: {failed} failed" if failed else f"{vendor.name}: conforms")
    return REFUSED if failed else 0


def _doctor(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "doctor", help="what keeps this node from giving out its cards, and what mends it", allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path("/"),
        metavar="D",
        help="where the host's / is mounted, if elsewhere",
    )
    _configuration(parser)
    parser.set_defaults(verb=doctor)


def doctor(args: argparse.Namespace) -> int:
    """`xpu-agent doctor`: reads and asks, changes nothing. Exit 1 where something stops work."""
    from agent.cluster.access import named
    from agent.doctor.survey import Question
    from agent.doctor.visit import visit

    kubeconfig = named(args.kubeconfig, os.environ)
    question = Question(_node_name(args), _given(args), os.environ, kubeconfig, args.host_root)
    return visit(question, as_json=args.json)


def _uninstall(verbs: Verbs[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "uninstall", help="remove from the node what survives the agent's end, but for checkpoint and logs"
    )
    _state_dir(parser)
    parser.add_argument(
        "--kubelet-dir", type=Path, metavar="D", help="the kubelet's device-plugins directory"
    )
    parser.add_argument(
        "--also",
        type=Path,
        action="append",
        default=[],
        metavar="F",
        help="a file that counts as the agent's",
    )
    parser.add_argument("--force", action="store_true", help="also while an agent serves the node")
    parser.add_argument(
        "--node-name", metavar="N", help="whose labels (default: NODE_NAME, else the host name)"
    )
    parser.add_argument("--kubeconfig", metavar="F", help="how to reach the API server (default: in-cluster)")
    parser.set_defaults(verb=uninstall)


def uninstall(args: argparse.Namespace) -> int:
    """`xpu-agent uninstall`: exit 1 while an agent serves, and where something could not be removed."""
    from agent.cluster.access import find, named
    from agent.config import AgentSettings
    from agent.uninstall import uninstall, unlabel

    defaults = AgentSettings()
    kubelet_dir = args.kubelet_dir or os.environ.get("XPU_AGENT_KUBELET_DIR") or defaults.kubelet_dir
    state_dir = _admin_socket(args).parent

    def unlabelled(made: Sequence[str]) -> None:
        kubeconfig = named(args.kubeconfig, os.environ)
        if kubeconfig.warning:
            print(f"xpu-agent: warning: {kubeconfig.warning}", file=sys.stderr)
        if (access := find(kubeconfig.path, os.environ, by=kubeconfig.by)) is not None:
            unlabel(access, _node_name(args), made)
        elif made:
            sys.stdout.write(f"NodeFeature in {', '.join(made)}: not looked for, as no API server is known\n")

    return uninstall(state_dir, Path(kubelet_dir), args.also, unlabel=unlabelled, force=args.force)


if __name__ == "__main__":
    sys.exit(main())
