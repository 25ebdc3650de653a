"""Puts ``***`` where a secret would be read; knows nothing of where secrets come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def longest_first(secrets: Iterable[str]) -> list[str]:
    """Return the secrets in the order in which they have to be masked: one may be part of another."""
    return sorted(filter(None, secrets), key=len, reverse=True)


def masked(text: str, secrets: Sequence[str]) -> str:
    """Return a text without the secrets, which are given longest first."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def masked_value(value: Any, secrets: Sequence[str]) -> Any:
    """Return a value with every text in it masked, also the keys of objects."""
    if isinstance(value, str):
        return masked(value, secrets)
    if isinstance(value, dict):
        return {masked(key, secrets): masked_value(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked_value(item, secrets) for item in value]
    return value
