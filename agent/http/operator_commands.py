"""An operator's words, as they come over the admin socket: `POST /health/cordon` and its kin, in JSON."""

from __future__ import annotations

import pwd
from collections.abc import Awaitable, Callable, Mapping

import anyio.to_thread
import msgspec

from agent.core.errors import AgentError, NoSuchDevice, NotOnDisk
from agent.core.model import Command, Verb
from agent.http.answer import Answer, text
from agent.vendor_api.text import printable

#: Does what an operator commands; returns what came of it.
Apply = Callable[[Command], Awaitable[str]]

VERBS: Mapping[str, Verb] = {f"/health/{verb}": verb for verb in ("cordon", "uncordon", "clear")}
#: Characters of what goes on to the kubelet, the log and the checkpoint.
DEVICE_LIMIT, REASON_LIMIT, USER_LIMIT = 128, 256, 64
_STATUS: Mapping[type[AgentError], int] = {NoSuchDevice: 404, NotOnDisk: 507}


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    device: str
    reason: str = ""
    #: Who the client says it speaks for.
    user: str = ""


async def hear(apply: Apply, path: str, body: bytes, uid: int) -> Answer:
    """Do what is said, by the user whose id the kernel told us."""
    verb = VERBS.get(path)
    if verb is None:
        return text(404, f"nothing hears at {path}; there is {', '.join(VERBS)}")
    try:
        said = msgspec.json.decode(body, type=_Said)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return text(400, f"not understood: {error}")
    if wrong := _wrong(said):
        return text(400, wrong)
    author = await anyio.to_thread.run_sync(_author, uid, said.user)  # user databases may be far away
    try:
        return text(200, await apply(Command(verb, said.device, author, printable(said.reason))))
    except AgentError as error:
        return text(_STATUS.get(type(error), 409), str(error))


def _wrong(said: _Said) -> str:
    bounds = (
        ("device", said.device, DEVICE_LIMIT),
        ("reason", said.reason, REASON_LIMIT),
        ("user", said.user, USER_LIMIT),
    )
    long = (
        f"{name}: has {len(it)} characters, at most {most} work"
        for name, it, most in bounds
        if len(it) > most
    )
    return "device: is empty" if not said.device else next(long, "")


def _author(uid: int, user: str) -> str:
    """Who the kernel says it is; who they say they are stands behind it."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid {uid}"
    return f"{name} ({printable(user)})" if user and user != name else name
