"""Finds contradictions in a configuration whose keys all have the right form."""

import importlib.util
import re
from collections.abc import Iterator, Sequence

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.follow.endpoint import endpoint_problem, ports_meet, rank_endpoint
from warmpath.indexer.shared.layout.names import prefix_problem
from warmpath.indexer.shared.redis.address import AddressError
from warmpath.indexer.shared.redis.address import contradictions as redis_contradictions
from warmpath.indexer.shared.redis.address import parse as parse_address
from warmpath.prefixstore.tokenizers.hub import Pin
from warmpath.process.listen import is_host_port
from warmpath.router.config.access import contradictions as access_contradictions
from warmpath.router.config.files import tls_files
from warmpath.router.config.form import Problem, repeated
from warmpath.router.config.schema import (
    Config,
    HubTable,
    PickTable,
    PodSetSpec,
    PodSpec,
    ServerTable,
    SharedIndexTable,
)
from warmpath.scorer.policy import UnknownPolicyError, make_policy

ALL_HOSTS = frozenset({"", "0.0.0.0", "[::]"})  # noqa: S104  no listener
"""Hosts with which a listener is on all addresses of the machine."""
URL = re.compile(r"^https?://[^/\s?#@]+(/[^\s?#]*)?$")
"""A URL, with or without a path; credentials are not allowed, as they would end up in messages."""


def contradictions(config: Config) -> Iterator[Problem]:
    """Yield each contradiction: the path of a key, and its problem."""
    yield from _addresses(config)
    yield from access_contradictions(config)
    yield from _endpoints(config)
    yield from _sources(config)
    yield from _pick(config.pick)
    yield from _queue(config)
    yield from _shared_index(config.shared_index)
    limits = config.limits
    if limits.max_prompt_bytes > limits.max_queued_bytes:
        problem = (
            f"is {limits.max_queued_bytes}, less than max-prompt-bytes ({limits.max_prompt_bytes}): "
            "one prompt must fit"
        )
        yield ("limits", "max-queued-bytes"), problem
    if not config.models:
        yield ("models",), "is empty; at least one model is needed"
    names: set[str] = set()
    for position, model in enumerate(config.models):
        for key, given in (
            ("name", [model.name]),
            ("aliases", model.aliases),
            ("adapters", model.adapters),
        ):
            for name in given:
                if not name:
                    yield ("models", position, key), "is empty"
                if name in names:
                    yield ("models", position, key), f"{name!r} is taken; names are unique"
                names.add(name)
    bases = {model.name for model in config.models}
    yield from repeated("pod-sets", "name", [pods.name for pods in config.pod_sets])
    yield from repeated("pods", "id", [pod.id for pod in config.pods], "ids")
    found: list[tuple[str, Sequence[PodSetSpec | PodSpec]]] = [
        ("pod-sets", config.pod_sets),
        ("pods", config.pods),
    ]
    for table, specs in found:
        for position, spec in enumerate(specs):
            if spec.model not in bases:
                known = ", ".join(sorted(bases))
                problem = f"no model is named {spec.model!r}; known: {known}"
                yield (table, position, "model"), problem
    for position, pods in enumerate(config.pod_sets):
        at = ("pod-sets", position)
        if pods.namespace and importlib.util.find_spec("kubernetes_asyncio") is None:
            yield (*at, "namespace"), "needs the extra: pip install 'warmpath-router[kubernetes]'"
        if bool(pods.dns) == bool(pods.namespace):
            yield (*at, "dns"), "give one of dns and namespace"
        elif pods.namespace and bool(pods.selector) == bool(pods.inference_pool):
            yield (*at, "selector"), "give one of selector and inference-pool"
        elif pods.dns and (pods.selector or pods.inference_pool):
            yield (*at, "selector"), "selector and inference-pool go with namespace, not with dns"
        pod = pods.pod("", "host")
        if problem := ports_meet(pod.events, pod.replay, pod.ranks):
            yield (*at, "replay-port"), problem


def _pick(pick: PickTable) -> Iterator[Problem]:
    try:
        make_policy(pick.policy)
    except UnknownPolicyError as error:
        yield ("pick", "policy"), str(error)
        return
    if whole := _options_problem(pick.policy, pick.options):
        # Each option for itself, so that all are named; else it is their combination.
        single = [
            _options_problem(pick.policy, {name: pick.options[name]}) for name in pick.options
        ]
        for problem in [one for one in single if one] or [whole]:
            yield ("pick", "options"), problem


def _options_problem(policy: str, options: dict[str, float]) -> str:
    try:
        make_policy(policy, options)
    except ValueError as error:
        return str(error)
    return ""


def _queue(config: Config) -> Iterator[Problem]:
    known = config.queue.classes
    if twice := [one for one in {*known} if known.count(one) > 1]:
        yield ("queue", "classes"), f"has {min(twice)!r} twice"
    if config.queue.usual_class not in known:
        problem = f"is {config.queue.usual_class!r}; the classes are {', '.join(known)}"
        yield ("queue", "usual-class"), problem
    for position, client in enumerate(config.clients):
        for name in client.classes:
            if name not in known:
                problem = f"no class of [queue] is named {name!r}; known: {', '.join(known)}"
                yield ("clients", position, "classes"), problem


def _shared_index(table: SharedIndexTable) -> Iterator[Problem]:
    if not table.url:
        for key in (
            "mode",
            "user",
            "password_file",
            "ca",
            "cert",
            "key",
            "share_bookings",
        ):
            if getattr(table, key) != getattr(SharedIndexTable(), key):
                yield ("shared-index", key.replace("_", "-")), "goes with url, which is missing"
        return
    if any(importlib.util.find_spec(name) is None for name in ("redis", "hiredis")):
        yield ("shared-index", "url"), "needs the extra: pip install 'warmpath-router[redis]'"
    if problem := prefix_problem(table.prefix):
        yield ("shared-index", "prefix"), problem
    try:
        address = parse_address(table.url)
    except AddressError as error:
        yield ("shared-index", "url"), str(error)
        return
    for key, problem in redis_contradictions(
        address,
        ca=table.ca,
        cert=table.cert,
        key=table.key,
        user=table.user,
        password_file=table.password_file,
    ):
        yield ("shared-index", key), problem


def _addresses(config: Config) -> Iterator[Problem]:
    server = config.server
    if not is_host_port(server.listen) and not server.listen.removeprefix("unix:").startswith("/"):
        yield (
            ("server", "listen"),
            f"{server.listen!r} is neither host:port (0 to 65535) nor unix:/PATH",
        )
    elif server.listen.startswith("/"):
        yield ("server", "listen"), f"{server.listen!r} lacks unix: before the path"
    if server.metrics_listen:
        if not is_host_port(server.metrics_listen):
            yield (
                ("server", "metrics-listen"),
                f"{server.metrics_listen!r} is not host:port (0 to 65535)",
            )
        if _is_one_socket(server.listen, server.metrics_listen):
            yield (
                ("server", "metrics-listen"),
                f"has the port of server.listen ({server.listen}); each needs its own port",
            )
    yield from _shared_ports(server)
    for position, pod in enumerate(config.pods):
        if not is_host_port(pod.address) or pod.address.endswith(":0"):
            problem = f"{pod.address!r} is not host:port with a port from 1 to 65535"
            yield ("pods", position, "address"), problem


def _is_one_socket(one: str, other: str) -> bool:
    """Return whether two addresses have one port, and one host or one that stands for all."""
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    if port != other_port or port == "0":
        return False
    return host == other_host or not {host, other_host}.isdisjoint(ALL_HOSTS)


def _shared_ports(server: ServerTable) -> Iterator[Problem]:
    if server.processes == 1:
        return
    if server.listen.startswith("unix:"):
        yield ("server", "listen"), "is a path, which several processes cannot share"
        return
    if not is_host_port(server.listen):
        return
    port = int(server.listen.rpartition(":")[2])
    if not port:
        yield ("server", "listen"), "has port 0, which several processes cannot share"
    if server.metrics_listen and is_host_port(server.metrics_listen):
        first = int(server.metrics_listen.rpartition(":")[2])
        last = first + server.processes - 1
        if first and last > 65535:
            yield (
                ("server", "metrics-listen"),
                f"{server.processes} ports from {first} on are past 65535",
            )
        if first and first <= port <= last:
            problem = f"its ports, {first} to {last}, one a process, include server.listen's"
            yield ("server", "metrics-listen"), problem


def _sources(config: Config) -> Iterator[Problem]:
    for position, model in enumerate(config.models):
        at = ("models", position)
        for url in model.tokenizer_urls:
            if not URL.match(url):
                yield (*at, "tokenizer-urls"), f"{_shown(url)} is not http://host:port"
        hub = model.hub
        if hub == HubTable():
            continue
        if model.tokenizer:
            yield (*at, "tokenizer"), "give one of tokenizer and hub"
        for key, problem in Pin(hub.repo, hub.revision, hub.files).problems():
            yield (*at, "hub", key), problem
        if hub.endpoint and not URL.match(hub.endpoint):
            yield (*at, "hub", "endpoint"), f"{_shown(hub.endpoint)} is not https://host"


def _shown(url: str) -> str:
    return "a URL with a user or password" if "@" in url else repr(url)


def _endpoints(config: Config) -> Iterator[Problem]:
    taken: dict[str, str] = {}
    for table, _, _, cert, key in tls_files(config):
        # Redis's have a check of their own.
        if bool(cert) != bool(key) and table != ("shared-index",):
            yield (*table, "cert" if cert else "key"), "cert and key: give both or none"
    if config.watch.cert and not config.watch.ca:
        yield ("watch", "ca"), "is missing; cert and key need it"
    for position, pod in enumerate(config.pods):
        if pod.events and pod.watch:
            yield ("pods", position, "events"), "give one of events and watch, or neither"
        if pod.watch:
            if pod.replay or pod.topic:
                yield (
                    ("pods", position, "replay"),
                    "replay and topic go with events, not with watch",
                )
            if not is_host_port(pod.watch):
                yield ("pods", position, "watch"), f"{pod.watch!r} is not host:port"
            continue
        if not pod.events:
            for key in ("replay", "topic"):
                if getattr(pod, key):
                    yield ("pods", position, key), "goes with events, which are missing"
            continue
        if ENGINES[pod.engine].is_polled:
            if not re.match(r"^https?://[^/\s]+/", pod.events):
                problem = f"{pod.events!r} is not http://host:port/kv_cache_events"
                yield ("pods", position, "events"), problem
            if pod.replay:
                yield ("pods", position, "replay"), f"{pod.engine} has no replay"
            continue
        for key, endpoint in (("events", pod.events), ("replay", pod.replay)):
            if not endpoint and key == "replay":
                continue
            at = ("pods", position, key)
            if problem := endpoint_problem(endpoint, pod.first_rank + pod.ranks):
                yield at, problem
                continue
            socket = rank_endpoint(endpoint, pod.first_rank)
            # Pods with topics may share one endpoint of events; endpoints of replay are never shared.
            if not pod.topic or key == "replay":
                if socket in taken:
                    yield at, f"{endpoint!r} is {taken[socket]} already"
                taken[socket] = f"the {key} of pod {pod.id!r}"
        if pod.ranks > 1 and (problem := ports_meet(pod.events, pod.replay, pod.ranks)):
            yield ("pods", position, "replay"), problem
