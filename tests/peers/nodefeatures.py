"""The kind that node-feature-discovery brings, of which an API server knows nothing by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def node_features(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The CustomResourceDefinition, with this schema of its objects."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "nodefeatures.nfd.k8s-sigs.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test's own"},
        },
        "spec": {
            "group": "nfd.k8s-sigs.io",
            "scope": "Namespaced",
            "names": {"kind": "NodeFeature", "plural": "nodefeatures", "singular": "nodefeature"},
            "versions": [
                {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }
