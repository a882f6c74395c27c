"""What a prompt's blocks are, and what is kept for the next prompt."""

from warmpath.indexer.keys.key import pack_tokens
from warmpath.router.prompt import token_prompt
from warmpath.router.prompt.token_prompt import TokenPrompt


def test_nothing_is_kept_of_what_sets_one_request_apart() -> None:
    ids = pack_tokens(range(64))
    TokenPrompt("m", ids).chain(16, "")
    before = token_prompt._root.cache_info().currsize
    roots = {
        TokenPrompt("m", ids, cache_salt=str(number)).chain(16, "").root for number in range(100)
    } | {TokenPrompt("m", ids, extra_key=str(number)).chain(16, "").root for number in range(100)}
    assert len(roots) == 200
    assert token_prompt._root.cache_info().currsize == before
