"""The command line: what is refused, and what the settings say."""

import json
import socket
from pathlib import Path

import pytest

from warmpath.lab.simworker.__main__ import main
from warmpath.lab.simworker.options import parse
from warmpath.lab.simworker.v1.assemble import KVGroup


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--blocks=1"], "--blocks: at least 2"),
        (["--blocks=many"], "--blocks: 'many' is not a whole number"),
        (["--block-size=0"], "--block-size: at least 1"),
        (["--max-num-seqs=99999999999"], "--max-num-seqs: at most 2147483647"),
        (["--gpu-memory=8"], "--gpu-memory, --model-config: one needs the other"),
        (["--gpu-memory=8", "--model-config=/nowhere"], "--model-config: /nowhere: no such file"),
        (["--speed=0"], "--speed: above 0"),
        (["--speed=nan"], "--speed: above 0"),
        (["--speed=fast"], "--speed: 'fast' is not a number"),
        (["--listen=nowhere"], "--listen: 'nowhere' is not host:port"),
        (["--listen=127.0.0.1:65536"], "is not host:port"),
        (["--blocks=64", "--max-model-len=1009"], "do not fit into 63 blocks of 16; at most 1008"),
        (["--kv-groups=full"], "'full' is neither full:BLOCK_SIZE nor"),
        (["--kv-groups=window:16"], "'window:16' is neither full:BLOCK_SIZE nor window:BLOCK_SIZE:TOKENS"),
        (["--kv-groups=full:16:8"], "'full:16:8' is neither"),
        (["--kv-groups=full:0"], "--kv-groups: at least 1"),
        (["--kv-groups=window:16:64", "--engine=trtllm"], "trtllm has full:BLOCK_SIZE first"),
        (["--kv-groups=full:16,window:32:64", "--engine=trtllm"], "all of one size"),
        (["--kv-groups=full:16", "--dialect=sglang"], "--kv-groups: only --engine vllm-v1 with a --dialect of vllm"),
        (["--kv-cache-retention=0-64:80"], "--kv-cache-retention: only --engine trtllm"),
        (["--kv-cache-retention=64:80", "--engine=trtllm"], "'64:80' is neither START-END:PRIORITY nor decode:PRIORITY"),
        (["--kv-cache-retention=0-64:101", "--engine=trtllm"], "priority is 101; it must be 0 to 100"),
        (["--kv-cache-retention=0-:80,9-:5", "--engine=trtllm"], "only the last range may be open"),
        (["--kv-cache-retention=decode:1,decode:2", "--engine=trtllm"], "decode is given twice"),
        (["--eagle", "--engine=trtllm"], "--eagle: only --engine vllm-v1"),
        (["--blocks=100", "--kv-groups=full:16,window:16:64", "--max-model-len=900"], "do not fit into 99 blocks of 16; at most 784"),
        (["--workers=0"], "--workers: at least 1"),
        (["--data-parallel-size=0"], "--data-parallel-size: at least 1"),
        (["--fault-drop=1.5"], "--fault-drop: from 0 to 1"),
        (["--fault-delay=-1"], "--fault-delay: from 0 to 1"),
        (["--drain-seconds=-1"], "--drain-seconds: from 0"),
        (["--engine=tgi"], "--engine: invalid choice: 'tgi'"),
        (["--preset=abacus"], "--preset: invalid choice"),
        (["--metrics=tgi"], "--metrics: invalid choice"),
        (["--scheduling-policy=lottery"], "--scheduling-policy: invalid choice"),
        (["--prefix-caching-hash-algo=md5"], "--prefix-caching-hash-algo: invalid choice"),
        (["--dialect=tgi"], "'tgi' is not a dialect"),
        (["--dialect=vllm-0.9", "--byte-hashes"], "no hashes as bytes"),
        (["--lora-modules", "name"], "--lora-modules: 'name' is not name=path"),
        (["--lora-modules", '{"name": "x"}'], "has no name and path"),
        (["--lora-modules", "a=/x", "a=/y"], "--lora-modules: The lora adapter 'a' has already"),
        (["--adapter=sim"], "conflicts with a served base model"),
        (["--workers=2", "--replay-endpoint=tcp://*:5558"], "--replay-endpoint: 2 ports from 5558 on and as many of --events-endpoint"),
        (["--data-parallel-size=3", "--replay-endpoint=tcp://*:5559"], "put them 3 or more apart"),
        (["--workers=2", "--events-endpoint=ipc:///tmp/e"], "--events-endpoint: ipc:///tmp/e: several"),
        (["--workers=2", "--replay-endpoint=tcp://*:65535"], "--replay-endpoint: tcp://*:65535"),
        (["--workers=9", "--listen=h:65530"], "--listen: 9 ports from 65530"),
        (["--block=4"], "unrecognized arguments: --block=4"),
        (["--unheard-of"], "unrecognized arguments"),
    ],
)  # fmt: skip
def test_bad_options_are_named_with_their_limit(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_defaults_are_vllms_ports_on_loopback() -> None:
    settings = parse([])
    assert (settings.host, settings.port) == ("127.0.0.1", 8100)
    assert settings.events_endpoint == "tcp://127.0.0.1:5557"
    assert settings.faults.allowed is False
    assert settings.metrics == "vllm"


LLAMA = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_a_device_s_memory_and_a_model_s_configuration_give_the_blocks(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    engine = parse(["--gpu-memory=80", "--weights-memory=17", f"--model-config={file}"]).engine
    # 32 layers keep keys and values of 8 heads of 128 elements, 2 bytes each.
    assert engine.bytes_per_block == 16 * 131_072
    # A share of 0.92 of the memory is the engine's.
    assert engine.blocks == int((80 * 0.92 - 17) * 2**30) // engine.bytes_per_block
    assert engine.kv_groups == (KVGroup(16),)


def test_a_model_s_windows_become_groups_that_share_its_memory(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    types = [*["sliding_attention"] * 3, "full_attention"] * 8
    file.write_text(json.dumps(LLAMA | {"sliding_window": 1024, "layer_types": types}))
    engine = parse(["--gpu-memory=80", "--weights-memory=17", f"--model-config={file}"]).engine
    assert sorted(one.window for one in engine.kv_groups) == [0, 1024, 1024, 1024]
    assert engine.bytes_per_block == 16 * 131_072 // 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": None}, "config.json"),
        ({"layer_types": ["chunked_attention"], "sliding_window": 8}, "chunked_attention"),
        ({"torch_dtype": "int3"}, "'int3' is none of"),
    ],
)
def test_a_model_that_is_not_simulated_is_refused(
    changes: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA | changes))
    with pytest.raises(SystemExit):
        parse(["--gpu-memory=80", f"--model-config={file}"])
    assert message in capsys.readouterr().err


def test_a_listener_may_be_on_any_address() -> None:
    assert parse(["--listen=0.0.0.0:8100"]).host == "0.0.0.0"
    assert parse(["--listen=[::1]:0"]).host == "::1"


def test_the_longest_request_is_the_model_s_unless_the_cache_holds_less() -> None:
    def longest(*options: str) -> int:
        return parse(options).engine.max_model_len

    assert longest("--blocks=1000000") == 131_072
    assert longest("--blocks=50", "--block-size=8") == 49 * 8
    assert longest("--blocks=1000", "--block-size=8") == 999 * 8
    assert longest("--blocks=50", "--max-model-len=99999", "--engine=trtllm") == 99_999


def test_adapters_come_with_and_without_a_path() -> None:
    options = [
        "--adapter=a",
        "--lora-modules",
        "b=/x",
        '{"name": "c", "path": "/y"}',
        "--adapter=d",
    ]
    modules = parse(options).lora_modules
    assert modules == (("a", "a"), ("d", "d"), ("b", "/x"), ("c", "/y"))


def test_many_workers_with_ranks_have_room_for_their_ports() -> None:
    options = ["--workers=4", "--data-parallel-size=2"]
    assert parse(options).replay_endpoint == "tcp://127.0.0.1:5565"
    assert parse([]).replay_endpoint == "tcp://127.0.0.1:5558"
    settings = parse([*options, "--replay-endpoint=tcp://127.0.0.1:5565"])
    assert (settings.workers, settings.ranks) == (4, 2)
    assert parse([*options, "--events-endpoint=tcp://*:*", "--replay-endpoint=tcp://*:0"])
    assert parse(["--dialect=sglang-0.5.16"]).metrics == "sglang"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--listen=nohost.invalid:1", "nohost.invalid:1: there is no such host"),
        ("--listen={taken}", "{taken}: another process listens there"),
        ("--events-endpoint=tcp://{taken}", "tcp://{taken}: another process listens there"),
        ("--events-endpoint=hello", "hello: it is not tcp://HOST:PORT"),
    ],
)
def test_an_address_that_cannot_be_used_is_named_in_our_words(
    option: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    free = ["--listen=127.0.0.1:0", "--events-endpoint=tcp://127.0.0.1:*"]
    free.append("--replay-endpoint=tcp://127.0.0.1:*")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = f"127.0.0.1:{listening.getsockname()[1]}"
        assert main([*free, option.format(taken=taken)]) == 1
    printed = capsys.readouterr().err
    assert said.format(taken=taken) in printed
    assert "Errno" not in printed
    assert len(printed.splitlines()) == 1
