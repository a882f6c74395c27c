"""The router's configuration: one frozen tree, read from TOML once.

Every default stands beside its unit and its reason. `router.config.read` reads and checks it;
`lab.pages.config` makes docs/reference/config.md of it, where docs/PAGE.md#HEADING becomes a link.
This one module has every key, however many there are, since it describes one file.
"""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from warmpath.indexer.engines.table import ENGINES

MIB = 1 << 20
MOST_BYTES = 1 << 42
"""Highest accepted number of bytes; a larger one must be a mistake."""

Positive = Annotated[int, Meta(gt=0, le=1 << 30)]
"""A count from 1 to 2^30."""
Bytes = Annotated[int, Meta(gt=0, le=MOST_BYTES)]
Blocks = Annotated[int, Meta(ge=0, lt=1 << 32)]
ServerName = Annotated[
    str,
    Meta(
        pattern=r"^([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)?$",
        description="a host's name, or empty",
    ),
]
FirstRank = Annotated[int, Meta(ge=0, lt=1 << 16)]
BlockSize = Annotated[int, Meta(gt=0, le=1 << 20, extra={"unit": "tokens"})]
Seconds = Annotated[float, Meta(gt=0, le=86400)]

HeaderName = Annotated[
    str,
    Meta(
        pattern=r"^([a-z0-9!#$%&'*+.^_`|~-]{1,128})?$",
        description="a header's name in lower case, or empty",
    ),
]

RELOADABLE = Meta(extra={"reloadable": True})
"""Marks a key of which a running router takes another value when it is reloaded (`router.reload`)."""

if TYPE_CHECKING:
    EngineName = str
else:
    EngineName = Literal[tuple(ENGINES)]
Role = Literal["both", "prefill", "decode"]
ReadyCondition = Literal["pods", "index", "coverage", "tokenizers"]
"""A condition of readiness that may be required (`router.readiness`)."""
Right = Literal["score", "read"]
"""A role of a caller."""


class Table(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """A table of the file; its keys are the fields' names with dashes in place of underscores.

    Each class is named after its table: `PickTable` is [pick]. One of several tables of one name is a
    spec: `PodSpec` is one of [[pods]], and `router.pods.table.PodTable` has all pods of a router.
    """


class Http2Table(Table, frozen=True):
    """[server.http2]: limits of client connections.

    docs/reference/transport.md#hostile-clients says which attack each one stops.
    """

    max_connections: Annotated[int, Meta(gt=0, le=1 << 20)] = 2048
    """Maximum connections, but at most half of the process's file descriptors. Beyond it the address
    with the most loses one, idle ones first."""
    max_streams: Annotated[int, Meta(gt=0, le=1 << 16)] = 256
    """Maximum open calls on a connection. Not with grpcio."""


class ServerTlsTable(Table, frozen=True):
    """[server.tls]: TLS of both listeners.

    Certificate files are read again when they change, also those of [watch], [probe] and
    [shared-index].
    """

    cert: str = ""
    """PEM of the router's certificate, with its chain; empty: no TLS."""
    key: str = ""
    """PEM of its private key."""
    client_ca: str = ""
    """PEM of the callers' authority. gRPC callers must then show a certificate; HTTP callers may,
    because probes of /healthz and /readyz have none. Empty: no client certificates."""


class ServerTable(Table, frozen=True):
    """[server]: where the router listens."""

    listen: str = "127.0.0.1:7400"
    """host:port of gRPC, or unix:/PATH. Beyond loopback it needs [server.tls] and [[clients]], or
    `insecure`."""
    transport: Literal["auto", "nghttp2", "grpcio"] = "auto"
    """nghttp2: the system's libnghttp2. grpcio: gRPC's own server, about three times slower. auto:
    nghttp2 if the system has a safe version of it; the log says which (docs/reference/transport.md)."""
    http2: Http2Table = Http2Table()
    metrics_listen: str = "127.0.0.1:7401"
    """host:port of the live page (docs/reference/tracing-and-live-page.md), /metrics, /healthz,
    /readyz and Dynamo's pages (docs/guides/coming-from.md). The rules of `listen` apply. Empty: none."""
    processes: Annotated[int, Meta(gt=0, le=64)] = 1
    """Processes that share `listen`, one index, whose events the first follows, and their bookings.
    Each uses one core, and has the next port for metrics. More than 1 need Linux."""
    ready: Annotated[tuple[ReadyCondition, ...], RELOADABLE] = ("pods", "index")
    """Conditions that must hold for the router to be ready (docs/reference/failures.md#readiness)."""
    ready_coverage: Annotated[float, Meta(gt=0, le=1), RELOADABLE] = 0.5
    """For the condition `coverage`: the share of healthy pods with events whose view must be exact. A
    high value takes all routers out at once when engines restart."""
    drain_delay_seconds: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    """After SIGTERM the health checks fail, and the router still answers for this long so that load
    balancers notice (docs/reference/failures.md#the-end-of-a-router). 0: new calls are refused at
    once."""
    drain_seconds: Seconds = 3.0
    """After that, maximum time for calls in progress."""
    tls: ServerTlsTable = ServerTlsTable()
    insecure: bool = False
    """Allows listening beyond loopback without TLS or without [[clients]]; the log warns."""


class ClientSpec(Table, frozen=True):
    """[[clients]]: a caller and its roles (docs/guides/security.md#roles).

    If the file has any client, all other callers are refused. Each needs either `token-file` or
    `certificate`.
    """

    name: str
    """Name in errors and logs."""
    roles: list[Right]
    """score: Score, ScoreStream, Pick, Report, Explain, GetPodScores, /query, /overlap_scores, and
    Envoy's /pick, Process, StreamAccessLogs. read: ListPods, Diagnose, ListDecisions, reflection,
    /metrics."""
    token_file: str = ""
    """File with the caller's token, one line of 16 to 4096 bytes; read again when it changes."""
    certificate: str = ""
    """A name in the caller's certificate: an alternative name (DNS or URI), or the common name. It
    needs server.tls.client-ca."""
    classes: list[str] = []
    """Classes of [queue] that the caller may name besides the usual one. Without [[clients]] all
    classes are open."""


class LimitsTable(Table, frozen=True):
    """[limits]: limits of prompts, calls and their messages."""

    max_prompt_bytes: Annotated[int, Meta(gt=0, le=1 << 30)] = 8 * MIB
    """Maximum length of a text or body; 8 MiB are about two million tokens."""
    max_prompt_tokens: Annotated[int, Meta(gt=0, le=1 << 28)] = 1_000_000
    """Maximum tokens of a prompt."""
    tokenize_seconds: Annotated[Seconds, RELOADABLE] = 2.0
    """Maximum wait for the tokenizer; a shorter deadline of the caller counts."""
    max_queued_bytes: Bytes = 64 * MIB
    """Maximum bytes of prompts that wait for a tokenizer."""
    max_in_flight_bytes: Annotated[Bytes, RELOADABLE] = 160 * MIB
    """Maximum bytes of all calls' messages, until their calls are answered. An unread message counts as
    the largest one (17 MiB by default). Memory may grow by twice this."""
    wait_seconds: Annotated[float, Meta(gt=0, le=60)] = 2.0
    """Maximum wait of a call in a burst; calls that would wait longer get RESOURCE_EXHAUSTED at once
    (docs/reference/transport.md#overload)."""

    @property
    def largest_message(self) -> int:
        """Most bytes of a message: more than a prompt may have, so that errors can name the field."""
        largest = 2 * max(self.max_prompt_bytes, 5 * self.max_prompt_tokens) + MIB
        return min(largest, (1 << 31) - 1)


class IndexTable(Table, frozen=True):
    """[index]: the index of blocks and the pods that hold them."""

    hash_seed: str = ""
    """Seed of all keys; the same in all processes that compare keys."""
    max_bytes: Annotated[int, Meta(ge=16 * MIB, le=MOST_BYTES)] = 1024 * MIB
    """Maximum memory of the index. When full, it drops the least recently matched prefixes
    (docs/reference/events.md#when-the-index-is-full)."""
    state_file: str = ""
    """File that keeps the index and stream positions over a restart
    (docs/reference/events.md#after-a-restart-of-the-router); empty: none."""


class PrefixStoreTable(Table, frozen=True):
    """[prefix-store]: the cache of tokenised texts, and the threads that tokenise."""

    kind: Literal["lru", "trie"] = "lru"
    """lru: finds texts by digest, about 2 bytes for a byte of text. trie: compares every byte, about
    3."""
    max_bytes: Bytes = 256 * MIB
    """Maximum bytes of texts, tokens and block keys a model; the least recently used go."""
    workers: Annotated[int, Meta(gt=0, le=256)] = 2
    """Threads that tokenise."""


class TemplatesTable(Table, frozen=True):
    """[templates]: rendering chats that need a process of their own."""

    workers: Annotated[int, Meta(gt=0, le=64)] = 2
    """Processes that render chats, about 30 MB each. A chat of 10,000 tokens takes one about 2 ms."""


class EventsTable(Table, frozen=True):
    """[events]: following the engines' cache events."""

    stale_seconds: Seconds = 1.0
    """A rank is stale after this time without a connection, and degraded after 0.5 s. A connection that
    is cut silently counts for up to 2.5 s more, one to TensorRT-LLM for 10 s."""
    trusted_network: bool = False
    """Accepts events of other machines in plain text without a warning in the log and in `warmpath
    doctor`."""


class BookingTable(Table, frozen=True):
    """[booking]: the work of picked requests."""

    expire_seconds: Seconds = 600.0
    """A booking that is never reported expires after this time."""
    max_bookings: Positive = 100_000
    """Maximum bookings; beyond it the oldest expires."""


class PickTable(Table, frozen=True):
    """[pick]: choosing a pod (docs/explain/picking.md).

    Picks also depend on [booking], on probe.interval-seconds, on a pod's `role`, `blocks` and `events`,
    and on a model's `shared-tiers`.
    """

    policy: Annotated[str, RELOADABLE] = "warmpath"
    """Name of the policy (docs/reference/picks.md#other-policies)."""
    options: Annotated[dict[str, float], RELOADABLE] = {}
    """Options of the policy (docs/reference/picks.md#other-policies), such as `{ kappa = 1.0 }`."""
    prefill_base_seconds: Annotated[float, Meta(gt=0, le=60)] = 0.020
    """Time of a prefill of any length. The defaults of these three keys fit a 70B model on 4 GPUs. They
    change predicted times much, and choices little."""
    prefill_token_seconds: Annotated[float, Meta(gt=0, le=1)] = 70e-6
    """Time for each uncached token."""
    prefill_context_seconds: Annotated[float, Meta(ge=0, le=1e-3)] = 1.3e-9
    """Time for each pair of an uncached token and an earlier token."""
    pull_token_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Time for each token of KV that engines pull from a pick's `source`
    (docs/reference/picks.md#kv-from-a-peer-and-disaggregated-serving); 0: they cannot."""
    load_stale_seconds: Seconds = 5.0
    """How long an observed load counts."""
    assumed_seconds: Seconds = 600.0
    """How long a prompt counts as cached on a pod without events, and blocks after a pod's events have
    ended."""
    max_believed_blocks: Positive = 1_000_000
    """Maximum believed blocks, about 200 bytes each; beyond it the oldest go."""
    kept_decisions: Annotated[int, Meta(ge=0, le=100_000)] = 256
    """Picks that `warmpath decisions` shows."""
    decision_log: str = ""
    """File with a JSON line for each logged pick (docs/guides/operate.md#logs); `-`: standard output;
    empty: none."""
    decision_log_share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of picks that are logged, at random."""
    queue: Literal["off", "on"] = "off"
    """on: a pick waits until a pod has room ([queue]). off: each pick is answered at once."""


ClassName = Annotated[
    str, Meta(pattern=r"^[a-z0-9_-]{1,64}$", description="1 to 64 of a-z, 0-9, _ and -")
]


class QueueTable(Table, frozen=True):
    """[queue]: picks that wait until a pod has room, if pick.queue is "on" (docs/guides/queue.md).

    Its limits and classes also hold for picks that wait for a first pod.
    """

    hold_seconds: Annotated[float, Meta(gt=0, le=60), RELOADABLE] = 0.4
    """Maximum booked prefill of a rank that still has room for a request. The router adds to it if
    first tokens are reported late."""
    prefill_times: Annotated[float, Meta(ge=0, le=1000), RELOADABLE] = 10.0
    """A request whose prefill is s seconds shorter may pass requests that arrived up to this number
    times s earlier; 0: first come, first served."""
    passed_seconds: Annotated[Seconds, RELOADABLE] = 60.0
    """A request is never passed by one of its class and tenant that arrived this much later."""
    wait_seconds: Annotated[Seconds, RELOADABLE] = 30.0
    """Maximum wait, if the caller's deadline is not shorter; then the request goes to the best pod."""
    cold_start_seconds: Annotated[float, Meta(ge=0, le=3600), RELOADABLE] = 0.0
    """Maximum wait of a request for the first pod of a model that has none that takes requests, whatever
    pick.queue says (docs/guides/scale-engines.md); 0: it is refused at once."""
    max_requests: Annotated[int, Meta(gt=0, le=100_000), RELOADABLE] = 10_000
    """Maximum waiting requests; beyond it the lowest class is refused."""
    max_bytes: Annotated[Bytes, RELOADABLE] = 128 * MIB
    """Maximum bytes of waiting requests. They do not count in limits.max-in-flight-bytes."""
    classes: Annotated[tuple[ClassName, ...], Meta(min_length=1, max_length=16), RELOADABLE] = (
        "low",
        "normal",
        "high",
    )
    """Classes that requests may name, lowest first. A higher class always goes first."""
    usual_class: Annotated[ClassName, RELOADABLE] = "normal"
    """Class of requests that name none."""
    objectives: Annotated[dict[str, ClassName], Meta(max_length=1000), RELOADABLE] = {}
    """Classes of llm-d's objectives, such as `{ batch = "low" }`. A request that names another objective
    has the usual class."""
    shares: Annotated[dict[str, Annotated[float, Meta(gt=0, le=1e6)]], RELOADABLE] = {}
    """Weights of tenants within a class, by uncached tokens, such as `{ team-a = 2.0 }`. Other tenants
    have 1."""


class PickerHeadersTable(Table, frozen=True):
    """[endpoint-picker.headers]: names of HTTP headers; an empty name switches the header off.

    Clients' own headers with these names, but for those of sessions, never reach an engine.
    """

    pod: HeaderName = "x-warmpath-pod"
    """Response: id of the pod that served it."""
    cached_tokens: HeaderName = "x-warmpath-cached-tokens"
    """Response: prompt tokens that the pod was predicted to hold."""
    saved_seconds: HeaderName = "x-warmpath-saved-seconds"
    """Response: prefill seconds that these tokens were predicted to save."""
    reason: HeaderName = "x-warmpath-reason"
    """Response of the picker itself: the reason, in one word."""
    dropped: HeaderName = "x-llm-d-request-dropped-reason"
    """Likewise: the reason in llm-d's words."""
    session: tuple[HeaderName, ...] = (
        *("x-warmpath-session", "x-dynamo-session-id"),
        *(
            "x-claude-code-agent-id",
            "x-claude-code-session-id",
        ),  # Claude Code: a sub-agent has both
        *("thread-id", "session-id", "session_id"),  # Codex: a sub-agent has its own thread
        *("x-session-id", "x-session-affinity"),  # OpenCode; llm-d reads the first
    )
    """Request: its session, as `session_id` of a Pick; the first header counts that the request has.
    An id of other than printable ASCII, or of more than 256 bytes, is ignored."""
    parent_session: tuple[HeaderName, ...] = (
        *("x-warmpath-parent-session", "x-dynamo-parent-session-id"),
        *("x-claude-code-parent-agent-id", "x-claude-code-session-id"),
        *("x-codex-parent-thread-id", "x-parent-session-id"),
    )
    """Request of a sub-agent: the session that has begun its own; likewise."""
    session_final: tuple[HeaderName, ...] = ("x-warmpath-session-final", "x-dynamo-session-final")
    """Request: whether it is the session's last one (`true` or `1`)."""
    priority: HeaderName = "x-warmpath-priority"
    """Request: its class (queue.classes). A class that the gateway may not name counts as the usual
    one."""
    objective: tuple[HeaderName, ...] = (
        "x-llm-d-inference-objective",
        "x-gateway-inference-objective",
    )
    """Request: its objective, whose class it gets (queue.objectives) if it names none; the first header
    counts."""
    tenant: tuple[HeaderName, ...] = (
        "x-llm-d-inference-fairness-id",
        "x-gateway-inference-fairness-id",
    )
    """Request: its tenant, as in llm-d; the first header counts. The gateway must set one and remove
    the other; otherwise clients can claim others' shares."""
    rewrite: tuple[HeaderName, ...] = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
    """Request: name of the model that the engine is asked for; the first header counts."""
    prefill: HeaderName = ""
    """Request to a decoding pod: address of the pod that prefills, for llm-d's sidecars
    (`x-prefiller-host-port`). Empty: roles of pods are ignored
    (docs/reference/http.md#prefill-and-decoding-on-different-pods)."""


class EndpointPickerTable(Table, frozen=True):
    """[endpoint-picker]: picks for HTTP requests, which Envoy asks for (docs/reference/http.md)."""

    failure_mode: Literal["fail-close", "fail-open"] = "fail-close"
    """If the router is too busy, too slow or faulty: fail-close answers 429 or 503; fail-open lets the
    gateway choose."""
    rewrites: dict[str, str] = {}
    """Requested model names, and the names that engines are asked for."""
    fall_backs: Annotated[int, Meta(ge=0, le=63)] = 7
    """Maximum endpoints to try after the picked one; 0 for gateways that take one address."""
    pick_seconds: Seconds = 1.0
    """Maximum time from the end of a body to its pick; what is not tokenised by then is estimated by
    its length."""
    watched_share: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Share of streamed answers that are read for the engine's cached tokens after plain calls."""
    session_in_body: bool = True
    """Whether a JSON body names the request's session (docs/reference/http.md#sessions) where no header
    does; of a Pick, where `session_id` does not."""
    headers: PickerHeadersTable = PickerHeadersTable()


class HubTable(Table, frozen=True):
    """[models.hub]: a pinned tokenizer of the Hugging Face hub, instead of a folder."""

    repo: str = ""
    """OWNER/NAME; empty: not from the hub."""
    revision: str = ""
    """Full commit, 40 hexadecimal digits."""
    files: dict[str, str] = {}
    """SHA-256 of each used file, such as tokenizer.json."""
    token_file: str = ""
    """File with the access token; empty: none is sent."""
    endpoint: str = ""
    """URL of a mirror; empty: the hub, or HF_ENDPOINT."""
    offline: bool = False
    """Uses only the cache."""


class PlaceholdersTable(Table, frozen=True):
    """[models.placeholders]: the text that an engine writes for media if its template takes text.

    It is vLLM's `get_placeholder_str` of the model; `{i}` is the number of the item, from 1. A chat
    with an item that has no placeholder is refused (docs/reference/inference-apis.md#chats).
    """

    image: str | None = None
    """For an image."""
    audio: str | None = None
    """For audio."""
    video: str | None = None
    """For a video."""

    def given(self) -> dict[str, str]:
        """Return the placeholders that are set, by medium; they may be empty."""
        return {
            name: text for name, text in msgspec.structs.asdict(self).items() if text is not None
        }


class ModelSpec(Table, frozen=True):
    """[[models]]: one base model.

    Without `tokenizer`, [models.hub] and `tokenizer-urls`, its vLLM and SGLang pods tokenise.
    """

    name: str
    """Name that requests use; block keys depend on it."""
    aliases: list[str] = []
    """Other names that requests may use."""
    adapters: list[str] = []
    """LoRA adapters that requests name directly."""
    tokenizer: str = ""
    """Folder with tokenizer.json."""
    hub: HubTable = HubTable()
    tokenizer_urls: list[str] = []
    """Engines whose /tokenize is asked, in this order; a folder or the hub is then the fall-back."""
    vocab_size: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    """Highest token id plus one; 0: the tokenizer's, or unchecked."""
    tokenizer_key_file: str = ""
    """File with the API key of `tokenizer-urls`; empty: none is sent."""
    placeholders: PlaceholdersTable = PlaceholdersTable()
    shared_tiers: list[Literal["cpu", "disk", "remote"]] = []
    """Tiers that all its pods share: a block that one pod holds there counts for all."""


MOST_ID_CHARACTERS = 1024
"""Longest id of a pod: answers, metrics and log lines repeat it."""


class PodSpec(Table, frozen=True):
    """[[pods]]: one engine."""

    id: Annotated[str, Meta(max_length=MOST_ID_CHARACTERS)]
    """Name in answers, logs and metrics."""
    model: str
    """Base model that it serves."""
    address: str
    """host:port that serves requests."""
    https: bool = False
    """Serves and is probed over HTTPS. Its certificate must name the host of `address`, or
    probe.server-name."""
    key_file: str = ""
    """File with the engine's API key (`--api-key`); empty: none is sent, and the models and adapters of
    an engine that needs one stay unknown."""
    engine: EngineName = "vllm"
    """Kind of engine."""
    events: str = ""
    """ZeroMQ endpoint of rank 0's events; rank r is r ports higher. For trtllm the URL of
    /kv_cache_events. Without `events` and `watch` the pod is followed through [shared-index]; without
    that, prompts that were sent to it count as cached."""
    watch: str = ""
    """host:port of the publisher (`warmpath publish`), instead of `events`."""
    replay: str = ""
    """ZeroMQ endpoint of rank 0's replay; empty: none, and gaps cannot be closed."""
    topic: str = ""
    """Exact topic of its events; empty: any."""
    ranks: Annotated[int, Meta(gt=0, le=1024)] = 1
    """Number of data-parallel ranks."""
    first_rank: FirstRank = 0
    """Engine's number of this server's first rank, if it has only some ranks of a deployment
    (docs/start/your-engines.md#some-of-a-deployments-ranks)."""
    role: Role = "both"
    """Its task, if prefill and decoding run on different pods."""
    blocks: Blocks = 0
    """Blocks of a rank's cache, for healing and to notice drift. 0: as in vLLM's /metrics, or
    unknown."""
    block_size: BlockSize = 32
    """For trtllm: its tokens_per_block."""
    eagle: bool = True
    """For vLLM: false if it drafts tokens in another way than EAGLE or MTP, such as n-grams
    (docs/reference/events.md#what-engines-do-not-announce)."""


AS_OF_PODS = (
    "model", "https", "key_file", "engine", "ranks", "role", "blocks", "block_size", "eagle",
)  # fmt: skip
"""Keys of [[pod-sets]] that each of its pods has as they are."""


class PodSetSpec(Table, frozen=True):
    """[[pod-sets]]: pods that come and go, found by DNS or through the Kubernetes API.

    docs/start/your-engines.md#finding-pods shows both. Keys without another meaning are as in [[pods]].
    """

    name: str
    """Name of the set."""
    model: str
    """Base model that its pods serve."""
    dns: str = ""
    """DNS name of all pods: a headless service."""
    namespace: str = ""
    """Kubernetes namespace; needs `selector` or `inference-pool`."""
    selector: str = ""
    """Label selector, such as app=vllm,tier in (gpu, big)."""
    inference_pool: str = ""
    """InferencePool, whose selector and target ports are used."""
    port: Annotated[int, Meta(gt=0, lt=65536)] = 8000
    """Port that serves requests; the ports of `inference-pool` come first."""
    https: bool = False
    """Serves over HTTPS, under the addresses at which pods are found."""
    key_file: str = ""
    engine: EngineName = "vllm"
    events_port: Annotated[int, Meta(ge=0, lt=65536)] = 5557
    """Port of events; 0: pods are followed through [shared-index], if there is one."""
    replay_port: Annotated[int, Meta(ge=0, lt=65536)] = 5558
    """Port of the replay; 0: none."""
    watch_port: Annotated[int, Meta(ge=0, lt=65536)] = 0
    """Port of publishers; 0: engines are followed directly. For further target ports of a pod, one port
    higher each."""
    ranks: Annotated[int, Meta(gt=0, le=1024)] = 1
    """For each target port."""
    first_rank: FirstRank = 0
    """For the first target port; the others count on."""
    role: Role = "both"
    blocks: Blocks = 0
    block_size: BlockSize = 32
    eagle: bool = True

    def pod(self, pod_id: str, address: str, *, port: int = 0, nth: int = 0) -> PodSpec:
        """Return the pod at an address, and at a `port` that is not the set's own.

        It is the `nth` engine of several at one address: their ranks count on, and so do the ports at
        which their publishers listen.
        """
        host = f"[{address}]" if ":" in address else address
        port = port or self.port
        watch_port = self.watch_port and self.watch_port + nth
        if self.watch_port or not self.events_port:
            events = replay = ""
        elif ENGINES[self.engine].is_polled:
            scheme = "https" if self.https else "http"
            events, replay = f"{scheme}://{host}:{port}/kv_cache_events", ""
        else:
            events = f"tcp://{host}:{self.events_port}"
            replay = f"tcp://{host}:{self.replay_port}" if self.replay_port else ""
        return PodSpec(
            id=pod_id, address=f"{host}:{port}", events=events, replay=replay,
            watch=f"{host}:{watch_port}" if watch_port else "",
            first_rank=self.first_rank + nth * self.ranks,
            **{name: getattr(self, name) for name in AS_OF_PODS},
        )  # fmt: skip


class ProbeTable(Table, frozen=True):
    """[probe]: asking pods over HTTP whether they are healthy and what they serve."""

    interval_seconds: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    """Pause between two probes of a pod, longer where more than 1,250 probes a second are due; 0: no
    probes."""
    timeout_seconds: Seconds = 2.0
    """Maximum wait for an answer."""
    ca: str = ""
    """PEM of the authority of engines with `https` and of `tokenizer-urls`; empty: the system's."""
    cert: str = ""
    """PEM of the certificate that the router shows."""
    key: str = ""
    """PEM of its private key."""
    server_name: ServerName = ""
    """Name in the engines' certificates; empty: the host of each address."""


class WatchTable(Table, frozen=True):
    """[watch]: connections to publishers."""

    ca: str = ""
    """PEM of the publishers' authority; empty: no TLS."""
    cert: str = ""
    """PEM of the certificate that the router shows."""
    key: str = ""
    """PEM of its private key."""


class SharedIndexTable(Table, frozen=True):
    """[shared-index]: the index in Redis that publishers write and all routers read.

    Pods without `events` and `watch` are followed through it.
    """

    url: str = ""
    """`redis://host:port`, `redis-cluster://host:port,host:port` or
    `redis-sentinel://host:port,host:port/NAME`; `rediss...` with TLS
    (docs/guides/shared-index.md#connecting). Empty: none."""
    mode: Literal["replica", "shared"] = "replica"
    """replica: keeps a copy; no answer waits for Redis. shared: asks Redis for each prompt, for indexes
    too large for this process (docs/guides/shared-index.md#which-mode)."""
    prefix: str = "warmpath"
    """Prefix of all keys; the same for the publishers and routers of a deployment."""
    user: str = ""
    """ACL user; empty: the default user."""
    password_file: str = ""
    """File with the password, one line; empty: none is sent."""
    ca: str = ""
    """PEM of the servers' authority; empty: the system's."""
    cert: str = ""
    """PEM of the certificate that the router shows."""
    key: str = ""
    """PEM of its private key."""
    deadline_seconds: Annotated[float, Meta(gt=0, le=10)] = 0.05
    """mode = "shared": maximum wait of an answer for Redis; then it uses what it has."""
    poll_seconds: Annotated[float, Meta(gt=0, le=10)] = 0.05
    """mode = "replica": pause between two reads of changes."""
    stale_seconds: Seconds = 60.0
    """Content of Redis no longer counts after this time without Redis."""
    share_bookings: bool = False
    """Shares bookings with other routers, so that they do not all choose the same pod or compute a
    prompt twice (docs/reference/picks.md#several-routers)."""


class LlmdTable(Table, frozen=True):
    """[llmd]: calls, metrics and objects of llm-d (docs/guides/coming-from.md)."""

    block_size: BlockSize = 16
    """Tokens of a block in scores: llm-d's `blockSizeTokens`."""
    identifier: Literal["address", "host", "id"] = "address"
    """How pods are named if a request names none: host:port, host or id."""
    pool: Annotated[str, Meta(max_length=253)] = ""
    """Name of the pool in llm-d's metrics, which /metrics then has beside its own
    (docs/reference/metrics.md#under-llm-ds-names); empty: it has none."""
    objects: Annotated[
        str, Meta(pattern=r"^[a-z0-9-]{0,63}$", description="a namespace, or empty")
    ] = ""
    """Kubernetes namespace of llm-d's InferenceObjectives and InferenceModelRewrites, of `pool` if it is
    named, which are listed each 10 s (docs/guides/coming-from.md#llm-d-its-objects). Empty: none."""


class Config(Table, frozen=True):
    """The whole file."""

    models: list[ModelSpec]
    server: ServerTable = ServerTable()
    clients: list[ClientSpec] = []
    limits: LimitsTable = LimitsTable()
    index: IndexTable = IndexTable()
    shared_index: SharedIndexTable = SharedIndexTable()
    prefix_store: PrefixStoreTable = PrefixStoreTable()
    templates: TemplatesTable = TemplatesTable()
    events: EventsTable = EventsTable()
    booking: BookingTable = BookingTable()
    pick: PickTable = PickTable()
    queue: QueueTable = QueueTable()
    llmd: LlmdTable = LlmdTable()
    endpoint_picker: EndpointPickerTable = EndpointPickerTable()
    watch: WatchTable = WatchTable()
    probe: ProbeTable = ProbeTable()
    pods: Annotated[list[PodSpec], RELOADABLE] = []
    pods_file: str = ""
    """File of [[pods]] that is read again when it changes."""
    pod_sets: list[PodSetSpec] = []
