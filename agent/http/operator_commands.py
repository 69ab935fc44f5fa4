"""Commands of operators over the admin socket: POST /health/cordon, /health/uncordon and /health/clear."""

from __future__ import annotations

import pwd
from collections.abc import Awaitable, Callable, Mapping

import anyio.to_thread
import msgspec

from agent.core.errors import AgentError, NoSuchDevice, NotOnDisk
from agent.core.model import Command, Verb
from agent.http.answer import HttpAnswer, text
from agent.vendor_api.text import printable

#: Carries out a command and returns a sentence on its result.
Apply = Callable[[Command], Awaitable[str]]

VERBS: Mapping[str, Verb] = {f"/health/{verb}": verb for verb in ("cordon", "uncordon", "clear")}
#: Characters, because these texts go on to the kubelet, the log and the checkpoint.
DEVICE_LIMIT, REASON_LIMIT, USER_LIMIT = 128, 256, 64
_STATUS: Mapping[type[AgentError], int] = {NoSuchDevice: 404, NotOnDisk: 507}


class _CommandRequest(msgspec.Struct, forbid_unknown_fields=True):
    device: str
    reason: str = ""
    #: The user that the client claims to act for.
    user: str = ""


async def answer_command(apply: Apply, path: str, body: bytes, uid: int) -> HttpAnswer:
    """Carry out the command in the JSON `body`. `uid` is the client's user id as the kernel says.

    Answers 400 for a body that is no command, 404 for a path or a device that does not exist, 507 where the
    command could not be written to disk, 409 for every other refusal.
    """
    verb = VERBS.get(path)
    if verb is None:
        return text(404, f"no command is at {path}; there is {', '.join(VERBS)}")
    try:
        request = msgspec.json.decode(body, type=_CommandRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return text(400, f"not understood: {error}")
    if wrong := _wrong(request):
        return text(400, wrong)
    # In a thread, because the user database can be on another host. A host that hangs must not keep the
    # server from ending.
    author = await anyio.to_thread.run_sync(_author, uid, request.user, abandon_on_cancel=True)
    try:
        return text(200, await apply(Command(verb, request.device, author, printable(request.reason))))
    except AgentError as error:
        return text(_STATUS.get(type(error), 409), str(error))


def _wrong(request: _CommandRequest) -> str:
    bounds = (
        ("device", request.device, DEVICE_LIMIT),
        ("reason", request.reason, REASON_LIMIT),
        ("user", request.user, USER_LIMIT),
    )
    long = (
        f"{name}: has {len(text)} characters, at most {most} work"
        for name, text, most in bounds
        if len(text) > most
    )
    return "device: is empty" if not request.device else next(long, "")


def _author(uid: int, user: str) -> str:
    """The name of the peer's user id from SO_PEERCRED, then in brackets the name that the client claims."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid {uid}"
    return f"{name} ({printable(user)})" if user and user != name else name
