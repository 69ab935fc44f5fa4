"""How a config is checked against its vendors, completed, and which of two vendors serves a resource."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from agent.config import Config, VendorSettings, parse, to_yaml
from agent.config.flag_overlay import with_flags
from agent.config.given_flags import given_flags
from agent.core.errors import ConfigError
from agent.daemon import vendor_config, vendor_plugins
from agent.daemon.vendor_plugins import VendorPlugin
from agent.vendor_api.agent import (
    Exporter,
    Offering,
    Offers,
    ResourceRule,
    Settings,
    SettingsError,
    SettingsWarning,
    Sharing,
)

from .made_plugins import plugin, vendor


def refusing(message: str, *path: str | int) -> VendorPlugin:
    return structs.replace(plugin("acme", reason="settings"), refusal=SettingsError(message, path))


def test_settings_that_a_named_vendor_does_not_know_are_the_config_s_fault(found: list[VendorPlugin]) -> None:
    found.append(refusing("is not known", "deep", 0))

    with pytest.raises(ConfigError, match=r"vendors\.acme\.settings\.deep\[0\]: is not known"):
        vendor_config.check_config(Config(vendors={"acme": VendorSettings()}))
    vendor_config.check_config(Config())


def test_what_a_vendor_refuses_is_named_by_its_line(found: list[VendorPlugin]) -> None:
    text = "vendors:\n  acme:\n    settings:\n      deep:\n      - 1\n      - 2"
    found.append(refusing("is odd", "deep", 1))

    with pytest.raises(ConfigError, match=r"f:6: vendors\.acme\.settings\.deep\[1\]: is odd"):
        vendor_config.check_config(parse(text, "f", "n"))


def test_a_vendor_that_nobody_brings_is_not_reported_in_silence(
    found: list[VendorPlugin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendor_config, "names", lambda: ("nvidia", "metax"))
    sits_out = parse("report: {vendor: metax}", "f.yaml", "n")
    assert vendor_config.check_config(sits_out).report.vendor == "metax"

    with pytest.raises(ConfigError, match=r"f.yaml:1: report\.vendor: no vendor .*did you mean 'nvidia'\?"):
        vendor_config.check_config(parse("report: {vendor: nvidai}", "f.yaml", "n"))


def test_koordinator_s_own_name_is_refused_where_a_setting_says_it() -> None:
    text = "vendors:\n  simulated:\n    settings:\n      devices: 1\n      resource: koordinator.sh/gpu"

    with pytest.raises(
        ConfigError, match=r"^f:5: vendors\.simulated\.settings\.resource: .*Koordinator's own"
    ):
        vendor_config.check_config(parse(text, "f", "n"))


@pytest.mark.parametrize("name", ["koordinator.sh/gpu", "koordinator.sh/gpu.shared"])
def test_a_resource_of_koordinator_s_own_name_is_refused_with_its_line(name: str) -> None:
    text = f"vendors:\n  nvidia:\n    resources:\n    - {{name: {name}}}"

    with pytest.raises(ConfigError, match=rf"^f:4: .*resources\[0\]\.name: .*'{name}' is Koordinator's"):
        vendor_config.check_config(parse(text, "f", "n"))


def test_koordinator_s_own_name_is_refused_where_a_setting_of_enflames_says_it() -> None:
    text = "vendors:\n  enflame:\n    settings:\n      registerResource: koordinator.sh/gpu"

    with pytest.raises(ConfigError, match=r"^f:4: .*settings\.registerResource: .*is Koordinator's own"):
        vendor_config.check_config(parse(text, "f", "n"))


SHARES = "vendors: {nvidia: {resources: [{name: nvidia.com/gpu, sharing: {kind: replicas, replicas: 2}}]}}"


def test_shares_named_as_cards_are_a_warning_with_their_line_where_the_way_is_to_be_found(
    found: list[VendorPlugin],
) -> None:
    [warning] = vendor_config.check_config(parse(f"report: {{mode: auto}}\n{SHARES}", "f", "n")).warnings

    assert warning.startswith("f:2: vendors.nvidia.resources[0].name: 'nvidia.com/gpu' counts replicas")


@pytest.mark.parametrize("text", [SHARES, f"{SHARES}\nreport: {{mode: none}}"])
def test_shares_named_as_cards_are_no_warning_where_nobody_spoke_of_koordinator(
    found: list[VendorPlugin], text: str
) -> None:
    assert not vendor_config.check_config(parse(text, "f", "n")).warnings


@pytest.mark.parametrize("mode", ["feed", "device"])
@pytest.mark.parametrize("name", ["nvidia.com/gpu", "amd.com/gpu"])
@pytest.mark.parametrize(
    ("sharing", "what"),
    [("{kind: replicas, replicas: 2}", "replicas"), ("{kind: memory, unit: 1}", "units of memory")],
)
def test_shares_that_a_scheduler_takes_for_cards_are_refused_with_a_report_and_told_to_be_renamed(
    mode: str, name: str, sharing: str, what: str
) -> None:
    shares = f"vendors: {{nvidia: {{resources: [{{name: {name}, sharing: {sharing}}}]}}}}"

    with pytest.raises(ConfigError) as caught:
        vendor_config.check_config(parse(f"{shares}\nreport: {{mode: {mode}}}", "f", "n"))

    error = str(caught.value)
    assert f"vendors.nvidia.resources[0].name: '{name}' counts {what}, which" in error
    assert f"rename them: '{name}.shared' would do" in error


@pytest.mark.parametrize(
    "text",
    [
        f"{SHARES.replace('gpu,', 'gpu.shared,')}\nreport: {{mode: device}}",
        "vendors: {nvidia: {resources: [{name: nvidia.com/gpu}]}}\nreport: {mode: device}",
        # Whoever never heard of Koordinator keeps what was good.
        SHARES,
        f"{SHARES}\nreport: {{mode: none}}",
    ],
)
def test_cards_shares_of_another_name_and_shares_without_a_report_are_taken(text: str) -> None:
    assert vendor_config.check_config(parse(text, "f", "n")).vendors["nvidia"].resources


def test_a_path_that_leads_nowhere_is_told_as_far_as_it_goes(found: list[VendorPlugin]) -> None:
    text = "vendors:\n  acme:\n    settings:\n      deep: [1]"
    found.append(refusing("is odd", "deep", 7, "x"))

    with pytest.raises(ConfigError, match=r"f:4: vendors\.acme\.settings\.deep\[7\]\.x: is odd"):
        vendor_config.check_config(parse(text, "f", "n"))


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("metrics: {compat: [dcgm]}", ["metrics.compat"]),
        ("usage: {idle: {event: true, after: 1h}}", ["usage.idle.event", "usage.idle.after"]),
        ("usage: {limitExceeded: {by: 0.5, for: 1m}}", ["usage.limitExceeded.by", "usage.limitExceeded.for"]),
        ("usage: {enabled: false, interval: 1s, procDir: /p}", ["usage.interval", "usage.procDir"]),
        ("usage: {enabled: true, interval: 1s}\nmetrics: {compat: [dcgm]}", []),
        (to_yaml(Config()), []),
    ],
)
def test_a_setting_of_use_without_use_is_a_warning_with_its_line(text: str, paths: list[str]) -> None:
    warnings = vendor_config.check_config(parse(text, "f", "n")).warnings
    assert warnings == tuple(f"f:1: {it}: has no effect while usage.enabled is false" for it in paths)


def test_what_a_vendor_doubts_becomes_a_few_warnings_with_their_lines(found: list[VendorPlugin]) -> None:
    text = "vendors:\n  acme:\n    settings:\n      old: 1"
    settings = Settings(warnings=(SettingsWarning("is old", ("old",)),) * 100)
    doubting = replace(vendor("acme", "acme.com/x"), settings=settings)
    found.append(VendorPlugin("acme", "here", "1", doubting))

    warnings = vendor_config.check_config(replace(parse(text, "f", "n"), warnings=("first",))).warnings

    assert warnings == ("first", *("f:4: vendors.acme.settings.old: is old",) * 20)


def test_with_dynamic_modes_all_cards_may_be_for_several_resources(found: list[VendorPlugin]) -> None:
    rules = "   - {name: a/one}\n   - {name: a/other, ids: minor}"
    config = parse(f"vendors:\n acme:\n  modes: dynamic\n  resources:\n{rules}", "f", "n")
    found.append(plugin("acme", "acme.com/x"))

    assert vendor_config.check_config(config).warnings == ()


@pytest.mark.parametrize(
    ("one", "other", "error"),
    [
        (
            "all",
            "[0]",
            r"f:4: .*resources\[0\]\.devices: 'a/one' takes all cards, also those of a/other",
        ),
        (
            "[0]",
            "all",
            r"f:5: .*resources\[1\]\.devices: 'a/other' takes all cards, also those of a/one",
        ),
    ],
)
def test_all_cards_are_for_one_resource_alone(
    found: list[VendorPlugin], one: str, other: str, error: str
) -> None:
    rules = f"   - {{name: a/one, devices: {one}}}\n   - {{name: a/other, devices: {other}}}"
    config = parse(f"vendors:\n acme:\n  resources:\n{rules}", "f", "n")
    found.append(plugin("acme", "acme.com/x"))

    with pytest.raises(ConfigError, match=error):
        vendor_config.check_config(config)


def test_a_vendor_that_makes_its_own_resources_says_itself_what_all_is(found: list[VendorPlugin]) -> None:
    rules = (ResourceRule("acme.com/x"), ResourceRule("acme.com/slice"))
    own = replace(vendor("acme", "acme.com/x"), offers=Offers(resources=lambda rules, devices: Offering()))
    found.append(VendorPlugin("acme", "here", "1", own))

    vendor_config.check_config(Config(vendors={"acme": VendorSettings(resources=rules)}))


def slicing(rules: Sequence[ResourceRule]) -> None:
    for index, rule in enumerate(rules):
        if rule.placement == "local":
            raise SettingsError("is not local", (index, "placement"))


@pytest.mark.parametrize(("placement", "good"), [("local", False), ("claim", True), ("", True)])
def test_a_rule_is_judged_by_its_vendor_with_the_vendors_placement_where_it_says_none(
    found: list[VendorPlugin], placement: str, good: bool
) -> None:
    said = f", placement: {placement}" if placement else ""
    config = parse(f"vendors:\n acme:\n  resources:\n   - {{name: a/x{said}}}", "f", "n")
    own = replace(vendor("acme", "acme.com/x"), offers=Offers(placement="auto", check_rules=slicing))
    found.append(VendorPlugin("acme", "here", "1", own))

    if good:
        vendor_config.check_config(config)
    else:
        with pytest.raises(
            ConfigError, match=r"^f:4: vendors\.acme\.resources\[0\]\.placement: is not local$"
        ):
            vendor_config.check_config(config)


def test_a_complete_config_says_what_a_vendor_takes_where_nothing_is_said(found: list[VendorPlugin]) -> None:
    rules = "[{name: a/x}, {name: a/y, placement: claim, sharing: {kind: exclusive}}]"
    text = f"vendors: {{acme: {{settings: {{a: 1}}, resources: {rules}}}, b: {{}}}}"
    defaults, sharing = {"a": 0, "b": [], "library": "/l"}, Sharing("replicas", 4)
    offers = Offers(placement="auto", sharing=sharing)
    own = replace(vendor("acme", "acme.com/x"), settings=Settings(defaults=defaults), offers=offers)
    found.append(VendorPlugin("acme", "here", "1", own))

    made = vendor_config.complete_config(parse(text, "f", "n"))

    assert made.vendor("acme").settings == {"a": 1, "b": []}
    said = [(it.sharing, it.placement) for it in made.vendor("acme").resources]
    assert said == [(sharing, "auto"), (Sharing(), "claim")]
    assert made.vendor("b") == VendorSettings()


def test_a_plugin_that_is_broken_itself_is_not_the_config_s_fault(found: list[VendorPlugin]) -> None:
    found.append(plugin("acme", reason="ImportError: no module named acme"))

    vendor_config.check_config(Config(vendors={"acme": VendorSettings()}))


def clashes(found: list[VendorPlugin], config: Config | None = None) -> dict[str, str]:
    return {
        it.name: it.reason
        for it in vendor_config._without_clashes(found, config or Config())
        if not it.vendor
    }


def test_the_second_vendor_of_a_resource_is_left_out_and_says_how_to_mend_it(
    found: list[VendorPlugin],
) -> None:
    found += [plugin("acme", "acme.com/x"), plugin("copy", "acme.com/x")]

    assert clashes(found) == {
        "copy": "acme already serves acme.com/x; name another in vendors.copy.resources"
    }


def test_two_vendors_of_one_resource_get_along_once_the_config_names_another(
    found: list[VendorPlugin],
) -> None:
    found += [plugin("acme", "acme.com/x"), plugin("copy", "acme.com/x")]
    other = Config(vendors={"copy": VendorSettings(resources=(ResourceRule("copy.com/x"),))})

    assert clashes(found, other) == {}


def test_a_broken_plugin_of_the_same_name_does_not_harm_the_good_one(found: list[VendorPlugin]) -> None:
    found += [plugin("acme", reason="clash"), plugin("acme", "acme.com/x")]

    assert [it.vendor is not None for it in vendor_config._without_clashes(found, Config())] == [True]


KNOWN = "there are dcgm, hami or gpu-manager"


def test_metrics_stand_under_the_names_of_exporters_that_vendors_have() -> None:
    text = "vendors: {nvidia: {enabled: false}}\nmetrics:\n  compat:\n  - dcgm\n  - nvtop"
    with pytest.raises(ConfigError, match=rf"f:5: metrics\.compat\[1\]: no vendor .* 'nvtop'; {KNOWN}$"):
        vendor_config.check_config(parse(text, "f", "n"))

    taken = vendor_config.check_config(parse(text.replace("nvtop", "gpu-manager"), "f", "n"))
    assert taken.metrics.compat == ("dcgm", "gpu-manager")


def test_an_exporter_that_no_vendor_has_is_refused_with_the_variable_that_names_it() -> None:
    given = given_flags({}, {"XPU_AGENT_METRICS_COMPAT": "dcgm, nvtop"})
    with pytest.raises(ConfigError, match=f"^XPU_AGENT_METRICS_COMPAT: no vendor .* 'nvtop'; {KNOWN}$"):
        vendor_config.check_config(with_flags(Config(), given))


def test_the_exporter_of_a_vendor_of_another_distribution_is_taken(found: list[VendorPlugin]) -> None:
    offered = replace(vendor("acme", "a.com/x"), exporters=(Exporter("acme-exporter", lambda usage: ()),))
    found.append(VendorPlugin("acme", "here", "1", offered))

    taken = vendor_config.check_config(parse("metrics: {compat: [acme-exporter, dcgm]}", "f", "n"))
    assert taken.metrics.compat == ("acme-exporter", "dcgm")


@pytest.mark.parametrize(
    "unread",
    [
        plugin("acme", reason="broken"),
        refusing("is odd", "deep"),
        VendorPlugin("acme", "here", "1", None, vendor_plugins.NOT_ENABLED),
    ],
    ids=["broken", "refused", "disabled"],
)
def test_an_exporter_of_a_vendor_that_is_not_loaded_costs_no_vendor_its_config(
    unread: VendorPlugin, found: list[VendorPlugin]
) -> None:
    found += [unread, plugin("other", "other.com/x")]

    config = "{usage: {enabled: true}, metrics: {compat: [acme-exporter]}}"
    taken = vendor_config.check_config(parse(config, "f", "n"))

    (warning,) = taken.warnings
    assert warning.startswith("f:1: metrics.compat[0]: no vendor has an exporter 'acme-exporter'; there are ")
    assert warning.endswith("; not known are the exporters of acme")


def test_a_vendor_that_offers_nothing_makes_no_unknown_exporter_possible(found: list[VendorPlugin]) -> None:
    found.append(VendorPlugin("acme", "here", "1", None, vendor_plugins.SITS_OUT))

    with pytest.raises(ConfigError, match="no vendor has an exporter 'acme-exporter'"):
        vendor_config.check_config(parse("metrics: {compat: [acme-exporter]}", "f", "n"))
