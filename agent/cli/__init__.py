"""The command line: one verb, one module."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from agent.core.errors import AgentError, ConfigError, UsageError
from agent.vendor_api.agent import SettingsError

from .arguments import INTERRUPTED, MISUSED, REFUSED, tell
from .parser import Parser

#: In the order of the help; each is a module here, whose `add` makes its parser.
VERBS = (
    "run",
    "demo",
    "inspect",
    "health",
    "plugins",
    "labels",
    "config",
    "conformance",
    "uninstall",
    "doctor",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb that the arguments name."""
    given = sys.argv[1:] if argv is None else argv
    if given[:1] and given[0] == "run":  # its parser imports plugins, which may swallow what a signal raises
        import_module(f"{__name__}.run").end_at_once()
    # A verb that stands first is the only one that is loaded.
    parser = command_line(tuple(given[:1]) if given[:1] and given[0] in VERBS else VERBS)
    args = parser.parse_args(given)
    if args.version:
        from agent.host.version import version

        print(f"xpu-agent {version()}")
        return 0
    if args.verb is None:
        parser.print_help()
        return MISUSED
    try:
        status = int(args.verb(args) or 0)
        sys.stdout.flush()  # who has gone shows here, and not first at exit
        return status
    except BrokenPipeError:
        # The reader has seen enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(args.unheard)
    except Exception as exc:
        if (refusal := _refusal(exc)) is None:
            raise
        tell(str(refusal))
        return MISUSED if isinstance(refusal, ConfigError | SettingsError | UsageError) else REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED


def _refusal(exc: BaseException) -> BaseException | None:
    """The sentence for people, where the error is one of ours; task groups wrap it."""
    if isinstance(exc, AgentError | SettingsError):
        return exc
    inner = exc.exceptions if isinstance(exc, BaseExceptionGroup) else ()
    return next((it for it in map(_refusal, inner) if it is not None), None)


def command_line(names: Sequence[str] = VERBS) -> Parser:
    """The parser of the verbs that are named."""
    parser = Parser(
        prog="xpu-agent",
        description="One Kubernetes node agent for every vendor's accelerators.",
        epilog="Every flag of `run` can be set as environment variable XPU_AGENT_<FLAG>, for example "
        "XPU_AGENT_STATE_DIR, NVIDIA's flags as NVIDIA calls them; NODE_NAME names the node. "
        "Exit: 0 done; 1 the verb's own answer is a bad one: refused, or something found; 2 used wrongly: "
        "arguments, variables, or a configuration that cannot be used.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    # What was not read to its end has proven nothing; a verb that only shows says 0 instead.
    parser.set_defaults(verb=None, unheard=REFUSED)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    for name in names:
        import_module(f"{__name__}.{name}").add(verbs)
    return parser
