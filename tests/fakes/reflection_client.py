"""What grpcurl does, as far as docs/inspect-grpc.md needs it: any service by its description.

It takes grpcurl's arguments and knows nothing of gpuwarden's services: all it knows comes from the
server's reflection. For machines where grpcurl is not built.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

_TIMEOUT_S = 60


def grpcurl(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Exit status, output and errors."""
    given = _parser().parse_args(arguments)
    with _channel(given) as channel:
        try:
            return 0, _answer(channel, given), ""
        except grpc.RpcError as error:
            return 1, "", f"Code: {error.code()}\nMessage: {error.details()}\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="grpcurl", allow_abbrev=False)
    parser.add_argument("-plaintext", action="store_true")
    for name in ("cacert", "cert", "key"):
        parser.add_argument(f"-{name}", type=Path)
    parser.add_argument("-authority")
    parser.add_argument("-d", default="{}")
    parser.add_argument("address")
    parser.add_argument("words", nargs="+")
    return parser


def _channel(given: argparse.Namespace) -> Any:
    if given.plaintext:
        return grpc.insecure_channel(given.address)
    paths = (given.cacert, given.key, given.cert)
    credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in paths))
    name = given.authority or given.address.rpartition(":")[0]
    options = (("grpc.ssl_target_name_override", name), ("grpc.default_authority", name))
    return grpc.secure_channel(given.address, credentials, options)


def _answer(channel: Any, given: argparse.Namespace) -> str:
    database = ProtoReflectionDescriptorDatabase(channel)
    match given.words:
        case ["list"]:
            return "".join(f"{name}\n" for name in sorted(database.get_services()))
        case ["describe", name]:
            service = DescriptorPool(database).FindServiceByName(name)
            methods = "".join(f"  rpc {method.name}\n" for method in service.methods)
            return f"{name} is a service:\n{methods}"
        case [path]:
            return _called(channel, DescriptorPool(database), path, json.loads(given.d))
        case words:
            raise AssertionError(words)


def _called(channel: Any, pool: DescriptorPool, path: str, fields: dict[str, Any]) -> str:
    name, _, method_name = path.partition("/")
    method = pool.FindServiceByName(name).methods_by_name[method_name]
    request = json_format.ParseDict(fields, GetMessageClass(method.input_type)())
    kind = channel.unary_stream if method.server_streaming else channel.unary_unary
    call = kind(
        f"/{path}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    found = call(request, timeout=_TIMEOUT_S)
    answers = found if method.server_streaming else [found]
    return "".join(f"{json_format.MessageToJson(one)}\n" for one in answers)
