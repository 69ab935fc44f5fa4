"""The lock that schedulers of several vendors' cards take on a Node before they bind a pod.

Source: Project-HAMi/HAMi pkg/util/nodelock (4707fb02), koordinator device_plugin_adapter.go (a7a1b76b).
"""

from __future__ import annotations

#: Annotations of the Node: TIME,NAMESPACE,POD, or TIME alone as old HAMi wrote it.
LOCKS = ("hami.io/mutex.lock",)
