"""gRPC channel arguments that client and server must agree on, in one place.

A client that pings more often than its server allows loses its streams ("too
many pings"), so the server's floor stays strictly below the client's interval.
Values only; imports nothing.
"""

KEEPALIVE_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000
MIN_PING_INTERVAL_MS = 10_000
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""The hard cap, for messages with hardware reports."""
Options = list[tuple[str, int]]


def client_options(
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    keepalive_ms: int = KEEPALIVE_MS,
    *,
    max_received_bytes: int | None = None,
) -> Options:
    """Arguments of a channel that no other channel shares connections with.

    `max_received_bytes` where answers are known to be smaller than what is sent.
    """
    return [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        *_keepalive(keepalive_ms),
        *_message_caps(max_message_bytes, max_received_bytes),
    ]


def server_options(
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    min_ping_interval_ms: int = MIN_PING_INTERVAL_MS,
    *,
    max_received_bytes: int | None = None,
) -> Options:
    """Arguments of a server for such channels; nobody else can bind its port beside it."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", min_ping_interval_ms),
        *_keepalive(KEEPALIVE_MS),
        *_message_caps(max_message_bytes, max_received_bytes),
    ]


def _keepalive(keepalive_ms: int) -> Options:
    return [
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ]


def _message_caps(max_message_bytes: int, max_received_bytes: int | None = None) -> Options:
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_received_bytes or max_message_bytes),
    ]
