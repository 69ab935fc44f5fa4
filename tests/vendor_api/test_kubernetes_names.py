"""Names that Kubernetes takes: free text becomes a label's value, and a wrong label says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.vendor_api.kubernetes_names import wrong_label
from agent.vendor_api.label_values import label_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA-TITAN-X-(Pascal)", "NVIDIA-TITAN-X-Pascal"),
        ("some ( thing )else", "some-thing-else"),
        ("Standard PC (Q35 + ICH9, 2009)\n", "Standard-PC-Q35-ICH9-2009"),
        ("  blanks   around  ", "blanks-around"),
        ("one - two", "one---two"),
        ("tab\tbed", "tabbed"),
        ("-_.signs._-", "signs"),
        ("Karte Größe ２", "Karte-Gre"),
        ("", ""),
        ("()", ""),
        ("x" * 64, "x" * 63),
        ("y" * 62 + " and more", "y" * 62),
    ],
)
def test_free_text_becomes_a_label_s_value(text: str, value: str) -> None:
    assert label_value(text) == value


@given(st.text())
def test_what_text_becomes_is_always_taken(text: str) -> None:
    assert wrong_label("a.b/c", label_value(text)) is None


@given(st.text(), st.integers(0, 63))
def test_what_text_becomes_keeps_to_the_limit(text: str, limit: int) -> None:
    assert len(label_value(text, limit)) <= limit


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nvidia.com/gpu.count", "8"),
        ("plain", ""),
        ("a/" + "k" * 63, "v" * 63),
        ("nvidia.com/mig-1g.10gb.count", "7"),
    ],
)
def test_a_label_that_kubernetes_takes_is_right(key: str, value: str) -> None:
    assert wrong_label(key, value) is None


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("Nvidia.com/gpu", "1", "'Nvidia.com' is not a domain"),
        ("/gpu", "1", "is not a domain"),
        ("a/b/c", "1", "'a/b' is not a domain"),
        ("a" * 254 + "/b", "1", "is not a domain"),
        ("", "1", "a name of 1 to 63"),
        ("a.b/-gpu", "1", "a name of 1 to 63"),
        ("a.b/" + "k" * 64, "1", "a name of 1 to 63"),
        ("a.b/c", "v" * 64, "has the value"),
        ("a.b/c", "-1", "has the value '-1'"),
        ("a.b/c", "1\nevil=2", "has the value '1\\nevil=2'"),
        ("a.b/c", "1\n", "has the value '1\\n'"),
    ],
)
def test_a_label_that_kubernetes_refuses_says_why(key: str, value: str, says: str) -> None:
    why = wrong_label(key, value)

    assert why is not None
    assert says in why
