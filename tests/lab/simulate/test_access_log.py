"""Traffic is read from Mooncake's traces and from access logs; errors name the line and the field.

One file: all tests read one kind of log.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from warmpath.lab.demo.traffic import CHATS
from warmpath.lab.simulate.traffic import access_log
from warmpath.lab.simulate.traffic.access_log import read_traffic

MOONCAKE = {"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}
HASHES = {
    "timestamp": 3.5, "input_tokens": 40, "output_tokens": 5, "block_size": 16,
    "prompt_hashes": ["a", "b", "c"],
}  # fmt: skip
TOKENS = {"timestamp": 1, "output_tokens": 5, "token_ids": list(range(40))}
TEXT = {"timestamp": 1, "output_tokens": 5, "text": "x" * 200}


def write(tmp_path: Path, *lines: Any, name: str = "log.jsonl") -> Path:
    path = tmp_path / name
    text = "".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in lines)
    path.write_text(text, encoding="utf-8")
    return path


def test_mooncakes_trace_is_known_by_its_fields(tmp_path: Path) -> None:
    traffic = read_traffic(write(tmp_path, MOONCAKE))
    (one,) = traffic.requests
    assert (one.at, one.prompt_tokens, one.output_tokens) == (3.0, 700, 5)
    assert traffic.block_size == 512
    assert len(one.keys) == 2
    assert not traffic.is_approximate


def test_equal_keys_are_equal_prefixes(tmp_path: Path) -> None:
    lines = [MOONCAKE, {**MOONCAKE, "hash_ids": [1, 3]}, {**MOONCAKE, "hash_ids": [4, 2]}]
    first, second, third = (one.keys for one in read_traffic(write(tmp_path, *lines)).requests)
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert not set(first) & set(third)


def test_a_gzipped_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(json.dumps(MOONCAKE).encode()))
    assert len(read_traffic(path).requests) == 1


def test_requests_are_taken_in_the_order_of_their_times(tmp_path: Path) -> None:
    late = {**HASHES, "timestamp": "2026-03-01T12:00:05+00:00"}
    early = {**HASHES, "timestamp": "2026-03-01T12:00:03.5Z"}
    naive = {**HASHES, "timestamp": "2026-03-01T12:00:04"}
    times = [one.at for one in read_traffic(write(tmp_path, late, early, naive)).requests]
    assert [time - times[0] for time in times] == [0.0, 0.5, 1.5]


def test_only_the_first_lines_are_read_where_that_is_asked(tmp_path: Path) -> None:
    path = write(tmp_path, MOONCAKE, MOONCAKE, "nonsense\n")
    assert len(read_traffic(path, 2).requests) == 2


def test_empty_lines_and_further_fields_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, "\n", {**HASHES, "user_agent": "curl"}, "  \n")
    assert len(read_traffic(path).requests) == 1


def test_hashes_may_leave_out_the_block_that_is_not_full(tmp_path: Path) -> None:
    short = {**HASHES, "prompt_hashes": ["a", "b"]}
    whole, less = read_traffic(write(tmp_path, HASHES, short)).requests
    assert whole.keys[:2] == less.keys
    named = {"hash_ids" if name == "prompt_hashes" else name: HASHES[name] for name in HASHES}
    assert read_traffic(write(tmp_path, named)).requests[0].keys == whole.keys


def test_token_ids_have_blocks_of_their_own_content(tmp_path: Path) -> None:
    longer = {**TOKENS, "token_ids": list(range(41))}
    first, second = read_traffic(write(tmp_path, TOKENS, longer)).requests
    assert first.prompt_tokens == 40
    assert [len(one.keys) for one in (first, second)] == [3, 3]
    assert first.keys[:2] == second.keys[:2]
    assert first.keys[2] != second.keys[2]


def test_two_models_share_no_block(tmp_path: Path) -> None:
    first, second = read_traffic(write(tmp_path, TOKENS, {**TOKENS, "model": "m"})).requests
    assert not set(first.keys) & set(second.keys)


def test_texts_are_cut_by_characters(tmp_path: Path) -> None:
    traffic = read_traffic(write(tmp_path, TEXT, {**TEXT, "text": "x" * 128 + "y"}))
    first, second = traffic.requests
    assert traffic.is_approximate
    assert first.prompt_tokens == 50
    assert len(first.keys) == 4
    assert first.keys[:2] == second.keys[:2]
    assert first.keys[2] != second.keys[2]


def test_a_logs_own_tokens_say_how_many_characters_one_has(tmp_path: Path) -> None:
    path = write(tmp_path, {**TEXT, "input_tokens": 100}, {**TEXT, "input_tokens": 300})
    assert [one.prompt_tokens for one in read_traffic(path).requests] == [200, 200]


def test_messages_are_what_roles_say(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief." * 40}
    ask = {"role": "user", "content": [{"type": "text", "text": "Why?"}]}
    base = {"timestamp": 1, "output_tokens": 5}
    path = write(
        tmp_path,
        {**base, "messages": [system, ask]},
        {**base, "messages": [system, {**ask, "content": "How?"}]},
        {**base, "prompt": "system\n" + system["content"]},
    )
    first, second, third = (one.keys for one in read_traffic(path).requests)
    assert first[:5] == second[:5] == third[:5]
    assert first != second


def test_sessions_are_as_logged_or_guessed_from_blocks(tmp_path: Path) -> None:
    logged = read_traffic(write(tmp_path, {**TOKENS, "session": 7}))
    assert (logged.requests[0].session, logged.requests[0].affinity) == ("7", "7")
    lines = [{**MOONCAKE, "hash_ids": [0, number % 30]} for number in range(90)]
    guessed = read_traffic(write(tmp_path, *lines)).requests
    # Block 0 opens every request, so it says nothing of a conversation.
    assert len({one.affinity for one in guessed}) == 30
    assert {one.session for one in guessed} == {""}


def test_engines_and_the_index_are_given_the_same_keys(tmp_path: Path) -> None:
    (one,) = read_traffic(write(tmp_path, MOONCAKE)).requests
    words = [int.from_bytes(one.packed_keys[at : at + 8], "little") for at in (0, 8)]
    assert words == [int.from_bytes(block, "big") for block in one.block_hashes] == [*one.keys]


def test_the_demos_trace_is_read() -> None:
    traffic = read_traffic(CHATS)
    assert len(traffic.requests) == 388
    assert all(len(one.keys) == -(-one.prompt_tokens // 512) for one in traffic.requests)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2: is no JSON object: "),
        ("[]", "line 2: is no JSON object: Expected `object`"),
        ({**MOONCAKE, "input_length": -1}, r"line 2: input_length is -1: .*>= 0"),
        ({**MOONCAKE, "output_length": 10**8}, r"line 2: output_length is 100000000: .*<= 10000000"),
        ({**MOONCAKE, "timestamp": None}, "line 2: timestamp is null: expected"),
        ({**MOONCAKE, "hash_ids": [1]}, None),
        ({**MOONCAKE, "hash_ids": []}, "line 2: hash_ids: 0 for 700 tokens.* 1 .full blocks only. or 2 "),
        ({**MOONCAKE, "hash_ids": [1, 2, 3]}, "line 2: hash_ids: 3 for 700"),
        ({"timestamp": 1}, "line 2: .*input_length"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_trace_is_told(tmp_path: Path, line: Any, why: str | None) -> None:
    path = write(tmp_path, MOONCAKE, line)
    if why is None:
        assert len(read_traffic(path).requests) == 2
        return
    with pytest.raises(ValueError, match=why) as caught:
        read_traffic(path)
    assert str(path) in str(caught.value)


def without(line: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != field}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (without(HASHES, "block_size"), "line 2: block_size is missing"),
        (without(HASHES, "input_tokens"), "line 2: input_tokens is missing or 0"),
        (without(HASHES, "output_tokens"), "line 2: .*output_tokens"),
        (without(HASHES, "prompt_hashes"), "line 2: one of prompt_hashes, .* is needed"),
        ({**HASHES, "block_size": 32}, "line 2: block_size is 32, but 16 in earlier lines"),
        ({**HASHES, "block_size": 0}, r"line 2: block_size is 0: .*>= 1"),
        ({**HASHES, "prompt_hashes": ["a"]}, "line 2: prompt_hashes: 1 for 40 tokens"),
        ({**HASHES, "prompt_hashes": [1.5, 2, 3]}, r"line 2: prompt_hashes\[0\]: expected"),
        ({**HASHES, "timestamp": "yesterday"}, r'line 2: timestamp is "yesterday", neither seconds'),
        ({**HASHES, "timestamp": 1772366400250}, r"line 2: timestamp is 1772366400250\.0, not 0 to 7300000000 seconds"),
        ({**HASHES, "timestamp": -1}, r"line 2: timestamp is -1\.0, not 0 to"),
        ({**HASHES, "timestamp": "9999-01-01T00:00:00Z"}, r'line 2: timestamp is "9999-01-01T00:00:00Z", not 0 to'),
        ({**HASHES, "output_tokens": "12"}, r'line 2: output_tokens is "12": expected `int'),
        ('{"timestamp": 1, "output_tokens": "12", "text', "line 2: output_tokens: expected `int"),
        ({**HASHES, "input_tokens": [1, 2]}, "line 2: input_tokens: expected"),
        ({**TOKENS, "text": "hello"}, "line 2: token_ids, text: only one of these may be given"),
        ({**HASHES, "messages": []}, "line 2: prompt_hashes, messages: only one of these"),
        ({**TOKENS, "token_ids": [-1]}, r"line 2: token_ids\[0\]: expected .*>= 0"),
        ({**TOKENS, "token_ids": []}, "line 2: one of "),
        ({**TEXT, "messages": ["hello"]}, "line 2: .*messages"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_log_is_told(tmp_path: Path, line: Any, why: str) -> None:
    path = write(tmp_path, HASHES, line)
    with pytest.raises(ValueError, match=why):
        read_traffic(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": "a secret", "output_tokens": "many"},
        {"text": ["a secret"]},
        {"text": "a secret", "token_ids": [4711]},
        {"messages": ["a secret"]},
        {"token_ids": ["a secret", 4711]},
        {"token_ids": [4711, -4711]},
        {"text": "a secret", "output_tokens": {"of": "a secret"}},
    ],
)
def test_no_prompt_is_in_an_error(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ValueError, match="line 1: ") as caught:
        read_traffic(write(tmp_path, {"timestamp": 1, "output_tokens": 5, **wrong}))
    assert "secret" not in str(caught.value)
    assert "4711" not in str(caught.value)


def test_a_long_value_is_cut_off_in_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'timestamp is "x{39}\.\.\., neither') as caught:
        read_traffic(write(tmp_path, {**HASHES, "timestamp": "x" * 1000}))
    assert len(str(caught.value)) < 300


def test_files_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is empty"):
        read_traffic(write(tmp_path, "\n"))
    with pytest.raises(ValueError, match="line 1: "):
        read_traffic(write(tmp_path, "nonsense\n"))
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(json.dumps(MOONCAKE).encode() * 9)[:-9])
    with pytest.raises(ValueError, match="line 1: "):
        read_traffic(broken)


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, MOONCAKE, MOONCAKE)
    monkeypatch.setattr(access_log, "MOST_BLOCKS", 3)
    with pytest.raises(ValueError, match="line 2: more than 3 blocks; take fewer lines"):
        read_traffic(path)
    monkeypatch.setattr(access_log, "MOST_LINE_BYTES", 20)
    with pytest.raises(ValueError, match="line 1: longer than 20 bytes"):
        read_traffic(path)


def test_single_lines_that_are_wrong_are_left_out_and_counted(tmp_path: Path) -> None:
    # A log that was copied while it was written begins and ends within lines.
    good = [{**TEXT, "timestamp": number} for number in range(100)]
    odd = [{**TEXT, "token_ids": [1]}, {**TEXT, "input_tokens": -1}]
    lines = ['"text": "a secret"}\n', *good, *odd, '{"timestamp": 7, "text": "a sec']
    traffic = read_traffic(write(tmp_path, *lines))
    assert traffic.requests == read_traffic(write(tmp_path, *good)).requests
    assert traffic.bad_lines == 4
    assert [told.partition(":")[0] for told in traffic.first_bad_lines] == [
        "line 1", "line 102", "line 103",
    ]  # fmt: skip
    assert "secret" not in "".join(traffic.first_bad_lines)


@pytest.mark.parametrize("usual", [HASHES, MOONCAKE])
def test_a_time_a_year_from_most_others_is_left_out_as_a_wrong_line(
    tmp_path: Path, usual: Any
) -> None:
    unit = 1000 if usual is MOONCAKE else 1
    good = [{**usual, "timestamp": (1772366400 + number) * unit} for number in range(40)]
    odd = {**usual, "timestamp": 12 * unit}
    path = write(tmp_path, *good[:3], odd, "nonsense\n", *good[3:])
    traffic = read_traffic(path)
    assert traffic.requests == read_traffic(write(tmp_path, *good, name="good")).requests
    middle = "more than a year from the median of all lines, 1772366419 s"
    assert traffic.first_bad_lines[0] == f"line 4: timestamp comes to 12 s, {middle}"
    assert traffic.first_bad_lines[1].startswith("line 5: ")


def test_requests_of_one_year_are_all_taken(tmp_path: Path) -> None:
    times = (1772366400, 1772366400 + 365 * 86400)
    path = write(tmp_path, *[{**HASHES, "timestamp": time} for time in times])
    assert read_traffic(path).bad_lines == 0


def test_two_kinds_of_times_in_one_file_are_refused(tmp_path: Path) -> None:
    times = (1, 2, 1772366400, 1772366401, 1772366402)
    path = write(tmp_path, *[{**HASHES, "timestamp": time} for time in times])
    with pytest.raises(ValueError, match=r"line 1: timestamp comes to 1 s.*2 of 5 lines are bad"):
        read_traffic(path)


@pytest.mark.parametrize(
    ("odd", "usual", "form"),
    [(MOONCAKE, TOKENS, "an access log"), (TOKENS, MOONCAKE, "a Mooncake trace")],
)
def test_most_of_the_first_lines_say_which_form_a_file_has(
    tmp_path: Path, odd: Any, usual: Any, form: str
) -> None:
    traffic = read_traffic(write(tmp_path, odd, "nonsense\n", *[usual] * 100))
    assert len(traffic.requests) == 100
    assert traffic.bad_lines == 2
    with pytest.raises(ValueError, match=f"3 of 6 lines are bad.*taken for {form} by its first"):
        read_traffic(write(tmp_path, odd, odd, "nonsense\n", *[usual] * 3))


def test_a_byte_order_mark_costs_no_request(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeff", HASHES, HASHES)
    traffic = read_traffic(path)
    assert (len(traffic.requests), traffic.bad_lines) == (2, 0)


def test_a_bad_line_decides_nothing_for_the_others(tmp_path: Path) -> None:
    bad = {**HASHES, "block_size": 8}
    assert read_traffic(write(tmp_path, bad, *[HASHES] * 40)).block_size == 16
    bad = {**TEXT, "token_ids": [1], "input_tokens": 1}
    lines = [{**TEXT, "input_tokens": 100}] * 40
    assert read_traffic(write(tmp_path, bad, *lines)).requests[0].prompt_tokens == 100


@pytest.mark.parametrize(("good", "is_read"), [(38, True), (37, False)])
def test_a_file_with_more_than_a_few_bad_lines_is_refused(
    tmp_path: Path, good: int, is_read: bool
) -> None:
    # Requests without a body are no lines that could be read.
    without_body = [{"timestamp": 1, "response_bytes": 2}] * 50
    path = write(tmp_path, *[TOKENS] * good, *without_body, "{}\n", "[]\n")
    if is_read:
        assert len(read_traffic(path).requests) == good
        return
    with pytest.raises(ValueError, match="2 of 39 lines are bad, more than 5%") as caught:
        read_traffic(path)
    assert f"{path}: line 88: " in str(caught.value)
    assert "--requests" not in str(caught.value)


def test_an_error_says_that_only_the_first_lines_count(tmp_path: Path) -> None:
    path = write(tmp_path, "{}\n", *[TOKENS] * 200)
    with pytest.raises(ValueError, match=r"1 of 10 lines.*only the first 10 lines count \(--req"):
        read_traffic(path, 10)
    assert read_traffic(path).bad_lines == 1


def test_a_log_without_bodies_has_no_requests(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no request with a body"):
        read_traffic(write(tmp_path, {"timestamp": 1, "response_bytes": 2}))


def body(**fields: Any) -> str:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "x" * 200}], **fields}
    )


def test_a_gateways_line_has_the_prompt_of_the_body_that_it_logged(tmp_path: Path) -> None:
    logged = {"timestamp": 1.5, "request_body": body(), "response_bytes": 400}
    plain = {
        "timestamp": 1.5,
        "output_tokens": 100,
        "model": "m",
        "messages": json.loads(body())["messages"],
    }
    assert read_traffic(write(tmp_path, logged)) == read_traffic(write(tmp_path, plain))
    tokens = {**logged, "request_body": json.dumps({"prompt": TOKENS["token_ids"]})}
    [one] = read_traffic(write(tmp_path, tokens)).requests
    assert one.prompt_tokens == 40


def test_a_gateways_streamed_answer_has_fewer_tokens_for_its_bytes(tmp_path: Path) -> None:
    logged = {"timestamp": 1, "request_body": body(stream=True), "response_bytes": 2200}
    [one] = read_traffic(write(tmp_path, logged)).requests
    assert one.output_tokens == 10
    [one] = read_traffic(write(tmp_path, {**logged, "output_tokens": 7})).requests
    assert one.output_tokens == 7


def test_a_gateways_line_without_a_body_is_passed_over(tmp_path: Path) -> None:
    health = {"timestamp": 1, "request_body": "", "response_bytes": 2}
    logged = {"timestamp": 2, "request_body": body(), "response_bytes": 400}
    null = {**health, "request_body": None, "session": None}
    assert [one.at for one in read_traffic(write(tmp_path, health, null, logged)).requests] == [2.0]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('1.2.3.4 - - [01/Mar/2026:12:00:00 +0000] "POST /v1/chat/completions HTTP/1.1" 200 5\n', "is no JSON object: JSON is malformed"),
        ({"time": "a secret", "status": 200}, 'no timestamp, but "time", "status". A line needs timestamp'),
        ({}, "has no timestamp. A line needs timestamp"),
        ([1], "is no JSON object. A line needs timestamp"),
        ({"timestamp": 1, "text": "a secret"}, "output_tokens is missing. A line needs timestamp"),
        ({"timestamp": 1, "request_body": '{"messages": [{"cont', "response_bytes": 4}, "request_body is not the JSON of a whole body"),
    ],
)  # fmt: skip
def test_a_log_of_another_form_is_told_what_is_wanted(
    tmp_path: Path, line: Any, problem: str
) -> None:
    with pytest.raises(ValueError, match="line 1: ") as raised:
        read_traffic(write(tmp_path, line))
    assert problem in str(raised.value)
    assert "secret" not in str(raised.value)
