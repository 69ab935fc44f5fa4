"""The accounts of the cards as of now, which are made again only where something has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
import anyio.to_thread
from msgspec import Struct

from agent.core.attribution.scheduler_promises import Promises
from agent.core.usage.card_accounts import Accounts, accounts
from agent.core.usage.card_holdings import holdings
from agent.daemon.usage.sample_joiner import JoinedSample

Samples = Mapping[str, JoinedSample]


class _Made(Struct, frozen=True):
    """Accounts with what they were made from. These values are immutable, and too large to compare."""

    samples: Samples
    promises: Promises
    accounts: Accounts

    def is_of(self, samples: Samples, promises: Promises) -> bool:
        """Whether the accounts would be the same ones if they were made from these."""
        was, now = self.promises.scene, promises.scene
        return (
            self.is_near(samples, promises)
            and len(self.samples) == len(samples)
            and all(samples[name] is sample for name, sample in self.samples.items())
            and was.candidates is now.candidates
            and was.plan is now.plan
            and was.snapshot is now.snapshot
        )

    def is_near(self, samples: Samples, promises: Promises) -> bool:
        """Whether they show no allocation and no vendor that is gone."""
        return self.promises.in_use is promises.in_use and self.samples.keys() <= samples.keys()


class CurrentAccounts:
    """The accounts by the last samples, and by the allocations, pods and cards as of now."""

    def __init__(self, samples: Callable[[], Samples], promises: Callable[[], Promises]) -> None:
        """`samples`: the last sample of each vendor, if that sample speaks of now."""
        self._samples = samples
        self._promises = promises
        #: The last accounts.
        self._made: _Made | None = None
        #: Held while accounts are made in a thread.
        self._making = anyio.Lock()

    def now(self) -> Accounts:
        """The accounts as of now.

        While a thread makes those of a new sample, the last ones are shown if they have the allocations of
        now: the series of an allocation that is released end at once.
        """
        samples, promises = self._samples(), self._promises()
        if self._made is not None:
            if self._made.is_of(samples, promises):
                return self._made.accounts
            if self._making.locked() and self._made.is_near(samples, promises):
                return self._made.accounts
        self._made = _made(samples, promises)
        return self._made.accounts

    async def of_new_sample(self) -> Accounts:
        """The accounts as of now, made in a thread: with a thousand containers that takes 20 ms."""
        async with self._making:
            samples, promises = self._samples(), self._promises()
            if self._made is None or not self._made.is_of(samples, promises):
                self._made = await anyio.to_thread.run_sync(_made, samples, promises)
            return self._made.accounts


def _made(samples: Samples, promises: Promises) -> _Made:
    known = {name: it.known for name, it in samples.items()}
    held = {name: holdings(name, it.known.sample, promises, it.holdings) for name, it in samples.items()}
    return _Made(samples, promises, accounts(known, promises, held))
