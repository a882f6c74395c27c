"""The pods that tokenise texts for the router: those whose engines answer /tokenize."""

from collections.abc import Sequence
from itertools import count

from warmpath.indexer.engines.table import ENGINES
from warmpath.prefixstore.tokenizers.tokenizer import TokenizerUnavailableError
from warmpath.router.config.files import EngineKeyError, read_engine_key
from warmpath.router.pods.table import PodTable, that_serve


class Tokenizing:
    """Finds the pods that tokenise, as they come and go; any thread may call it."""

    def __init__(self, pods: PodTable) -> None:
        self._pods = pods
        self._turns = count()

    def urls(self, model: str) -> Sequence[str]:
        """Return the URLs of a model's pods that tokenise; at each call another one comes first.

        Pods that do not serve are left out while others do.
        """
        pods = [pod for pod in self._pods.of_model(model) if ENGINES[pod.engine].tokenizes]
        urls = [pod.url for pod in that_serve(pods) or pods]
        first = next(self._turns) % max(1, len(urls))
        return urls[first:] + urls[:first]

    def key(self, url: str) -> str:
        """Return the API key of the pod at a URL, read anew; empty if it needs none.

        Raises TokenizerUnavailableError.
        """
        file = next((pod.key_file for pod in self._pods if pod.url == url), None)
        try:
            return "" if file is None else read_engine_key(file)
        except EngineKeyError as error:
            raise TokenizerUnavailableError(f"{url}: {error}") from error
