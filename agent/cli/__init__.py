"""The command line. Each verb has a module of its own."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from errno import EBADF, EDQUOT, EFBIG, EIO, ENOSPC
from importlib import import_module
from typing import TypeGuard

from agent.core.errors import AgentError, ConfigError, UsageError
from agent.vendor_api.agent import SettingsError

from .common_arguments import INTERRUPTED, MISUSED, REFUSED, tell
from .parser import Parser

#: The verbs in the order of the help. The `add` of the module of this name adds the parser.
VERBS = (
    "run",
    "demo",
    "inspect",
    "top",
    "health",
    "plugins",
    "labels",
    "config",
    "conformance",
    "uninstall",
    "doctor",
)

#: The errors of a full disk, a closed file and a lost terminal.
_UNWRITABLE = frozenset({EBADF, EDQUOT, EFBIG, EIO, ENOSPC})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb that the arguments name."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] and arguments[0] == "run":
        # Its parser imports plugins, which may swallow what a signal raises.
        import_module(f"{__name__}.run").begin()
    if sys.stdout is None:  # closed by the shell
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 until the process ends
    parser = command_line(_needed_verbs(arguments))
    args = parser.parse_args(arguments)
    only_shows = args.verb is None or args.on_broken_pipe == 0
    try:
        status = _done(parser, args)
        sys.stdout.flush()  # a closed pipe shows here, and not only at exit
        return status
    except BrokenPipeError:
        _drop_output()  # the reader of the pipe has ended
        return int(args.on_broken_pipe)
    except Exception as exc:
        if only_shows and _is_of_output(exc):
            _drop_output()
            tell(f"the output cannot be written: {exc.strerror}")
            return REFUSED
        if (refusal := _refusal(exc)) is None:
            raise
        tell(str(refusal))
        return MISUSED if isinstance(refusal, ConfigError | SettingsError | UsageError) else REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED


def _is_of_output(exc: Exception) -> TypeGuard[OSError]:
    """Whether the output of a verb that writes nothing else cannot be written."""
    return isinstance(exc, OSError) and exc.filename is None and exc.errno in _UNWRITABLE


def _drop_output() -> None:
    """Drop what is left in the buffer: Python would report the same error again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _done(parser: Parser, args: Namespace) -> int:
    if args.version:
        from agent.host.version import version

        print(f"xpu-agent {version()}")
        return 0
    if args.verb is None:
        parser.print_help()
        return MISUSED
    return int(args.verb(args) or 0)


def _needed_verbs(arguments: Sequence[str]) -> Sequence[str]:
    """The verbs that need a parser here. A parser imports modules, and flags import plugins."""
    if [*arguments] == ["--version"]:
        return ()
    return arguments[:1] if arguments[:1] and arguments[0] in VERBS else VERBS


def _refusal(exc: BaseException) -> BaseException | None:
    """The error with a sentence for people, which a task group may have wrapped; None for a defect."""
    if isinstance(exc, AgentError | SettingsError):
        return exc
    inner = exc.exceptions if isinstance(exc, BaseExceptionGroup) else ()
    return next((it for it in map(_refusal, inner) if it is not None), None)


def command_line(names: Sequence[str] = VERBS) -> Parser:
    """The parser of these verbs."""
    parser = Parser(
        prog="xpu-agent",
        description="One Kubernetes node agent for every vendor's accelerators.",
        epilog="Every flag of `run` can be set as environment variable XPU_AGENT_<FLAG>, for example "
        "XPU_AGENT_STATE_DIR, NVIDIA's flags as NVIDIA calls them; NODE_NAME names the node. "
        "Exit: 0 done; 1 the verb refused or found something; 2 used wrongly: "
        "arguments, variables, or a configuration that cannot be used.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    # The exit code where the output is not read to its end. A verb that only shows something sets 0.
    parser.set_defaults(verb=None, on_broken_pipe=REFUSED)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    for name in names:
        import_module(f"{__name__}.{name}").add(verbs)
    return parser
