"""Finds contradictions in a configuration whose keys all have the right form."""

import importlib.util
import os
import re
from collections.abc import Collection, Iterator, Sequence

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.follow.endpoint import endpoint_problem, ports_meet, rank_endpoint
from warmpath.indexer.shared.layout.names import prefix_problem
from warmpath.indexer.shared.redis import address as redis
from warmpath.prefixstore.tokenizers.hub import Pin
from warmpath.process.address import HostPort, is_host_port, is_ip, is_loopback
from warmpath.router.config.files import tls_files
from warmpath.router.config.form import Problem, Rule, broken, repeated
from warmpath.router.config.schema import (
    ClientSpec,
    Config,
    HubTable,
    ModelSpec,
    PickTable,
    PodSetSpec,
    PodSpec,
    QueueTable,
    ServerTable,
    SharedIndexTable,
)
from warmpath.router.config.selector import selector_problem
from warmpath.scorer.policy import UnknownPolicyError, make_policy

ALL_HOSTS = frozenset({"", "0.0.0.0", "[::]"})  # noqa: S104  no listener
"""Hosts with which a listener is on all addresses of the machine."""
URL = re.compile(r"^https?://[^/\s?#@]+(/[^\s?#]*)?$")
"""A URL, with or without a path; credentials are not allowed, as they would end up in messages."""


def contradictions(config: Config) -> Iterator[Problem]:
    """Yield each contradiction: the path of a key, and its problem."""
    yield from broken(("server",), _listeners(config.server))
    yield from _access(config)
    yield from _connections(config)
    yield from _pick(config.pick)
    yield from broken(("queue",), _queue(config.queue))
    yield from _shared_index(config.shared_index)
    if config.llmd.objects and (lacks := lacks_kubernetes()):
        yield ("llmd", "objects"), lacks
    most, longest = config.limits.max_queued_bytes, config.limits.max_prompt_bytes
    if longest > most:
        problem = f"is {most}, less than max-prompt-bytes ({longest}): one prompt must fit"
        yield ("limits", "max-queued-bytes"), problem
    yield from _models(config.models)
    yield from repeated("pod-sets", "name", [pods.name for pods in config.pod_sets])
    yield from repeated("pods", "id", [pod.id for pod in config.pods], "ids")
    bases = {model.name for model in config.models}
    taken: dict[str, str] = {}
    for position, pod in enumerate(config.pods):
        yield from broken(("pods", position), [_of_model(pod, bases), *_pod(pod, taken)])
    for position, pods in enumerate(config.pod_sets):
        yield from broken(("pod-sets", position), [_of_model(pods, bases), *_pod_set(pods)])


def _listeners(server: ServerTable) -> Iterator[Rule]:
    listen, metrics = server.listen, server.metrics_listen
    is_path, is_address = listen.startswith("unix:"), is_host_port(listen)
    has_metrics = bool(metrics) and is_host_port(metrics)
    is_absolute = listen.removeprefix("unix:").startswith("/")
    problem = f"{listen!r} is neither host:port (0 to 65535) nor unix:/PATH"
    yield not is_address and not is_absolute, "listen", problem
    yield listen.startswith("/"), "listen", f"{listen!r} lacks unix: before the path"
    problem = f"{metrics!r} is not host:port (0 to 65535)"
    yield metrics and not has_metrics, "metrics-listen", problem
    problem = f"has the port of server.listen ({listen}); each needs its own port"
    yield metrics and _is_one_socket(listen, metrics), "metrics-listen", problem
    if server.processes == 1:
        return
    yield not hasattr(os, "memfd_create"), "processes", "is above 1, which needs Linux"
    yield is_path, "listen", "is a path, which several processes cannot share"
    if is_path or not is_address:
        return
    port = HostPort.of(listen).port
    yield not port, "listen", "has port 0, which several processes cannot share"
    first = HostPort.of(metrics).port if has_metrics else 0
    last = first + server.processes - 1
    problem = f"{server.processes} ports from {first} on are past 65535"
    yield first and last > 65535, "metrics-listen", problem
    problem = f"its ports, {first} to {last}, one a process, include server.listen's"
    yield first and first <= port <= last, "metrics-listen", problem


def _is_one_socket(one: str, other: str) -> bool:
    """Return whether two addresses have one port, and one host or one that stands for all."""
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    if port != other_port or port == "0":
        return False
    return host == other_host or not {host, other_host}.isdisjoint(ALL_HOSTS)


def _access(config: Config) -> Iterator[Problem]:
    tls = config.server.tls
    if tls.client_ca and not tls.cert:
        yield ("server", "tls", "client-ca"), "needs cert and key"
    yield from repeated("clients", "name", [client.name for client in config.clients])
    taken: set[str] = set()
    for position, client in enumerate(config.clients):
        yield from broken(("clients", position), _client(client, config, taken))
    if not config.server.insecure:
        for key, address, lacks in exposed(config):
            problem = f"{address} is reached by other machines: it needs {lacks}"
            yield ("server", key), f"{problem}, or server.insecure = true"


def _client(client: ClientSpec, config: Config, taken: set[str]) -> Iterator[Rule]:
    """Yield the rules of a client; `taken` has the names in others' certificates."""
    yield not client.roles, "roles", "is empty; give one or both of score, read"
    name, known = client.certificate, config.queue.classes
    if bool(client.token_file) == bool(name):
        yield True, "token-file", "give one of token-file and certificate"
    elif name:
        problem = "needs server.tls.client-ca, by which certificates are asked for"
        yield not config.server.tls.client_ca, "certificate", problem
        # gRPC lists these names beside DNS and URI names; an HTTP listener does not.
        is_other = is_ip(name) or ("@" in name and "://" not in name)
        yield is_other, "certificate", f"{name!r} is no DNS name, URI or common name"
        yield name in taken, "certificate", f"{name!r} is another client's already"
        taken.add(name)
    for one in client.classes:
        problem = f"no class of [queue] is named {one!r}; known: {', '.join(known)}"
        yield one not in known, "classes", problem


def exposed(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield listeners that other machines reach unprotected: key, address, and missing protection."""
    server = config.server
    given = {"[server.tls]": server.tls.cert, "[[clients]]": config.clients}
    lacks = " and ".join(name for name, is_given in given.items() if not is_given)
    for key, address in (("listen", server.listen), ("metrics-listen", server.metrics_listen)):
        if lacks and is_host_port(address) and not is_loopback(address):
            yield key, address, lacks


def _connections(config: Config) -> Iterator[Problem]:
    for table, _, _, cert, key in tls_files(config):
        # Redis's have a check of their own.
        if bool(cert) != bool(key) and table != ("shared-index",):
            yield (*table, "cert" if cert else "key"), "cert and key: give both or none"
    if config.watch.cert and not config.watch.ca:
        yield ("watch", "ca"), "is missing; cert and key need it"


def _pick(pick: PickTable) -> Iterator[Problem]:
    try:
        make_policy(pick.policy)
    except UnknownPolicyError as error:
        yield ("pick", "policy"), str(error)
        return
    if whole := _options_problem(pick.policy, pick.options):
        # Each option for itself, so that all are named; else it is their combination.
        single = [
            _options_problem(pick.policy, {name: value}) for name, value in pick.options.items()
        ]
        for problem in [one for one in single if one] or [whole]:
            yield ("pick", "options"), problem


def _options_problem(policy: str, options: dict[str, float]) -> str:
    try:
        make_policy(policy, options)
    except ValueError as error:
        return str(error)
    return ""


def _queue(queue: QueueTable) -> Iterator[Rule]:
    known, usual = queue.classes, queue.usual_class
    twice = min((one for one in known if known.count(one) > 1), default="")
    yield twice, "classes", f"has {twice!r} twice"
    named = ("usual-class", usual), *(("objectives", one) for one in queue.objectives.values())
    for key, one in named:
        yield one not in known, key, f"is {one!r}; the classes are {', '.join(known)}"


def _shared_index(table: SharedIndexTable) -> Iterator[Problem]:
    if not table.url:
        usual = SharedIndexTable()
        for key in ("mode", "user", "password_file", "ca", "cert", "key", "share_bookings"):
            if getattr(table, key) != getattr(usual, key):
                yield ("shared-index", key.replace("_", "-")), "goes with url, which is missing"
        return
    if any(importlib.util.find_spec(name) is None for name in ("redis", "hiredis")):
        yield ("shared-index", "url"), "needs the extra: pip install 'warmpath-router[redis]'"
    if problem := prefix_problem(table.prefix):
        yield ("shared-index", "prefix"), problem
    try:
        address = redis.parse(table.url)
    except redis.AddressError as error:
        yield ("shared-index", "url"), str(error)
        return
    access = {name: getattr(table, name) for name in redis.ACCESS}
    for key, problem in redis.contradictions(address, access):
        yield ("shared-index", key), problem


def _models(models: Sequence[ModelSpec]) -> Iterator[Problem]:
    if not models:
        yield ("models",), "is empty; at least one model is needed"
    taken: set[str] = set()
    for position, model in enumerate(models):
        yield from broken(("models", position), _model(model, taken))
        hub = model.hub
        if hub != HubTable():
            at = ("models", position, "hub")
            for key, problem in Pin(hub.repo, hub.revision, hub.files).problems():
                yield (*at, key), problem
            if hub.endpoint and not URL.match(hub.endpoint):
                yield (*at, "endpoint"), f"{_shown(hub.endpoint)} is not https://host"


def _model(model: ModelSpec, taken: set[str]) -> Iterator[Rule]:
    """Yield the rules of a model; `taken` has the names of the others."""
    keys = {"name": [model.name], "aliases": model.aliases, "adapters": model.adapters}
    for key, names in keys.items():
        for name in names:
            yield not name, key, "is empty"
            yield name in taken, key, f"{name!r} is taken; names are unique"
            taken.add(name)
    for url in model.tokenizer_urls:
        yield not URL.match(url), "tokenizer-urls", f"{_shown(url)} is not http://host:port"
    is_twice = model.tokenizer and model.hub != HubTable()
    yield is_twice, "tokenizer", "give one of tokenizer and hub"


def _shown(url: str) -> str:
    return "a URL with a user or password" if "@" in url else repr(url)


def _of_model(spec: PodSpec | PodSetSpec, bases: Collection[str]) -> Rule:
    problem = f"no model is named {spec.model!r}; known: {', '.join(sorted(bases))}"
    return spec.model not in bases, "model", problem


def _pod(pod: PodSpec, taken: dict[str, str]) -> Iterator[Rule]:
    """Yield the rules of a pod; `taken` has the pods' sockets, each with whose it is."""
    has_port = is_host_port(pod.address) and not pod.address.endswith(":0")
    problem = f"{pod.address!r} is not host:port with a port from 1 to 65535"
    yield not has_port, "address", problem
    if pod.watch:
        yield pod.events, "events", "give one of events and watch, or neither"
        problem = "replay and topic go with events, not with watch"
        yield pod.replay or pod.topic, "replay", problem
        yield not is_host_port(pod.watch), "watch", f"{pod.watch!r} is not host:port"
    elif not pod.events:
        yield pod.replay, "replay", "goes with events, which are missing"
        yield pod.topic, "topic", "goes with events, which are missing"
    elif ENGINES[pod.engine].is_polled:
        problem = f"{pod.events!r} is not http://host:port/kv_cache_events"
        yield not re.match(r"^https?://[^/\s]+/", pod.events), "events", problem
        yield pod.replay, "replay", f"{pod.engine} has no replay"
    else:
        for key, endpoint in (("events", pod.events), ("replay", pod.replay)):
            if not endpoint:
                continue
            if problem := endpoint_problem(endpoint, pod.first_rank + pod.ranks):
                yield True, key, problem
                continue
            socket = rank_endpoint(endpoint, pod.first_rank)
            # Pods with topics may share one endpoint of events; endpoints of replay are never shared.
            if not pod.topic or key == "replay":
                yield socket in taken, key, f"{endpoint!r} is {taken.get(socket)} already"
                taken[socket] = f"the {key} of pod {pod.id!r}"
        if pod.ranks > 1:
            problem = ports_meet(pod.events, pod.replay, pod.ranks)
            yield problem, "replay", problem


def lacks_kubernetes() -> str:
    """Return how to install the part that finds pods of Kubernetes; empty if it is there."""
    is_there = importlib.util.find_spec("yaml") is not None
    return "" if is_there else "needs the extra: pip install 'warmpath-router[kubernetes]'"


def _pod_set(pods: PodSetSpec) -> Iterator[Rule]:
    problem = pods.namespace and lacks_kubernetes()
    yield problem, "namespace", problem
    if bool(pods.dns) == bool(pods.namespace):
        yield True, "dns", "give one of dns and namespace"
    elif pods.namespace:
        is_one = bool(pods.selector) != bool(pods.inference_pool)
        yield not is_one, "selector", "give one of selector and inference-pool"
        problem = pods.selector and selector_problem(pods.selector)
        yield problem, "selector", problem
    else:
        problem = "selector and inference-pool go with namespace, not with dns"
        yield pods.selector or pods.inference_pool, "selector", problem
    pod = pods.pod("", "host")
    problem = ports_meet(pod.events, pod.replay, pod.ranks)
    yield problem, "replay-port", problem
