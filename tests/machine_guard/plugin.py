"""The guard in pytest: it starts with the session, and blames the test in which a place was touched."""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from realnode.place import this_node

from . import hook
from .report import Report, text
from .traces import Traces, differences, traces

#: Variables of a developer's shell that select a cluster or a node.
_LEADS = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "NODE_NAME")
_OURS = "XPU_AGENT_"
STRANGER = ": by a shell or a compiled program of a test, or by somebody else on this machine"
#: Python runs this line of a .pth file at each start, with -I, too. Unless tests run it asks for a variable.
_LINE = (
    "import os, sys, _frozen_importlib_external as it; hook = type(sys)('machine_guard_hook'); "
    "os.environ.get('{report}') and "
    "(it.SourceFileLoader(hook.__name__, {path!r}).exec_module(hook) or hook.install())\n"
)


class MachineGuard:
    """One pytest process: the only one, or one of xdist's, of which the first has no tests."""

    def __init__(self, directory: Path, name: str) -> None:
        """`directory`: where all of the session's processes have their reports."""
        self._directory = directory
        self._report = Report(directory / f"{name}.touches")
        os.environ[hook.REPORT] = str(self._report.path)
        hook.report_to(str(self._report.path))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        return (yield from self._blaming())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        return (yield from self._blaming())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        return (yield from self._blaming())

    def _blaming(self) -> Generator[None, object, object]:
        try:
            result = yield
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except BaseException:
            self._blame()
            raise
        self._blame()
        return result

    def _blame(self) -> None:
        if touches := self._report.take():
            pytest.fail(text(touches), pytrace=False)


class FirstGuard(MachineGuard):
    """The guard of the process that ends last: it tells all touches again, and those that blame no test."""

    def __init__(self) -> None:
        self._before: Traces = traces()
        self._left: list[str] = []
        super().__init__(Path(tempfile.mkdtemp(prefix="xpu-guard-")), "first")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A process that outlives its test, a compiled one, or a shell: it fails the session."""
        hook.report_to("")
        os.environ.pop(hook.REPORT, None)
        reports = [Report(it) for it in sorted(self._directory.glob("*.touches"))]
        self._left = [it.first_line for report in reports for it in report.take()]
        self._left += [f"{it} while the tests ran{STRANGER}" for it in differences(self._before, traces())]
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left:
            terminalreporter.section("the machine's own places were touched")
            for it in self._left:
                terminalreporter.write_line(it)


def start(config: pytest.Config) -> None:
    """Guard this pytest process, and all that is started from it.

    Scenarios on a real node have mounts of their own in these places.
    """
    if this_node() is not None:
        return
    for name in [it for it in os.environ if it in _LEADS or it.startswith(_OURS)]:
        del os.environ[name]
    if hasattr(config, "workerinput"):
        directory, name = Path(os.environ[hook.REPORT]).parent, config.workerinput["workerid"]
        guard = MachineGuard(directory, name)
    else:
        _have_children_load_it()
        os.environ.setdefault(hook.HOME, os.environ.get("HOME", ""))
        guard = FirstGuard()
    hook.install()
    config.pluginmanager.register(guard, "machine-guard")


def _have_children_load_it() -> None:
    """Once for the environment: the line is the same for all who use it."""
    line = _LINE.format(report=hook.REPORT, path=hook.__file__)
    file = Path(sysconfig.get_path("purelib"), "xpu_machine_guard.pth")
    if file.exists() and file.read_text() == line:
        return
    fresh = file.with_suffix(f".{os.getpid()}")
    try:
        fresh.write_text(line)
        fresh.replace(file)
    except OSError as exc:
        raise pytest.UsageError(f"the guard of the machine's places cannot be installed: {exc}") from exc
