"""The address of the HTTP server, as ADDR:PORT."""

from __future__ import annotations

from dataclasses import dataclass

from agent.core.errors import ConfigError
from agent.vendor_api.text import shorten

_REMEDY = 'write ADDR:PORT, such as 127.0.0.1:9808 or [::1]:9808, or "" for none'


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """An IP address (or `localhost`) and a port; port 0 means any free port."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        from ipaddress import ip_address

        return self.host == "localhost" or ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> HttpAddress:
    """Read ADDR:PORT; an IPv6 address is in brackets.

    Raises:
        ConfigError: The text is no such address; the error says what would work.
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        raise _wrong(text, "has no port")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise _wrong(text, f"port '{shorten(port, 20)}' is not a number from 0 to 65535")
    return HttpAddress(_host(text, host), int(port))


def _host(text: str, host: str) -> str:
    from ipaddress import IPv6Address, ip_address

    if host == "localhost":
        return host
    if not host:
        raise _wrong(text, "has no address; 0.0.0.0 or [::] are all addresses")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        raise _wrong(text, f"'{shorten(host, 40)}' is not an IP address") from None
    if isinstance(address, IPv6Address) != bracketed:
        raise _wrong(text, "an IPv6 address needs brackets, an IPv4 address has none")
    return str(address)


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"the address '{shorten(text, 60)}' {why}; {_REMEDY}")
