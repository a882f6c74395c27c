"""Clients of llm-d's indexer service that know nothing of the router's own stubs."""

import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

OURS = Path(__file__).parents[4] / "proto/indexer/v1/indexer.proto"
LLMDS = Path(os.environ.get("WARMPATH_LLMD_PROTO", ""))
"""llm-d's own file, `api/indexerpb/indexer.proto` of llm-d/llm-d-kv-cache, where a test may read it."""
METHOD = "/indexer.v1.IndexerService/GetPodScores"


class Client:
    """Calls GetPodScores with messages made of a .proto file, and with nothing else."""

    def __init__(self, proto: Path, folder: Path) -> None:
        """Compile the file; `folder` is for what that writes."""
        compiled = folder / "descriptors"
        arguments = [f"-I{proto.parent}", f"--descriptor_set_out={compiled}", proto.name]
        assert protoc.main(["protoc", f"-I{files('grpc_tools') / '_proto'}", *arguments]) == 0
        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(compiled.read_bytes()).file:
            pool.Add(file)  # type: ignore[no-untyped-call]
        service = pool.FindServiceByName("indexer.v1.IndexerService")  # type: ignore[no-untyped-call]
        method = service.methods_by_name["GetPodScores"]
        assert len(service.methods) == 1
        self.request: Any = GetMessageClass(method.input_type)
        self.response: Any = GetMessageClass(method.output_type)

    def on(self, channel: grpc.aio.Channel) -> Callable[..., Any]:
        """Return the call, which takes a request and returns the response."""
        return channel.unary_unary(
            METHOD,
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )
