"""Rules of finding and loading vendors."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from agent.config import given_flags, parse
from agent.core.errors import ConfigError
from agent.daemon import vendor_plugins
from agent.daemon.vendor_plugins import NOT_ENABLED, SITS_OUT, VendorPlugin

HEAD = """
from agent.scheduler_api import Dialect, DialectOf
from agent.vendor_api.hooks import hookimpl
from agent.vendor_api.agent import (
    ContainerEdits, Host, NodeFacts, Offers, ReplacedPlugins, Settings, SettingsError, Slices, Vendor
)
def claims(pod, resource, cards):
    return ()
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
    vendor_plugins._read_inputs.cache_clear()
    importlib.invalidate_caches()


def _load(name: str, **settings: object) -> VendorPlugin:
    found = vendor_plugins.load({name: settings}, {name})
    return next(it for it in found if it.name == name)


def test_a_vendor_of_another_distribution_is_loaded_with_its_settings(installed: Installed) -> None:
    installed.add(
        "acme",
        """
        @hookimpl
        def register_backend(settings):
            return vendor(settings=Settings(dict(settings)))
        """,
    )

    plugin = _load("acme", colour="red")

    assert (plugin.origin, plugin.version, plugin.reason, plugin.broken) == ("acme", "1.2", "", False)
    assert plugin.vendor is not None
    assert plugin.vendor.settings.for_backend == {"colour": "red"}


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
        "register_backend returned a bad Vendor: name is 'acne'; it is registered as 'acme'",
    ),
    "a backend that is none": (
        "@hookimpl\ndef register_backend(settings): return vendor(backend='acme.B')",
        "register_backend returned a bad Vendor: backend is 'acme.B'; \"package.module:Class\" is needed",
    ),
    "a resource that is none": (
        "@hookimpl\ndef register_backend(settings): return vendor(resource='gpu')",
        "register_backend returned a bad Vendor: resource is wrong: the resource name 'gpu' needs",
    ),
    "the kubelet's own resource": (
        "@hookimpl\ndef register_backend(settings): return vendor(resource='kubernetes.io/x')",
        "register_backend returned a bad Vendor: resource is wrong: the resource name 'kubernetes.io/x'",
    ),
    "Koordinator's own resource": (
        "@hookimpl\ndef register_backend(settings): return vendor(resource='koordinator.sh/gpu')",
        "register_backend returned a bad Vendor: resource is wrong: the resource name 'koordinator.sh/gpu'",
    ),
    "a resource that is no text": (
        "@hookimpl\ndef register_backend(settings): return vendor(resource=5)",
        "register_backend returned a bad Vendor: resource is 5; a text is needed",
    ),
    "edits that are none": (
        "@hookimpl\ndef register_backend(settings): return vendor(container_edits={})",
        "register_backend returned a bad Vendor: container_edits is {}; a function of 2 arguments is needed",
    ),
    "a value of the last release": (
        "@hookimpl\ndef register_backend(settings): return vendor(labels=edits)",
        "TypeError: Vendor.__init__() got an unexpected keyword argument 'labels'",
    ),
}


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("publishes=NodeFacts(annotations=claims)", "publishes.annotation_keys is (); the keys that"),
        (
            "publishes=NodeFacts(extended_resources=edits)",
            "publishes.extended_resource_keys is (); the names",
        ),
        ("publishes=NodeFacts(machine_label=5)", "publishes.machine_label is 5; a text is needed"),
        ("offers=Offers(cdi_only='no')", "offers.cdi_only is 'no'; True or False is needed"),
        (
            "host=Host(['libx.so'])",
            "host.libraries is ['libx.so']; a function of no arguments or None is needed",
        ),
        (
            "offers=Offers(check_rules=[])",
            "offers.check_rules is []; a function of 1 argument or None is needed",
        ),
        (
            "publishes=NodeFacts(annotations={})",
            "publishes.annotations is {}; a function of 3 arguments or None",
        ),
        (
            "publishes=NodeFacts(annotation_keys='a.com/b')",
            "publishes.annotation_keys is 'a.com/b'; a tuple of texts",
        ),
        (
            "container_edits=claims",
            "container_edits takes (pod, resource, cards); a function of 2 arguments is needed",
        ),
        ("pod_limits='all'", "pod_limits is 'all'; a Dialect or None is needed"),
        ("pod_limits=Dialect('a', {})", "pod_limits.claims is {}; a function of 3 arguments is needed"),
        ("pod_limits=Dialect('a', claims, locks=('b',))", "pod_limits.locks is ('b',); keys such as"),
        ("offers=Offers(sharing='all')", "offers.sharing is 'all'; a Sharing is needed"),
        (
            "offers=Offers(placement='near')",
            "offers.placement is 'near'; one of local, claim, auto is needed",
        ),
        ("offers=Offers(placement=[])", "offers.placement is []; one of local, claim, auto is needed"),
        ("offers={}", "offers is {}; an Offers is needed"),
        ("makes=True", "makes is True; a Slices or None is needed"),
        ("settings={}", "settings is {}; a Settings is needed"),
        ("settings=Settings({'a': object()})", "settings.for_backend are no plain JSON values"),
        ("settings=Settings({5: 'a'})", "settings.for_backend key is 5; a text is needed"),
        ("settings=Settings(defaults={'a': object()})", "settings.defaults are no plain JSON values"),
        (
            "settings=Settings(warnings='many')",
            "settings.warnings is 'many'; a tuple of SettingsWarning is needed",
        ),
        ("host=Host(signs=['/dev/acme'])", "host.signs is ['/dev/acme']; a Signs or None is needed"),
        ("host=Host(parts=('/usr/bin/acme',))", "host.parts[0] is '/usr/bin/acme'; a HostPart is needed"),
        ("host=Host(runtime='acme')", "host.runtime is 'acme'; a HostRuntime or None is needed"),
        ("dialects=[]", "dialects is []; a tuple of Dialect is needed"),
        ("checks=(edits,)", "checks[0] is <function edits"),
        ("dialects=('acme',)", "dialects[0] is 'acme'; a Dialect is needed"),
        ("dialects=(Dialect(None, claims),)", "dialects[0].name is None; a text is needed"),
        (
            "dialects=(Dialect('a', claims, reads='a.com/'),)",
            "dialects[0].reads is 'a.com/'; a tuple of texts",
        ),
        ("dialects=(Dialect('a', claims, reads=('',)),)", "dialects[0].reads is ('',); texts such as"),
        ("dialects=(Dialect('a', claims, locks=('b',)),)", "dialects[0].locks is ('b',); keys such as"),
        (
            "dialects=(Dialect('a', claims, receipt_keys=('x.k8s.io/b',)),)",
            "dialects[0].receipt_keys cannot be written: 'x.k8s.io/b' is of a domain",
        ),
        (
            "dialects=(Dialect('a', claims, receipt_keys=('a.com/b',) * 17),)",
            "dialects[0].receipt_keys has 17 keys, at most 16 work",
        ),
    ],
)
def test_a_vendor_with_a_wrong_value_is_left_out(installed: Installed, part: str, why: str) -> None:
    installed.add("acme", f"@hookimpl\ndef register_backend(settings): return vendor({part})")

    found = _load("acme")

    assert found.vendor is None
    assert found.reason.startswith(f"register_backend returned a bad Vendor: {why}")


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
    assert "with these register_backend returned a bad Vendor: resource is wrong" in str(refused.refusal)


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


READS = """
from agent.vendor_api.config_flags import Flag, FlagGroup, FlagKind
from agent.vendor_api.config_inputs import ConfigFiles, ConfigFormat, ConfigInputs, FileContent

@hookimpl
def register_backend(settings): return vendor(settings=Settings(dict(settings)))

def of_document(document, flags):
    colour = document.keys()["acme"].keys()["colour"]
    if colour.value == "grey":
        raise colour.refused("is no colour")
    return FileContent({"colour": colour.value}, {("colour",): colour})

def of_file(files, node):
    return FileContent({"colour": next(iter(files.texts.values()))})

@hookimpl
def register_config_inputs(): return ConfigInputs(
    FlagGroup("Acme's flags", "", (Flag(FlagKind.TEXT, ("acme-colour",), ("ACME_COLOUR",), "",
        "vendors.acme.settings.colour"),)),
    (ConfigFormat("Acme's file", ("acme",), of_document),),
    (ConfigFiles("configFile", ("colour",), of_file),),
)
"""


def test_a_vendor_of_another_distribution_reads_flags_variables_and_files_of_its_own(
    installed: Installed, tmp_path: Path
) -> None:
    installed.add("acme", READS)
    file = tmp_path / "colour"
    file.write_text("green")
    inputs = vendor_plugins.config_inputs()

    def colour(text: str, arguments: Mapping[str, str], environ: Mapping[str, str]) -> object:
        flags = given_flags(arguments, environ, inputs)
        return parse(text, "f", "n", flags=flags, inputs=inputs).vendor("acme").settings["colour"]

    assert colour("{}", {"acme-colour": "red"}, {"ACME_COLOUR": "blue"}) == "red"
    assert colour("{}", {}, {"ACME_COLOUR": "blue"}) == "blue"
    assert colour("acme: {colour: white}", {}, {}) == "white"
    assert colour(f"vendors: {{acme: {{configFile: {file}}}}}", {}, {}) == "green"
    with pytest.raises(ConfigError, match=r"^f:2: acme.colour: is no colour$"):
        colour("acme:\n  colour: grey", {}, {})
    with pytest.raises(ConfigError, match=r"^f: the vendor's plugin cannot read it: KeyError: 'colour'$"):
        colour("acme: {}", {}, {})
    with pytest.raises(ConfigError, match="'acme' is a key of Acme's file, 'agent' is a key of the agent's"):
        colour("{acme: {}, agent: {}}", {}, {})


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ("5", "register_config_inputs returned a int, ConfigInputs are needed"),
        ("ConfigInputs(files=5)", "register_config_inputs returned bad ConfigInputs: files is 5; "),
        (
            "ConfigInputs(FlagGroup('a', '', (Flag(FlagKind.TEXT, (), ()),)))",
            "register_config_inputs returned bad ConfigInputs: flags.flags[0] has no names",
        ),
        (
            "ConfigInputs(FlagGroup('a', '', (Flag(FlagKind.TEXT, ('b',), (), '', 'vendors.x.enabled'),)))",
            "register_config_inputs returned bad ConfigInputs: flags.flags[0].sets is 'vendors.x.enabled'",
        ),
    ],
)
def test_a_plugin_with_wrong_inputs_is_left_out_and_reads_nothing(
    installed: Installed, inputs: str, why: str
) -> None:
    installed.add("acme", f"{READS}\n@hookimpl\ndef register_config_inputs(): return {inputs}")

    assert _load("acme").reason.startswith(why)
    assert "acme" not in vendor_plugins.config_inputs()


def test_a_flag_that_two_vendors_name_belongs_to_the_first_and_both_are_named(installed: Installed) -> None:
    installed.add("acme", READS)
    other = READS.replace('("acme-colour",), ("ACME_COLOUR",)', '("acme-colour", "bolt-hue"), ("BOLT",)')
    installed.add("bolt", other.replace("vendors.acme.", "vendors.bolt."))

    inputs = vendor_plugins.config_inputs()

    assert vendor_plugins.flag_clashes() == ("--acme-colour of bolt does nothing: acme has that flag",)
    assert inputs["acme"].flags is not None
    assert inputs["bolt"].flags is not None
    assert [flag.names for flag in inputs["acme"].flags.flags] == [("acme-colour",)]
    assert [flag.names for flag in inputs["bolt"].flags.flags] == [("bolt-hue",)]
    assert [given.flag for given in given_flags({"acme-colour": "red"}, {}, inputs)] == ["acme-colour"]


def test_the_vendors_inputs_are_read_once(installed: Installed) -> None:
    installed.add("acme", READS)

    assert vendor_plugins.config_inputs() is vendor_plugins.config_inputs()


@pytest.mark.parametrize(
    "where", ["", "@hookimpl\ndef register_config_inputs(): ", "@hookimpl\ndef register_backend(settings): "]
)
@pytest.mark.parametrize("error", ["OfItsOwn", "SystemExit(3)", "GeneratorExit()", "Unspeakable()"])
def test_no_error_of_a_plugin_ends_a_verb(installed: Installed, where: str, error: str) -> None:
    classes = (
        "class OfItsOwn(BaseException): pass\nclass Unspeakable(Exception):\n    def __str__(self): 1 / 0\n"
    )
    installed.add("acme", f"{READS}{classes}{where}raise {error}")

    assert "acme" not in vendor_plugins.config_inputs() or where.endswith("(settings): ")
    assert _load("acme").reason.startswith(error.partition("(")[0])
