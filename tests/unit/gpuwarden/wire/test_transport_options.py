"""The two ends' keepalive settings agree, and their message caps are explicit."""

from gpuwarden.wire.transport import MAX_MESSAGE_BYTES, client_options, server_options


def test_the_server_allows_pings_more_often_than_the_client_sends_them() -> None:
    client, server = dict(client_options()), dict(server_options())
    allowed = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert allowed < client["grpc.keepalive_time_ms"]
    for side in (client, server):
        assert side["grpc.keepalive_permit_without_calls"] == 1
        assert side["grpc.max_receive_message_length"] == MAX_MESSAGE_BYTES
        assert side["grpc.max_send_message_length"] == MAX_MESSAGE_BYTES


def test_caps_can_be_lowered() -> None:
    for options in (client_options(1024), server_options(1024)):
        assert dict(options)["grpc.max_receive_message_length"] == 1024


def test_either_side_may_take_less_than_it_sends() -> None:
    for made in (client_options(max_received_bytes=1024), server_options(max_received_bytes=1024)):
        options = dict(made)
        assert options["grpc.max_receive_message_length"] == 1024
        assert options["grpc.max_send_message_length"] == MAX_MESSAGE_BYTES
