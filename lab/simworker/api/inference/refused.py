"""Request fields that a simulated model cannot honour, each with the values that have no effect.

Fields that only shape probabilities (`temperature`, `seed`, `logit_bias`, penalties, …) are ignored,
since the answer's tokens are arbitrary anyway. So are `stop` and `stop_token_ids`: an answer never stops
before `max_tokens`, so `ignore_eos` and `min_tokens` always hold. A field that promises a property of
the answer, or an addition to it, is refused, because an answer without it would be a lie.
"""

from typing import Any

from warmpath.lab.simworker.api.errors import bad
from warmpath.lab.simworker.api.fields import Fields

NOTHING: tuple[Any, ...] = (None, False, "", [], {})

BOTH: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": NOTHING,
    "bad_words": NOTHING,
    "logprob_token_ids": NOTHING,
    "prompt_embeds": NOTHING,
    "response_format": (*NOTHING, {"type": "text"}),
    "structured_outputs": NOTHING,
    "truncate_prompt_tokens": (None,),
    "use_beam_search": NOTHING,
}
COMPLETIONS = BOTH | {"logprobs": (None,), "suffix": NOTHING}
CHAT = BOTH | {
    "audio": NOTHING,
    "chat_template": NOTHING,
    "continue_final_message": NOTHING,
    "documents": NOTHING,
    "echo": NOTHING,
    "logprobs": NOTHING,
    "tool_choice": (None, "none", "auto"),
    "top_logprobs": (None, 0),
}


def refuse(fields: Fields, refused: dict[str, tuple[Any, ...]]) -> None:
    """Raise ApiError for a field that asks for a feature that a simulated model lacks."""
    for name in refused.keys() & fields.body.keys():
        if fields.body[name] not in refused[name]:
            raise bad(name, "a simulated model has no such thing; leave it out")
