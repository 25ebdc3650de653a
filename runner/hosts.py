"""The machines a job names: what a job file or a file of hosts says of each, as types; connects to none."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

Text = Annotated[str, Meta(min_length=1)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Price = Annotated[float, Meta(ge=0, le=1e9)]
_HOST = "a name of ~/.ssh/config, a host name, an address, user@host, host:port or [address]:port"
_HOST_KEY = '"known" (by known_hosts), "accept-new", or a public key such as "ssh-ed25519 AAAA..."'
_TARGET = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<six>[^\]\s]+)\]|(?P<host>[^\s\[\]@:]+))(?::(?P<port>\d+))?\Z"
)


class Host(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker's machine, as ``ssh`` would be told of it."""

    host: Annotated[Text, Meta(description=_HOST)]
    port: Annotated[Port | None, Meta(description="a whole number from 1 to 65535")] = None
    user: Annotated[Text | None, Meta(description="a user's name over there")] = None
    key: Annotated[Text | None, Meta(description="path of a private key; no other is offered then")] = None
    jump: Annotated[Text | None, Meta(description="a host to go through: " + _HOST)] = None
    folder: Annotated[
        Text | None,
        Meta(description="a folder over there for the files of runs; relative to the home folder"),
    ] = None
    host_key: Annotated[Text | None, Meta(description=_HOST_KEY)] = None
    price_per_hour: Annotated[
        Price | None, Meta(description="a number, 0 or more: what an hour of it costs, in your currency")
    ] = None

    @property
    def shown(self) -> str:
        """Return it as people write it."""
        name = f"[{self.host}]" if ":" in self.host and self.port is not None else self.host
        user = "" if self.user is None else f"{self.user}@"
        return f"{user}{name}" + ("" if self.port is None else f":{self.port}")


class Ssh(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for all connections over SSH."""

    transfers: Annotated[
        int, Meta(ge=1, le=10_000, description="a whole number, 1 or more: files that travel at once")
    ] = 8
    connect_s: Annotated[Seconds, Meta(description="a number of seconds above 0, at most 86400")] = 20.0
    lost_s: Annotated[
        Seconds, Meta(description="a number of seconds above 0: silence after which a machine counts as lost")
    ] = 10.0
    host_key: Annotated[Text, Meta(description=_HOST_KEY)] = "known"
    keep: Annotated[
        bool, Meta(description="true or false: whether the folders over there stay after a completed run")
    ] = False


def parse_target(text: str) -> dict[str, str | int]:
    """Return the parts of ``user@host:port``, which may be an IPv6 address, in brackets or without a port.

    Raises:
        ValueError: it is none.
    """
    if text.count(":") > 1 and "[" not in text:  # an address with neither brackets nor port
        user, at, host = text.rpartition("@")
        return {"host": host, **({"user": user} if at else {})}
    found = _TARGET.match(text)
    if found is None or (found["host"] or "").startswith("-"):
        raise ValueError(f"{text!r} is no host")
    parts: dict[str, str | int] = {"host": found["six"] or found["host"]}
    if found["user"]:
        parts["user"] = found["user"]
    if found["port"]:
        parts["port"] = int(found["port"])
    return parts


def resolved(host: Host) -> Host:
    """Take a host's name apart where it says user and port, too.

    Raises:
        ValueError: it is no host, or says something else than the keys beside it.
    """
    parts = parse_target(host.host)
    for key in ("user", "port"):
        given = getattr(host, key)
        if given is not None and parts.get(key, given) != given:
            raise ValueError(f"{key} is {given!r} here and {parts[key]!r} in {host.host!r}")
    return msgspec.convert({**msgspec.to_builtins(host), **parts}, Host)


def parse_line(line: str) -> Host | None:
    """Read a line of a file of hosts: a host, then ``key=value`` as in a job; None for a comment.

    Raises:
        ValueError: it is no such line.
    """
    try:
        words = shlex.split(line, comments=True)
    except ValueError as e:
        raise ValueError(f"{line.strip()!r}: {e}") from e
    if not words:
        return None
    given: dict[str, str | int | float] = {"host": words[0]}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in Host.__struct_fields__ or key == "host":
            known = ", ".join(f"{name}=" for name in Host.__struct_fields__[1:])
            raise ValueError(f"{word!r} is none of {known}")
        given[key] = int(value) if key == "port" and value.isdigit() else value
        if key == "price_per_hour":
            with suppress(ValueError):
                given[key] = float(value)
    try:
        return resolved(msgspec.convert(given, Host))
    except msgspec.ValidationError as e:
        raise ValueError(str(e)) from e
