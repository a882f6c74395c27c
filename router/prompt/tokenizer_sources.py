"""Makes the sources of each configured model's tokenizer and chat template.

A model for which nothing is configured has its own pods: those whose engines answer /tokenize.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from warmpath.indexer.follow.instance import EngineTls
from warmpath.prefixstore.chats.chat import ModelTemplate
from warmpath.prefixstore.tokenizers.cache import TokenizerSource
from warmpath.prefixstore.tokenizers.engine import Engine, EngineStats, Tracing
from warmpath.prefixstore.tokenizers.hub import HubSource, Pin
from warmpath.prefixstore.tokenizers.remote import EngineTokenizer, engine_source
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer, Tokenizer
from warmpath.prefixstore.tokenizers.trial import load_folder
from warmpath.process.reread import Reread, read_bytes
from warmpath.router.config.files import EngineKeyError, engine_key_of
from warmpath.router.config.schema import ModelSpec

REMOTE_SECONDS = 0.5
"""Maximum wait for an engine's tokenizer where another one is left, on this machine or an engine's; well
below the usual limits.tokenize-seconds."""
LAST_SECONDS = 2.0
"""Maximum wait for the last engine, the usual limits.tokenize-seconds: without it a pick is blind."""
SKIP_SECONDS = 5.0
"""How long an engine is skipped after its tokenizer failed."""
LOAD_SECONDS = 60.0
"""Longest wait for a model hub; a longer download goes on, and is found by the next try."""


class TokenizingPods(NamedTuple):
    """The pods whose engines tokenise; any thread may call both functions."""

    urls: Callable[[str], Sequence[str]] = lambda _: ()
    """Returns the URLs of a model's pods, in the order in which to ask them now."""
    key: Callable[[str], str] = lambda _: ""
    """Returns the API key for a URL, empty for none. Raises TokenizerUnavailableError."""


NO_PODS = TokenizingPods()


class Sources:
    """Makes the sources of models' tokenizers; `stack` closes the connections to engines.

    Relative paths begin at `folder`; `tls` is for engines with HTTPS. `pods` tokenise for models without
    a tokenizer. `tracing` makes the spans of requests to engines.
    """

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        tls: EngineTls,
        pods: TokenizingPods,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._pods = pods
        self._folder = folder
        # The engines that tokenise are probed too, so the same credentials apply.
        self._tls = tls
        self._stack = stack
        self.engines: dict[str, EngineStats] = {}
        """Counters of requests to engines, by model."""
        self.files: list[Reread[str]] = []
        """The files of engines' API keys, to be kept current."""
        self.fallbacks: dict[str, EngineStats] = {}
        """The same counters, of the models that have a tokenizer on this machine, too."""

    def of(self, model: ModelSpec) -> TokenizerSource:
        """Return the source of a model's tokenizer: this machine, configured engines, or its pods."""
        local, urls = local_source(model, self._folder), model.tokenizer_urls
        if not urls and local is not None:
            return local
        if not urls:
            name = "its pods' /tokenize"
            urls_of_pods = partial(self._pods.urls, model.name)
            of_pods = self._engine(model, name, urls_of_pods, self._pods.key, LAST_SECONDS)
            return replace(engine_source(of_pods, vocab_size=model.vocab_size), is_needed=False)
        name = f"the engine at {', '.join(urls)}"
        patience = LAST_SECONDS if local is None else REMOTE_SECONDS
        engine = self._engine(model, name, lambda: urls, self._key(model), patience)
        if local is not None:
            self.fallbacks[model.name] = engine.stats
        return engine_source(engine, local, vocab_size=model.vocab_size)

    def _engine(
        self,
        model: ModelSpec,
        name: str,
        urls: Callable[[], Sequence[str]],
        key: Callable[[str], str] | None,
        patience: float,
    ) -> Engine:
        engine = Engine(
            urls,
            model.name,
            name=name,
            timeout=REMOTE_SECONDS,
            patience=patience,
            skip_for=SKIP_SECONDS,
            clock=time.monotonic,
            key=key,
            tls=lambda: self._tls.context,
            server_name=self._tls.name,
            tracing=self._tracing,
        )
        self._stack.callback(engine.close)
        self.engines[model.name] = engine.stats
        return engine

    def _key(self, model: ModelSpec) -> Callable[[str], str] | None:
        if not model.tokenizer_key_file:
            return None
        path = self._folder / model.tokenizer_key_file
        name = f"the key of model {model.name!r}'s engines"
        try:
            file = Reread(name, [path], lambda contents: engine_key_of(path, contents[0]))
        except EngineKeyError as error:
            raise OSError(str(error)) from None
        self.files.append(file)
        return lambda _: file.value


def local_source(model: ModelSpec, folder: Path) -> TokenizerSource | None:
    """Return the source of a model's tokenizer that needs no engine; None if there is none."""
    if model.tokenizer:
        path = folder / model.tokenizer
        return TokenizerSource(f"the folder {path}", partial(load_folder, path))
    hub = model.hub
    if not hub.repo:
        return None
    source = HubSource(
        Pin(hub.repo, hub.revision, hub.files),
        offline=hub.offline,
        token_file=folder / hub.token_file if hub.token_file else None,
        read=read_bytes,
        endpoint=hub.endpoint.rstrip("/") or None,
        timeout=LOAD_SECONDS,
    )
    return TokenizerSource(source.name, source.load)


def template_of(tokenizer: Tokenizer, model: ModelSpec) -> ModelTemplate | None:
    """Return the template that came with a tokenizer, if any.

    It is not compiled here: a template is a program, so it is compiled in the process that renders.
    """
    if not isinstance(tokenizer, FolderTokenizer | EngineTokenizer):
        return None
    if not tokenizer.chat_template:
        return None
    return ModelTemplate(
        tokenizer.chat_template, dict(tokenizer.special_tokens), model.placeholders.given()
    )


def with_template(
    source: TokenizerSource, model: ModelSpec, register: Callable[[str, ModelTemplate], None]
) -> TokenizerSource:
    """Return a source that also registers the chat template that comes with its tokenizer."""

    def load() -> Tokenizer:
        tokenizer = source.load()
        template = template_of(tokenizer, model)
        if template is not None:
            register(model.name, template)
        return tokenizer

    return replace(source, load=load)
