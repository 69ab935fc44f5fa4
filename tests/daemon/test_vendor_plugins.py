"""Rules of finding and loading vendors."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from agent.daemon import vendor_plugins
from agent.daemon.vendor_plugins import NOT_ENABLED, SITS_OUT, Plugin

HEAD = """
from agent.scheduler_api import Dialect, DialectOf
from agent.vendor_api.hooks import hookimpl
from agent.vendor_api.agent import ContainerEdits, SettingsError, Vendor
def edits(devices, request):
    return ContainerEdits()
def vendor(name="acme", **parts):
    whole = {"name": name, "backend": "acme:B", "container_edits": edits, "resource": "a.com/x", **parts}
    return Vendor(**whole)
"""


class Installed:
    """Distributions as pip leaves them: a module and its metadata in a folder on sys.path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, code: str | None, *, vendor: str = "") -> None:
        if code is not None:
            (self.folder / f"plugin_of_{name}.py").write_text(HEAD + dedent(code))
        info = self.folder / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        entry = f"[xpu_agent.backends]\n{vendor or name} = plugin_of_{name}\n"
        (info / "entry_points.txt").write_text(entry)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield Installed(tmp_path)
    for name in [name for name in sys.modules if name.startswith("plugin_of_")]:
        del sys.modules[name]
    _forget()


def _forget() -> None:
    vendor_plugins._found.cache_clear()
    importlib.invalidate_caches()


def _load(name: str, **settings: object) -> Plugin:
    found = vendor_plugins.load({name: settings}, {name})
    return next(it for it in found if it.name == name)


def test_a_vendor_of_another_distribution_is_loaded_with_its_settings(installed: Installed) -> None:
    installed.add(
        "acme",
        """
        @hookimpl
        def register_backend(settings):
            return vendor(settings=dict(settings))
        """,
    )

    plugin = _load("acme", colour="red")

    assert (plugin.origin, plugin.version, plugin.reason, plugin.broken) == ("acme", "1.2", "", False)
    assert plugin.vendor is not None
    assert plugin.vendor.settings == {"colour": "red"}


BROKEN = {
    "a missing module": (None, "ModuleNotFoundError: No module named 'plugin_of_acme'"),
    "an import that fails": ("import libacme", "ModuleNotFoundError: No module named 'libacme'"),
    "an import that exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "a syntax error": ("def :", "SyntaxError: invalid syntax"),
    "no hook": ("def register_backend(settings): ...", "implements no hook"),
    "a misspelt hook": (
        "@hookimpl\ndef register_backends(settings): ...",
        "PluginValidationError: unknown hook 'register_backends'",
    ),
    "a strange argument": (
        "@hookimpl\ndef register_backend(settings, colour): ...",
        "PluginValidationError: Plugin 'acme' for hook 'register_backend'",
    ),
    "an exception": (
        "@hookimpl\ndef register_backend(settings): raise RuntimeError('no luck')",
        "RuntimeError: no luck",
    ),
    "wrong settings": (
        "@hookimpl\ndef register_backend(settings): raise SettingsError('colour: red is not known')",
        "settings: colour: red is not known",
    ),
    "a wrong type": (
        "@hookimpl\ndef register_backend(settings): return 'acme'",
        "register_backend returned a str, a Vendor is needed",
    ),
    "another name": (
        "@hookimpl\ndef register_backend(settings): return vendor(name='acne')",
        "register_backend returned a Vendor whose name is 'acne'; it is registered as 'acme'",
    ),
    "a backend that is none": (
        "@hookimpl\ndef register_backend(settings): return vendor(backend='acme.B')",
        "register_backend returned a Vendor whose backend is 'acme.B'; \"package.module:Class\" is needed",
    ),
    "a resource that is none": (
        "@hookimpl\ndef register_backend(settings): return vendor(resource='gpu')",
        "register_backend returned a Vendor whose resource is wrong: the resource name 'gpu' needs",
    ),
    "the kubelet's own resource": (
        "@hookimpl\ndef register_backend(settings): return vendor(resource='kubernetes.io/x')",
        "register_backend returned a Vendor whose resource is wrong: the resource name 'kubernetes.io/x'",
    ),
    "Koordinator's own resource": (
        "@hookimpl\ndef register_backend(settings): return vendor(resource='koordinator.sh/gpu')",
        "register_backend returned a Vendor whose resource is wrong: the resource name 'koordinator.sh/gpu'",
    ),
    "a resource that is no text": (
        "@hookimpl\ndef register_backend(settings): return vendor(resource=5)",
        'register_backend returned a Vendor whose resource is 5; "domain/name" is needed',
    ),
    "edits that are none": (
        "@hookimpl\ndef register_backend(settings): return vendor(container_edits={})",
        "register_backend returned a Vendor whose container_edits can not be called",
    ),
    "resources that are none": (
        "@hookimpl\ndef register_backend(settings): return vendor(resources=('acme.com/x',))",
        "register_backend returned a Vendor whose resources can not be called",
    ),
    "labels that are none": (
        "@hookimpl\ndef register_backend(settings): return vendor(labels={})",
        "register_backend returned a Vendor whose labels can not be called",
    ),
    "doubts that are none": (
        "@hookimpl\ndef register_backend(settings): return vendor(doubts='many')",
        "register_backend returned a Vendor whose doubts are no tuple of Doubt",
    ),
    "settings that are no JSON": (
        "@hookimpl\ndef register_backend(settings): return vendor(settings={'a': object()})",
        "register_backend returned a Vendor whose settings are no plain JSON values",
    ),
}


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("machine_label=5", "machine_label is 5; a text is needed"),
        ("by_cdi='no'", "by_cdi is 'no'; True or False is needed"),
        ("libraries=['libx.so']", "libraries can not be called"),
        ("judge=[]", "judge can not be called"),
        ("annotations={}", "annotations can not be called"),
        ("extended_resources={}", "extended_resources can not be called"),
        ("unclaimed='gets all'", "unclaimed can not be called"),
        ("cards_with_room=['c0']", "cards_with_room can not be called"),
        ("hears=('hami',)", "hears is ('hami',); a tuple of DialectOf is needed"),
        ("limits='all'", "limits are 'all'; a Dialect is needed"),
        ("limits=Dialect('a', {})", "dialect 'a' has claims that can not be called"),
        ("sharing='all'", "sharing is 'all'; a Sharing is needed"),
        ("placement='near'", "placement is 'near'; one of local, claim, auto is needed"),
        ("placement=[]", "placement is []; one of local, claim, auto is needed"),
        ("defaults={'a': object()}", "defaults are no plain JSON values"),
        ("signs=['/dev/acme']", "signs are ['/dev/acme']; Signs are needed"),
        ("host_parts=['/usr/bin/acme']", "host_parts are no tuple of HostPart"),
        ("host_runtime='acme'", "host_runtime is 'acme'; a HostRuntime is needed"),
        ("dialects=[]", "dialects are no tuple of Dialect"),
        ("dialects=('acme',)", "dialects are no tuple of Dialect"),
        ("dialects=(Dialect(None, edits),)", "dialect has the name None; a text is needed"),
        ("dialects=(Dialect('a', {}),)", "dialect 'a' has claims that can not be called"),
        ("dialects=(Dialect('a', edits, reads='a.com/'),)", "dialect 'a' reads 'a.com/'; a tuple of texts"),
        ("dialects=(Dialect('a', edits, reads=('',)),)", "dialect 'a' reads ('',); a tuple of texts"),
        ("dialects=(Dialect('a', edits, measure=1),)", "dialect 'a' has a measure that can not be called"),
        ("dialects=(Dialect('a', edits, locks='a.com/b'),)", "dialect 'a' locks 'a.com/b'; a tuple of keys"),
        ("dialects=(Dialect('a', edits, receipt={}),)", "dialect 'a' has a receipt that can not be called"),
        (
            "dialects=(Dialect('a', edits, receipt_keys='a.com/b'),)",
            "dialect 'a' has receipt_keys 'a.com/b'; a tuple of keys",
        ),
        (
            "dialects=(Dialect('a', edits, receipt_keys=('x.k8s.io/b',)),)",
            "dialect 'a' has receipt_keys that can not be written: 'x.k8s.io/b' is of a domain",
        ),
        (
            "dialects=(Dialect('a', edits, receipt_keys=('a.com/b',) * 17),)",
            "dialect 'a' has 17 receipt_keys, at most 16 work",
        ),
        ("dialects=(Dialect('a', edits, locks=('b',)),)", "dialect 'a' locks ('b',); a tuple of keys"),
    ],
)
def test_a_vendor_with_a_part_of_a_wrong_type_is_left_out(installed: Installed, part: str, why: str) -> None:
    installed.add("acme", f"@hookimpl\ndef register_backend(settings): return vendor({part})")

    found = _load("acme")

    assert found.vendor is None
    assert found.reason.startswith(f"register_backend returned a Vendor whose {why}")


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_left_out_with_its_reason_and_harms_no_other(
    case: str, installed: Installed
) -> None:
    code, reason = BROKEN[case]
    installed.add("acme", code)
    installed.add("good", "@hookimpl\ndef register_backend(settings): return vendor('good')")

    found = {it.name: it for it in vendor_plugins.load({}, {"acme", "good"})}

    assert found["acme"].vendor is None
    assert found["acme"].broken
    assert found["acme"].reason.startswith(reason)
    assert found["good"].vendor is not None


def test_settings_that_make_a_good_plugin_bad_are_refused_and_not_the_plugin(installed: Installed) -> None:
    installed.add(
        "acme",
        "@hookimpl\ndef register_backend(settings): return vendor(resource=settings.get('called', 'a.b/c'))",
    )

    assert _load("acme").vendor is not None
    refused = _load("acme", called="kubernetes.io/x")
    assert "with these register_backend returned a Vendor whose resource is wrong" in str(refused.refusal)


def test_a_vendor_that_sits_out_is_not_broken(installed: Installed) -> None:
    installed.add("acme", "@hookimpl\ndef register_backend(settings): return None")

    plugin = _load("acme")

    assert (plugin.vendor, plugin.reason, plugin.broken) == (None, SITS_OUT, False)


def test_a_second_vendor_of_the_same_name_is_left_out(installed: Installed) -> None:
    installed.add("other", "@hookimpl\ndef register_backend(settings): return vendor()", vendor="simulated")

    second = [it for it in vendor_plugins.load({}, {"simulated"}) if it.origin == "other"]

    assert [it.reason for it in second] == ["xpu-agent already brings a vendor named 'simulated'"]


def test_a_vendor_that_nobody_brings_is_named_with_those_there_are() -> None:
    plugin = _load("nvidja")

    assert plugin.broken
    assert plugin.reason.startswith("no vendor of this name is installed; there are: ")
    assert "simulated" in plugin.reason


def test_loading_twice_gives_the_same_again(installed: Installed) -> None:
    installed.add("acme", "@hookimpl\ndef register_backend(settings): return vendor()")

    assert vendor_plugins.load({}, {"acme"}) == vendor_plugins.load({}, {"acme"})


def test_vendors_that_are_not_wanted_are_listed_and_not_imported() -> None:
    code = (
        "import sys; from agent.daemon.vendor_plugins import load; found = load({}, set()); "
        "print(*(it.reason for it in found if it.name == 'simulated')); "
        "print(*(name for name in sys.modules if name.startswith('agent.vendors.')))"
    )

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.splitlines() == [NOT_ENABLED, ""]


def test_the_simulated_vendor_sits_out_until_it_is_asked_for() -> None:
    assert _load("simulated").reason == SITS_OUT
    assert _load("simulated", devices=2).vendor is not None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"device": 2}, "settings: 'device' is not known; these are: devices, scenario"),
        ({"devices": -1}, "settings: devices: -1 is no number from 0 to 1024"),
        ({"devices": True}, "settings: devices: True is no number"),
        ({"scenario": "here.json"}, "settings: scenario: 'here.json' is no absolute path"),
        ({"devices": 1, "labels": "yes"}, "settings: labels: 'yes' is neither true nor false"),
        ({"devices": 1, "deviceNodes": 1}, "settings: deviceNodes: 1 is neither true nor false"),
        ({"devices": 1, "prepares": True}, "settings: prepares: needs `partitions`"),
    ],
)
def test_wrong_settings_of_the_simulated_vendor_are_named(settings: dict[str, object], reason: str) -> None:
    assert _load("simulated", **settings).reason.startswith(reason)
