"""Flags of several verbs, and what their values mean."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.cluster.credentials import ApiAccess
    from agent.vendor_api.config_flags import FlagGroup

#: Exit code of a verb that refuses, or that has found something.
REFUSED = 1
#: Exit code where an argument, a variable or a needed file cannot be used.
MISUSED = 2
#: Exit code after ^C, as shells define it.
INTERRUPTED = 130

#: Kind of a vendor's flag to its arguments for argparse. A switch may stand without a value.
_ARITY: dict[str, dict[str, Any]] = {
    "TEXT": {"metavar": "TEXT"},
    "BOOL": {"nargs": "?", "const": "true", "metavar": "BOOL"},
    "TEXTS": {"action": "append", "metavar": "LIST"},
    "NUMBERS": {"action": "append", "metavar": "LIST"},
    "DURATION": {"metavar": "TIME"},
}


def configuration(parser: argparse.ArgumentParser) -> None:
    """The flags that decide the configuration: the agent's own, then those of vendors."""
    parser.usage = "%(prog)s [option ...]"  # a list of a hundred flags would hide the error below it
    parser.add_argument(
        "--config",
        metavar="F",
        help="config file, or a directory of named config files (default: every vendor, auto)",
    )
    parser.add_argument(
        "--node-config", metavar="NAME", help="name of the config file in the directory for this node"
    )
    parser.add_argument(
        "--node-config-file", metavar="F", help="a file that contains this name; the agent watches the file"
    )
    parser.add_argument(
        "--default-config",
        metavar="NAME",
        help="name of the config file for a node without a name of its own",
    )
    parser.add_argument(
        "--fallback-strategies",
        metavar="LIST",
        help="what is used without such a name: named, single, empty (default: named,single)",
    )
    parser.add_argument("--node-name", metavar="N", help="this node (default: NODE_NAME, else the host name)")
    parser.add_argument("--kubelet-dir", metavar="D", help="the kubelet's device-plugins directory")
    parser.add_argument("--pod-resources-socket", metavar="S", help="the kubelet's PodResources socket")
    parser.add_argument("--state-dir", metavar="D", help="directory of checkpoint, lock and admin socket")
    parser.add_argument("--cdi-dir", metavar="D", help="where container runtimes look for CDI specs")
    parser.add_argument(
        "--http", metavar="ADDR:PORT", help='where probes, metrics and /inspect are served; "" is off'
    )
    parser.add_argument(
        "--watch-pods", choices=["true", "false"], help="whether the agent watches the node's pods"
    )
    parser.add_argument("--report-labels", choices=["true", "false"], help="whether the Node is labelled")
    parser.add_argument("--report-events", choices=["true", "false"], help="whether Events are written")
    help_ = "whether the use of the cards by containers is measured"
    parser.add_argument("--usage-enabled", choices=["true", "false"], help=help_)
    help_ = "further names of the metrics of use, such as dcgm; docs/usage.md lists them"
    parser.add_argument("--metrics-compat", metavar="NAME,...", help=help_)
    parser.add_argument(
        "--device-infos-dir",
        metavar="D",
        help="directory of report files with the cards (report.deviceInfosDir)",
    )
    parser.add_argument(
        "--log-dir",
        metavar="D",
        help='directory for a log file beside the log on standard error; "" is no file',
    )
    parser.add_argument("--log-format", choices=["auto", "json", "console"], help="how to log")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], help="how much to log")
    _of_vendors(parser)


def _of_vendors(parser: argparse.ArgumentParser) -> None:
    """The flags of programs that vendors replace. The Go library of these programs takes one dash as well."""
    from agent.daemon.vendor_plugins import config_inputs

    for reads in config_inputs().values():
        if reads.flags is not None:
            _flag_group(parser, reads.flags)


def _flag_group(parser: argparse.ArgumentParser, flags: FlagGroup) -> None:
    group = parser.add_argument_group(flags.title, flags.description)
    for other in flags.config_flags:
        dashed = [f"{dash}{name}" for name in other.names for dash in ("--", "-")]
        if dashed:
            help = f"the same as --{other.flag}"
            with suppress(argparse.ArgumentError):  # the first that has a name keeps it
                group.add_argument(*dashed, dest=other.flag, metavar="F", help=help)
    for flag in flags.flags:
        dashed = [f"--{name}" if len(name) > 1 else f"-{name}" for name in flag.names]
        if dashed:
            help = ", ".join((*flag.variables, *([flag.tree] if flag.tree else [])))
            once = [name.removeprefix("-") for name in dashed if name.startswith("--")]
            with suppress(argparse.ArgumentError):
                group.add_argument(*dashed, dest=flag.name, help=help, **_ARITY[flag.kind.name])
                group.add_argument(*once, dest=flag.name, help=argparse.SUPPRESS, **_ARITY[flag.kind.name])


def node_labels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--node-label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label that the Node has, for a configuration that depends on it; may be repeated",
    )


def state_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir", type=Path, metavar="D", help="the agent's state directory, which has its admin socket"
    )


def tell(text: str) -> None:
    """Print a sentence for people on standard error; what would steer the terminal is escaped."""
    from agent.vendor_api.text import printable  # a small module, which most verbs load anyway

    lines = (printable(line) for line in text.split("\n"))
    print("xpu-agent: " + "\n".join(lines), file=sys.stderr)


def warn(text: str) -> None:
    tell(f"warning: {text}")


def api_server(args: argparse.Namespace, say: Callable[[str], None] = warn) -> ApiAccess | None:
    """How to reach the API server; None where no API server is known.

    Raises:
        ConfigError: The kubeconfig cannot be used.
    """
    from agent.cluster.credentials import find, named

    kubeconfig = named(args.kubeconfig, os.environ)
    if kubeconfig.warning:
        say(kubeconfig.warning)
    return find(kubeconfig.path, os.environ, by=kubeconfig.by)


def given_by(args: argparse.Namespace) -> dict[str, object]:
    """The arguments by the names of their flags."""
    return {name.replace("_", "-"): value for name, value in vars(args).items()}


def node_name_of(args: argparse.Namespace) -> str:
    named = args.node_name or os.environ.get("XPU_AGENT_NODE_NAME") or os.environ.get("NODE_NAME")
    return named or socket.gethostname()


def admin_socket(args: argparse.Namespace) -> Path:
    from agent.config import AgentSettings

    default = os.environ.get("XPU_AGENT_STATE_DIR") or AgentSettings().state_dir
    return Path(args.state_dir or default) / "agent.sock"
