"""Records the chats that vLLM makes of Anthropic's messages, for each kind of chat template.

    V/bin/python tests/vllm/record_messages.py > tests/router/inference_api/chats/vllm_messages.jsonl

Runs where vLLM 0.32 is installed, without a model, in the repository's root.
"""

import copy
import json
import logging
import sys

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

from tests.vllm.api_bodies import HI, TEXT, messages, user

SYSTEM = {"role": "system", "content": "Now be brief."}
PARTS = {
    "role": "system",
    "content": [TEXT, {"type": "text", "text": "x-anthropic-billing-header: 1"}, TEXT],
}
HEADER = {"role": "system", "content": "x-anthropic-billing-header: 1\nrest"}
OFF = {"type": "disabled"}

BODIES = [
    messages(HI, SYSTEM, HI),
    messages(HI, SYSTEM, HI, system="First."),
    messages(HI, PARTS, HI, system=[TEXT, TEXT]),
    messages(HI, HEADER, SYSTEM, HI),
    messages(SYSTEM, HI, {"role": "system", "content": ""}, {"role": "system", "content": []}),
    messages(user([TEXT]), SYSTEM, thinking=OFF),
    messages(HI, thinking=OFF, output_config={"effort": "high"}),
]


def main() -> None:
    logging.disable(logging.CRITICAL)
    for _, body in BODIES:
        for merges, effort in ((True, "low"), (False, "none")):
            request = AnthropicMessagesRequest.model_validate(copy.deepcopy(body))
            chat = AnthropicServingMessages.to_chat_completion_request(
                request, merge_inline_system=merges, disabled_thinking_effort=effort
            )
            line = {"body": body, "wants_system_first": merges, "heeds_no_effort": effort == "none"}
            made = {"messages": chat.messages, "reasoning_effort": chat.reasoning_effort}
            sys.stdout.write(json.dumps(line | made) + "\n")


if __name__ == "__main__":
    main()
