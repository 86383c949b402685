"""The Hub on the loopback address."""

from .loopback_hub import loopback_hub  # noqa: F401
