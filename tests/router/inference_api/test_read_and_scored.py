"""A request that is read can be scored as it is: the router counts the tokens that vLLM counted."""

import json
from pathlib import Path

from tests.recordings import TOKENIZER
from tests.router.inference_api.recorded_apis import HEAD, VLLM, Reading
from tests.router.running_router import running_router
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc


async def test_the_router_counts_the_tokens_that_vllm_counted(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    tokenizer = json.loads(TOKENIZER.read_text(encoding="utf-8"))
    tokenizer["post_processor"] = HEAD["post_processor"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": HEAD["template"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tables = """
        [limits]
        tokenize-seconds = 100
        [[models]]
        name = "tiny"
        tokenizer = "tiny"
        """
    reading = Reading("vllm")
    async with running_router(tmp_path, tables, metrics="") as (_, channel):
        stub = router_pb2_grpc.RouterStub(channel)
        for line in VLLM:
            request = await reading.read(line)
            if line["first"]["status"] == 200 and request.prompt is not None:
                answer = await stub.Score(pb.ScoreRequest(prompt=request.prompt))
                assert answer.prompt_tokens == len(line["token_ids"]), line["request"]
