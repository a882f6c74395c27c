"""The metrics of tokenising: prefix stores, tokenizers and renderers."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from warmpath.router.metrics.declared import counter, single
from warmpath.router.prompt.texts import Texts


def texts(of: Texts) -> Iterator[Metric]:
    """Yield the metrics of the parts that turn texts and chats into tokens."""
    stores = [store.stats for store in of.pool.stores.values()]
    for name in ("bytes", "hit_bytes", "missed_bytes", "evictions"):
        yield single(f"prefix_store_{name}", sum(getattr(stats, name) for stats in stores))
    pool = of.pool.stats
    yield single("tokenizer_waiting_prompts", pool.waiting_prompts)
    yield single("tokenizer_waiting_bytes", pool.waiting_bytes)
    yield single("tokenizer_encoded_bytes", pool.encoded_bytes)
    yield single("tokenizer_timeouts", pool.timeouts)
    yield single("tokenizer_refused", pool.refused)
    yield single("tokenizer_failed", pool.failed)
    lost = of.pool.workers.lost
    yield single("tokenizer_lost_threads", lost)
    yield from _loads(of)
    renders = of.renderer.stats
    yield single("renderer_waiting_chats", renders.waiting)
    yield single("renderer_waiting_bytes", renders.waiting_bytes)
    yield single("renderer_chats", renders.rendered)
    yield single("renderer_refused", renders.refused)
    yield single("renderer_replaced", renders.replaced)


def _loads(of: Texts) -> Iterator[Metric]:
    stats = of.tokenizers.stats
    loaded = len(of.tokenizers.loaded())
    yield single("tokenizers_loaded", loaded)
    yield single("tokenizer_loads", stats.loads)
    yield single("tokenizer_load_failures", stats.failures)
    yield single("tokenizer_evictions", stats.evictions)
    asked, failed = counter("tokenizer_engine_requests"), counter("tokenizer_engine_failures")
    fallbacks = counter("tokenizer_fallbacks")
    for model, engine in of.sources.engines.items():
        asked.add_metric([model], engine.asked)
        failed.add_metric([model], engine.failures)
    for model, fallback in of.sources.fallbacks.items():
        fallbacks.add_metric([model], fallback.fallbacks)
    yield from (asked, failed, fallbacks)
