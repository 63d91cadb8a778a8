"""Channel arguments on which both ends of a gRPC connection must agree.

A client that pings more often than the server allows is thrown out with "too
many pings", so both halves stand here. Values only; must not import grpc.
"""

from typing import Final

HARD_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""No message is ever larger, whatever is configured."""

CLIENT_PING_INTERVAL_MS: Final = 20_000
SERVER_MIN_PING_INTERVAL_MS: Final = 10_000
"""Strictly below the client's interval; equal ones lose to jitter."""
PING_TIMEOUT_MS: Final = 10_000

ChannelOption = tuple[str, int]

CLIENT_KEEPALIVE: Final[tuple[ChannelOption, ...]] = (
    ("grpc.keepalive_time_ms", CLIENT_PING_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

SERVER_KEEPALIVE: Final[tuple[ChannelOption, ...]] = (
    ("grpc.keepalive_time_ms", CLIENT_PING_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", SERVER_MIN_PING_INTERVAL_MS),
    ("grpc.http2.max_pings_without_data", 0),
)
