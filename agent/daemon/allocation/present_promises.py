"""What schedulers promised, as of now, and which pods seem to have been refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.attribution.pod_attribution import suspected_pods
from agent.core.attribution.refused_requests import (
    RefusedAllocate,
    RefusedRequest,
    guessed_suspects,
    suspected_uids,
    unexplained_requests,
    without_answered_pod,
)
from agent.core.attribution.scheduler_promises import Promises
from agent.daemon.allocation.allocate_evidence import KubeletEvidence


class PresentPromises:
    """Builds the promises of a scene. Refused requests are remembered while their pods seem to wait."""

    def __init__(self, scene: Callable[[], Scene], ledger: Ledger, evidence: KubeletEvidence) -> None:
        """`scene` returns the present scene."""
        self._scene = scene
        self._ledger = ledger
        self._evidence = evidence
        #: Refused requests, as long as a pod that may have sent them seems to wait.
        self._refused: tuple[RefusedRequest, ...] = ()

    def now(self) -> Promises:
        """The promises of the present scene."""
        return self.at(self._scene())

    def at(self, scene: Scene) -> Promises:
        """The promises of this scene, with the present ledger and the requests refused so far."""
        in_use = self._ledger.in_use()
        if not self._refused:
            return Promises(scene, in_use)
        requests, pods = self._refusals_of_life(self._evidence.life), scene.candidates
        return Promises(scene, in_use, suspected_uids(requests, pods), guessed_suspects(requests, pods))

    def remember_refusal(self, refused: RefusedAllocate) -> None:
        """Remember which pods may have sent the request: their status shows the refusal a moment later."""
        promises, life = self.now(), self._evidence.life
        pods = promises.scene.candidates
        others = frozenset(pod.uid for pod in pods.with_message if refused.text in pod.message)
        requests = (
            RefusedRequest(refused.text, suspected_pods(promises, refused.resource, ids), others, life)
            for ids in refused.containers
        )
        self._refused = unexplained_requests((*self._refusals_of_life(life), *requests), pods)

    def remember_answer(self, uid: str) -> None:
        """Remember that the pod with this uid got an answer: the pod sent none of the refused requests."""
        self._refused = without_answered_pod(uid, self._refused)

    def _refusals_of_life(self, life: str) -> Sequence[RefusedRequest]:
        return [it for it in self._refused if it.life == life]
