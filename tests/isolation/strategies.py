"""What a vendor's process may say, for property tests and the campaign's fuzz."""

from __future__ import annotations

import json

from hypothesis import strategies as st

_words = st.sampled_from(
    ["uuid", "index", "a", "a b", "id", "peer", "x" * 300, "é\x00", "\udc80", "driver-not-loaded", ""]
)
_texts = _words | st.text(max_size=20)
_numbers = st.integers(-3, 3) | st.sampled_from([1 << 63, -(1 << 63), 1 << 70, 10**400]) | st.floats()
_scalars = st.none() | st.booleans() | _numbers | _texts
_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=12,
)
_faults = st.fixed_dictionaries(
    {"reason": _words},
    optional={
        "message": _scalars,
        "state": st.sampled_from(["healthy", "unknown", "no"]),
        "cleared_by": st.lists(st.sampled_from(["reset", "reboot", "no"]), max_size=3) | _json,
    },
)
_entries = st.fixed_dictionaries(
    {},
    optional={
        "uuid": st.sampled_from(["a", "b", "c", "a,b", ""]) | _scalars,
        "index": st.integers(0, 3) | _scalars,
        "fault": st.none() | _faults | _json,
        "proof": _scalars,
        "peer": _words,
        "lanes": _numbers,
        "id": _words,
        "allocation": _scalars,
        "memory_used": _numbers,
        "utilization": _numbers,
        "pid": _numbers,
        "memory": _numbers | _scalars,
        "temperature": _numbers,
        "ecc_errors": st.dictionaries(_texts, _numbers, max_size=3) | _json,
        "parent": _scalars,
        "slice": _scalars,
        "links": _json,
        "paths": _json,
        "attributes": _json,
        "counters": st.dictionaries(_texts, _numbers, max_size=3) | _json,
        "recovery_due": st.booleans() | st.none() | _json,
        "nameless": _scalars,
    },
)
_specs = st.dictionaries(
    st.sampled_from(["v-x.json", "../x.json", ""]), st.sampled_from(["{}", "[", "1", "[[" * 9, "[" * 5000])
)


def sample_bytes() -> st.SearchStrategy[bytes]:
    """An answer to `sample`: nearly right, or any answer."""
    part = st.fixed_dictionaries({"answer": st.lists(_entries, max_size=4) | _json})
    failed = st.fixed_dictionaries({"error": _scalars})
    parts = st.dictionaries(st.sampled_from(["usage", "processes"]), part | failed | _json, max_size=2)
    return parts.map(_bytes) | answer_bytes()


def answer_bytes() -> st.SearchStrategy[bytes]:
    """An answer to any call: nearly right, any JSON, one that is cut, one that nests deeply, any bytes."""
    written = (st.lists(_entries, max_size=4) | _specs | st.lists(_words, max_size=3) | _json).map(_bytes)
    cut = st.tuples(written, st.integers(0, 200)).map(lambda it: it[0][: it[1]])
    return written | cut | st.integers(1, 5000).map(_nested) | st.binary(max_size=200)


def message_lines() -> st.SearchStrategy[bytes]:
    """A line on the socket: nearly a message, or anything that ends with a newline."""
    failures = st.fixed_dictionaries(
        {"type": st.sampled_from(["failed", "unavailable", "x"]), "reason": _texts, "message": _scalars}
    )
    messages = st.fixed_dictionaries(
        {},
        optional={
            "id": st.integers(0, 3) | _scalars,
            "answer": _json,
            "error": failures | _json,
            "events": _json,
            "blind": failures | _json,
        },
    )
    deep = st.integers(1, 5000).map(lambda depth: b'{"id": 1, "answer": ' + _nested(depth) + b"}")
    lines = messages.map(_bytes) | deep | answer_bytes()
    return lines.map(lambda it: it.replace(b"\n", b" ") + b"\n")


def _nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def _bytes(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
