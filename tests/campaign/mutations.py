"""Spoils good inputs: bytes anywhere, JSON where it has meaning. Everything is drawn from a seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

#: Values that tend to be forgotten.
WORDS = (
    "",
    "\x00",
    "::",
    "a::0",
    "GPU-0::-1",
    "\u2028",
    "\udc80",
    "é",
    "x" * 300,
    "v1",
    "all",
    "../..",
    "-1",
)
NUMBERS = (0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308)
DEEP = "[" * 3000

Spoil = Callable[[Random], bytes]


def spoilt_bytes(examples: Sequence[bytes], rng: Random) -> bytes:
    """One of the examples with some bytes changed, cut out, doubled or put in; now and then all noise."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(64))
    content = bytearray(rng.choice(examples))
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(content) + 1)
        size = rng.choice((1, 1, 2, 8, 64))
        match rng.randrange(5):
            case 0 if at < len(content):
                content[at] ^= 1 << rng.randrange(8)
            case 1:
                del content[at : at + size]
            case 2:
                content[at:at] = rng.randbytes(size)
            case 3:
                content[at:at] = content[at : at + size]
            case _:
                del content[at:]
    return bytes(content)


def spoilt_json(examples: Sequence[Any], rng: Random) -> Any:
    """One of the examples with some values replaced, dropped, doubled or renamed."""
    document = json.loads(json.dumps(rng.choice(examples)))
    for _ in range(rng.choice((1, 1, 2, 5))):
        document = _changed(document, rng)
    return document


def _changed(value: Any, rng: Random) -> Any:
    """Go down at random, and change what is there."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value, key=str))
        match rng.randrange(8):
            case 0:
                return {it: one for it, one in value.items() if it != key}
            case 1:
                return {**value, rng.choice(WORDS): value[key]}
            case _:
                return {**value, key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        match rng.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case _:
                return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    return _anything(value, rng)


def _anything(value: Any, rng: Random) -> Any:
    if isinstance(value, str) and rng.random() < 0.4:
        return spoilt_text(value, rng)
    if isinstance(value, int | float) and rng.random() < 0.4:
        return rng.choice(NUMBERS)
    return rng.choice((None, True, False, [], {}, [None], {"": None}, rng.choice(WORDS), rng.choice(NUMBERS)))


def spoilt_text(text: str, rng: Random) -> str:
    return spoilt_bytes([text.encode(errors="surrogatepass") or b"x"], rng).decode(errors="replace")


def written(document: Any, rng: Random) -> bytes:
    """As JSON; now and then not quite."""
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")
    if rng.random() < 0.02:
        return text.replace(b"{", DEEP.encode(), 1)
    return spoilt_bytes([text], rng) if rng.random() < 0.15 else text
