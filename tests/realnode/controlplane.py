"""Controllers and scheduler of the cluster."""

from __future__ import annotations

import json
from pathlib import Path

from .place import Place
from .unit import Unit


def controllers(place: Place, binary: Path, port: int) -> Unit:
    """What makes pods of Deployments and DaemonSets, and deletes what nobody owns any more."""
    options = {
        **_who(place),
        "service-account-private-key-file": place.api / "service-accounts.key",
        "root-ca-file": place.api / "certs/apiserver.crt",
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
        "secure-port": port,
        "cert-dir": place.work / "controllers-certs",
        "controllers": "*,-node-ipam-controller,-cloud-node-lifecycle-controller",
    }
    return Unit(place, "kube-controller-manager", [binary, "kube-controller-manager", *_flags(options)])


def scheduler(place: Place, binary: Path, port: int) -> Unit:
    config = place.work / "scheduler.json"
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(place.kubeconfig)},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
    }
    config.write_text(json.dumps(content))
    options = {
        "config": config,
        "bind-address": "127.0.0.1",
        "secure-port": port,
        "cert-dir": place.work / "scheduler-certs",
        **{key: value for key, value in _who(place).items() if key != "kubeconfig"},
    }
    return Unit(place, "kube-scheduler", [binary, "kube-scheduler", *_flags(options)])


def _who(place: Place) -> dict[str, object]:
    names = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return dict.fromkeys(names, place.kubeconfig)


def _flags(options: dict[str, object]) -> list[str]:
    return [f"--{key}={value}" for key, value in options.items()]
