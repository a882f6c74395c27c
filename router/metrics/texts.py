"""The metrics of tokenising: prefix stores, tokenizers and renderers."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from router.metrics.unlabelled import counter, gauge
from router.prompt.tokenising.assemble import Texts


def texts(of: Texts) -> Iterator[Metric]:
    """Yield the metrics of the parts that turn texts and chats into tokens."""
    stores = [store.stats for store in of.pool.stores.values()]
    for name, help_text, field, make in (
        ("bytes", "Bytes held by the prefix stores.", "bytes", gauge),
        ("hit_bytes", "Bytes of looked-up texts found.", "hit_bytes", counter),
        ("missed_bytes", "Bytes of looked-up texts not found.", "missed_bytes", counter),
        ("evictions", "Entries evicted for lack of room.", "evictions", counter),
    ):
        total = sum(getattr(stats, field) for stats in stores)
        yield make(f"warmpath_prefix_store_{name}", help_text, total)
    pool = of.pool.stats
    yield gauge(
        "warmpath_tokenizer_waiting_prompts",
        "Prompts that wait for a tokenizer.",
        pool.waiting_prompts,
    )
    yield gauge(
        "warmpath_tokenizer_waiting_bytes", "Bytes of the waiting prompts.", pool.waiting_bytes
    )
    yield counter(
        "warmpath_tokenizer_encoded_bytes", "Bytes of tokenised texts.", pool.encoded_bytes
    )
    yield counter("warmpath_tokenizer_timeouts", "Texts not tokenised in time.", pool.timeouts)
    yield counter("warmpath_tokenizer_refused", "Prompts refused: queue full.", pool.refused)
    yield counter("warmpath_tokenizer_failed", "Texts that a tokenizer failed on.", pool.failed)
    lost = of.pool.workers.lost
    yield gauge("warmpath_tokenizer_lost_threads", "Tokenizer threads that hang.", lost)
    yield from _loads(of)
    renders = of.renderer.stats
    yield gauge(
        "warmpath_renderer_waiting_chats", "Chats that wait to be rendered.", renders.waiting
    )
    yield gauge(
        "warmpath_renderer_waiting_bytes", "Bytes of the waiting chats.", renders.waiting_bytes
    )
    yield counter("warmpath_renderer_chats", "Chats rendered.", renders.rendered)
    yield counter("warmpath_renderer_refused", "Chats refused: queue full.", renders.refused)
    yield counter("warmpath_renderer_replaced", "Renderer processes replaced.", renders.replaced)


def _loads(of: Texts) -> Iterator[Metric]:
    stats = of.tokenizers.stats
    loaded = len(of.tokenizers.loaded())
    yield gauge("warmpath_tokenizers_loaded", "Tokenizers in memory.", loaded)
    yield counter("warmpath_tokenizer_loads", "Attempts to load a tokenizer.", stats.loads)
    yield counter(
        "warmpath_tokenizer_load_failures",
        "Failed attempts to load a tokenizer.",
        stats.failures,
    )
    yield counter(
        "warmpath_tokenizer_evictions", "Tokenizers unloaded to make room.", stats.evictions
    )
    asked = CounterMetricFamily(
        "warmpath_tokenizer_engine_requests",
        "Requests for tokens sent to engines.",
        labels=["model"],
    )
    failed = CounterMetricFamily(
        "warmpath_tokenizer_engine_failures",
        "Requests for tokens that an engine did not answer.",
        labels=["model"],
    )
    fallbacks = CounterMetricFamily(
        "warmpath_tokenizer_fallbacks",
        "Prompts tokenised locally because no engine answered.",
        labels=["model"],
    )
    for model, engine in of.sources.engines.items():
        asked.add_metric([model], engine.asked)
        failed.add_metric([model], engine.failures)
    for model, fallback in of.sources.fallbacks.items():
        fallbacks.add_metric([model], fallback.fallbacks)
    yield from (asked, failed, fallbacks)
