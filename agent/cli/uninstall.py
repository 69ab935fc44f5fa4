"""`uninstall`: leave the node as it was found."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .common_arguments import admin_socket, api_server, node_name_of, state_dir
from .parser import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "uninstall", help="remove from the node what survives the agent's end, but for checkpoint and logs"
    )
    state_dir(parser)
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
    parser.add_argument("--force", action="store_true", help="go on while an agent serves the node")
    parser.add_argument(
        "--node-name",
        metavar="N",
        help="node of the labels, annotations, counts and Device (default: NODE_NAME, else the host name)",
    )
    parser.add_argument("--kubeconfig", metavar="F", help="how to reach the API server (default: in-cluster)")
    parser.add_argument(
        "--await-nodes",
        action="append",
        metavar="DAEMONSET",
        help="remove nothing; wait until this DaemonSet of the pod's namespace has uninstalled all its nodes",
    )
    parser.add_argument(
        "--within", type=float, default=120.0, metavar="SECONDS", help="how long to wait for nodes (120)"
    )
    parser.set_defaults(verb=uninstall)


def uninstall(args: argparse.Namespace) -> int:
    """`xpu-agent uninstall`: exit 1 while an agent serves, and where something could not be removed."""
    if args.await_nodes:
        return _await_nodes(args)
    from agent.cli.uninstall_at_api_server import ServerObjects, remove_server_objects
    from agent.cli.uninstall_on_node import uninstall
    from agent.config import AgentSettings

    kubelet_dir = args.kubelet_dir or os.environ.get("XPU_AGENT_KUBELET_DIR") or AgentSettings().kubelet_dir

    def at_api_server(written: ServerObjects) -> bool:
        if (access := api_server(args)) is not None:
            remove_server_objects(access, node_name_of(args), written)
        return access is not None

    state = admin_socket(args).parent
    return uninstall(
        state, Path(kubelet_dir), args.also, remove_server_objects=at_api_server, force=args.force
    )


def _await_nodes(args: argparse.Namespace) -> int:
    from agent.cli.uninstall_at_api_server import await_nodes
    from agent.core.errors import UsageError

    if (access := api_server(args)) is None:
        raise UsageError("--await-nodes: no API server is known here; give --kubeconfig")
    await_nodes(access, args.await_nodes, args.within)
    return 0
