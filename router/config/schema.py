"""The router's configuration: one frozen tree, read from TOML once.

Every default stands beside its unit and its reason. `router.config.read` reads and checks it;
`lab.pages.config` makes docs/reference/config.md of it, where docs/PAGE.md#HEADING becomes a link.
This one module has every key, however many there are, since it describes one file.
"""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.shared.layout.record import LEAST_LEASE, MOST_LEASE

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
Weight = Annotated[float, Meta(ge=0, le=1e6)]

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
    """[server.http2]: bounds of each client's connection.

    docs/reference/transport.md says which attack each of them bounds.
    """

    max_connections: Annotated[int, Meta(gt=0, le=1 << 20)] = 2048
    """Most connections, but no more than half of the process's file descriptors: the others are for
    engines, publishers and Redis. Beyond that the address with the most gives way, idle ones first."""
    max_streams: Annotated[int, Meta(gt=0, le=1 << 16)] = 256
    """Most calls in progress on one connection; a client sees this limit and waits. Not with grpcio."""
    max_received_bytes: Annotated[int, Meta(ge=MIB, le=MOST_BYTES)] = 256 * MIB
    """Bytes of all clients' messages that have arrived and wait to be read, whole or in part. Before
    they are more, calls end with RESOURCE_EXHAUSTED: those whose message stays incomplete first, then
    the latest of the connections that hold the most. Two of the largest messages must fit. Not with
    grpcio."""
    resets_per_second: Positive = 100
    """Calls that a client may reset or break before their answer begins, over time; those of ten seconds
    at once. Not with grpcio."""


class ServerTlsTable(Table, frozen=True):
    """[server.tls]: TLS of both listeners. Files are relative to this one.

    They are read again when they change, as are those of [watch], [probe] and [shared-index].
    """

    cert: str = ""
    """PEM of the certificate that callers see, with its chain; empty: plain connections."""
    key: str = ""
    """PEM of its private key."""
    client_ca: str = ""
    """PEM of the authority of callers. Callers of gRPC must show a certificate of it; those of HTTP may,
    since probes of /healthz and /readyz have none. Empty: nobody is asked for a certificate."""


class ServerTable(Table, frozen=True):
    """[server]: where the router listens."""

    listen: str = "127.0.0.1:7400"
    """host:port of gRPC, or unix:/PATH. Beyond loopback it needs [server.tls] and [[clients]], or
    `insecure`."""
    transport: Literal["auto", "nghttp2", "grpcio"] = "auto"
    """nghttp2: calls are read by the thread that answers them, through the system's libnghttp2. grpcio:
    gRPC's own library, about three times slower. auto: nghttp2 where the system has a libnghttp2 that
    limits resets and CONTINUATION frames, otherwise grpcio; the log says which and why
    (docs/reference/transport.md)."""
    http2: Http2Table = Http2Table()
    metrics_listen: str = "127.0.0.1:7401"
    """host:port of the live page (docs/reference/live-page.md), /metrics, /healthz, /readyz and Dynamo's
    pages (docs/guides/coming-from.md), with the rules of `listen`; empty: none."""
    processes: Annotated[int, Meta(gt=0, le=64)] = 1
    """Processes that share `listen`, each with an index of its own and the next port for metrics: one
    answers about 1,500 to 3,000 scores a second, on one core."""
    ready: Annotated[tuple[ReadyCondition, ...], RELOADABLE] = ("pods", "index")
    """The conditions under which the router is ready (docs/reference/failures.md#readiness), beside that
    it listens and was not asked to end. pods: a pod is well. index: the shared index is copied (mode =
    "replica"), or the first attempt has failed. coverage: see ready-coverage. tokenizers: the tokenizers
    of all models were loaded."""
    ready_coverage: Annotated[float, Meta(gt=0, le=1), RELOADABLE] = 0.5
    """The least share of the pods that are well, among those with events, whose view must be exact for
    the condition `coverage`. It is looked at all the time, so a high one takes all routers out at once
    where engines restart."""
    drain_delay_seconds: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    """How long after SIGTERM a router that was ready still answers new calls, while its health checks
    fail. Load balancers must notice within this time (docs/reference/failures.md#the-end-of-a-router).
    0: new calls are refused at once."""
    drain_seconds: Seconds = 3.0
    """Longest time that calls in progress may take after that. It ends sooner once all have ended and
    none has come for a tenth of it."""
    tls: ServerTlsTable = ServerTlsTable()
    insecure: bool = False
    """Whether addresses beyond loopback may be listened on without TLS, or without [[clients]]; the log
    then has a warning."""


class ClientSpec(Table, frozen=True):
    """[[clients]]: a caller and its roles (docs/guides/security.md#roles).

    With any client, calls of everybody else are refused. Give one of `token-file` and `certificate`.
    """

    name: str
    """The name in errors and in the log."""
    roles: list[Right]
    """score: Score, ScoreStream, Pick, Report, Explain, GetPodScores, Envoy's Process, /query and
    /overlap_scores. read: ListPods, Diagnose, ListDecisions, reflection and /metrics."""
    token_file: str = ""
    """File with the token that the caller sends, one line of 16 to 4096 bytes, relative to this file. It
    is read again when it changes."""
    certificate: str = ""
    """A name in the caller's certificate: an alternative name (DNS or URI), or the common name. It
    needs server.tls.client-ca."""
    classes: list[str] = []
    """Classes of [queue] that it may name besides the usual one. Without [[clients]] all are open."""


class LimitsTable(Table, frozen=True):
    """[limits]: bounds of one prompt, of all prompts that wait, and of calls and their messages."""

    max_prompt_bytes: Annotated[int, Meta(gt=0, le=1 << 30)] = 8 * MIB
    """Longest text or body: about two million tokens."""
    max_prompt_tokens: Annotated[int, Meta(gt=0, le=1 << 28)] = 1_000_000
    """Most tokens of a prompt; more than the longest context of engines today."""
    tokenize_seconds: Annotated[Seconds, RELOADABLE] = 2.0
    """Longest wait for the tokenizer, unless the caller's deadline is shorter."""
    max_queued_prompts: Positive = 1024
    """Most prompts that wait for a tokenizer."""
    max_queued_bytes: Bytes = 64 * MIB
    """Most bytes of the prompts that wait for a tokenizer."""
    max_in_flight_bytes: Annotated[Bytes, RELOADABLE] = 160 * MIB
    """Most bytes of the messages of all calls. A message counts until its call is answered; before it is
    read it counts as the largest one, 17 MiB by default. Memory may grow by twice this."""
    wait_seconds: Annotated[float, Meta(gt=0, le=60)] = 2.0
    """Longest wait of a call of a burst for the thread that answers; calls that would wait longer are
    refused at once with RESOURCE_EXHAUSTED (docs/reference/transport.md#overload)."""
    overload_wait_seconds: Annotated[float, Meta(gt=0, le=60), RELOADABLE] = 60.0
    """That wait once calls have waited for 0.1 s without a pause, if it is shorter than
    `wait-seconds`; 0.01 refuses early."""
    message_seconds: Seconds = 2.0
    """How long a call may take from its headers to its first message, and any message while other calls
    wait for the room kept for it. Then the call ends."""

    @property
    def largest_message(self) -> int:
        """Most bytes of a message: more than a prompt may have, so that errors can name the field."""
        largest = 2 * max(self.max_prompt_bytes, 5 * self.max_prompt_tokens) + MIB
        return min(largest, (1 << 31) - 1)


class IndexTable(Table, frozen=True):
    """[index]: the block-to-pods index."""

    hash_seed: str = ""
    """A seed of all keys; it must be equal in all processes that compare keys."""
    max_bytes: Annotated[int, Meta(ge=16 * MIB, le=MOST_BYTES)] = 1024 * MIB
    """Most memory of the index; at the bound (docs/reference/events.md#when-the-index-is-full) it evicts
    the least recently matched prefixes."""
    state_file: str = ""
    """File in which the router saves index and stream positions at its end and loads them at its start,
    relative to this file (docs/reference/events.md#after-a-restart-of-the-router); empty: none."""


class PrefixStoreTable(Table, frozen=True):
    """[prefix-store]: the tokens of known texts, and the threads that tokenise."""

    kind: Literal["lru", "trie"] = "lru"
    """lru: finds beginnings of texts by digest, with about 2 bytes for a byte of text. trie: keeps the
    texts themselves and compares each byte, with about 3."""
    max_bytes: Bytes = 256 * MIB
    """Most bytes of the texts, tokens and block keys kept for each model; beyond it the least recently
    used texts are dropped."""
    workers: Annotated[int, Meta(gt=0, le=256)] = 2
    """Threads that tokenise; they run without the interpreter lock."""
    hang_seconds: Seconds = 30.0
    """Time on one text after which a thread is given up and replaced; 8 MB of text take about 5 s."""


class TemplatesTable(Table, frozen=True):
    """[templates]: rendering chats, in processes that can be ended."""

    workers: Annotated[int, Meta(gt=0, le=64)] = 2
    """Processes, of about 30 MB each; a chat of 10,000 tokens keeps one busy for about 2 ms."""
    render_seconds: Seconds = 5.0
    """Longest time of one rendering; the process is then ended, since the template must be hanging."""
    max_output_bytes: Annotated[int, Meta(gt=0, le=1 << 30)] = 16 * MIB
    """Largest rendered text: twice the longest body, since templates add JSON and tags of their own."""
    max_memory_bytes: Annotated[int, Meta(ge=128 * MIB, le=MOST_BYTES)] = 512 * MIB
    """Largest address space of one process: a body of 8 MiB of only small objects took 200 MB."""


class EventsTable(Table, frozen=True):
    """[events]: following the engines' event streams."""

    pending_bytes: Bytes = 64 * MIB
    """Most bytes of a rank's live batches that wait to be applied, and also of those held while a replay
    runs; beyond it they are dropped and requested again."""
    stale_seconds: Seconds = 1.0
    """Time without a connection after which a rank is stale; after 0.5 s it is degraded. Where the
    other side is silent and does not close it (a cut network, a stopped process), a connection counts
    for up to 2.5 s more, and one to TensorRT-LLM for 10 s, but degraded by then."""
    trusted_network: bool = False
    """Whether engines on other machines may send their events in plain text without a warning in the log
    and a finding of `warmpath doctor`."""


class BookingTable(Table, frozen=True):
    """[booking]: the work of picked requests."""

    expire_seconds: Seconds = 600.0
    """Age at which a booking that is never reported expires."""
    max_bookings: Positive = 100_000
    """Most bookings; beyond it the oldest expires."""


class PickTable(Table, frozen=True):
    """[pick]: choosing a pod (docs/explain/picking.md).

    Other keys that picks depend on: [booking], probe.interval-seconds, a pod's `role`, `blocks` and
    `events`, a model's `shared-tiers`.
    """

    policy: Annotated[str, RELOADABLE] = "warmpath"
    """The policy's name (docs/reference/picks.md#other-policies); `warmpath simulate` compares policies
    on your own traffic."""
    options: Annotated[dict[str, float], RELOADABLE] = {}
    """The policy's options (docs/reference/picks.md#other-policies):
    `options = { session-margin = 0.2 }`."""
    prefill_base_seconds: Annotated[float, Meta(gt=0, le=60)] = 0.020
    """Seconds per prefill, of any length; prompts that the engine computes in one step share them. The
    three constants are those of a 70B model on 4 GPUs; choices depend little on them, predicted times
    do."""
    prefill_token_seconds: Annotated[float, Meta(gt=0, le=1)] = 70e-6
    """Seconds per uncached token."""
    prefill_context_seconds: Annotated[float, Meta(ge=0, le=1e-3)] = 1.3e-9
    """Seconds per pair of an uncached token and a token before it."""
    pull_token_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Seconds per token of KV that engines pull from a pick's `source`
    (docs/reference/picks.md#kv-from-a-peer-and-disaggregated-serving); 0: they cannot."""
    load_stale_seconds: Seconds = 5.0
    """How long an observed load, from an engine or a gateway, counts."""
    confirm_seconds: Seconds = 5.0
    """How long after a first token events may take to announce the prompt's blocks."""
    assumed_seconds: Seconds = 600.0
    """How long prompts sent to a pod without events are assumed to be cached there, and how long blocks
    count after a pod's event stream has ended."""
    assumed_blocks: Positive = 32_768
    """Most assumed blocks of a rank without events, unless the pod's `blocks` is given."""
    max_believed_blocks: Positive = 1_000_000
    """Most believed blocks in total, of about 200 bytes each; beyond it the oldest are dropped."""
    session_seconds: Seconds = 1800.0
    """How long a session's pod is remembered."""
    max_sessions: Positive = 100_000
    """Most sessions; beyond it the least recently used is dropped."""
    group_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """How long a pick waits for others with the same prompt, to be placed with them
    (docs/reference/picks.md#bursts); 0: not at all."""
    group_size: Positive = 16
    """Number of picks of one prompt that go to one rank before another gets any."""
    kept_decisions: Annotated[int, Meta(ge=0, le=100_000)] = 256
    """Picks that `warmpath decisions` shows."""
    decision_log: str = ""
    """File that gets a line of JSON for each logged pick when its request ends
    (docs/guides/operate.md#logs); `-`: standard output; empty: none."""
    decision_log_share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the picks that are logged, drawn at random."""
    queue: Literal["off", "on"] = "off"
    """on: a pick waits until the pod that it chooses has room; [queue] has the limits. off: each pick
    is answered at once, for gateways that cannot wait."""


ClassName = Annotated[
    str, Meta(pattern=r"^[a-z0-9_-]{1,64}$", description="1 to 64 of a-z, 0-9, _ and -")
]


class QueueTable(Table, frozen=True):
    """[queue]: picks that wait until a pod has room, with pick.queue = "on" (docs/guides/queue.md)."""

    hold_seconds: Annotated[float, Meta(gt=0, le=60), RELOADABLE] = 0.4
    """Most seconds of booked prefill on a rank with room for the next request. They fill the engine's
    next step and bridge the time from a first token to its report; the router adds to them if reports
    come later."""
    prefill_times: Annotated[float, Meta(ge=0, le=1000), RELOADABLE] = 10.0
    """A request whose prefill is s seconds shorter goes before requests that arrived up to this number
    times s earlier; 0: first come, first served, which gains little."""
    passed_seconds: Annotated[Seconds, RELOADABLE] = 60.0
    """No request is passed over by one of its class and tenant that arrived this much later, in the
    queue or by the answers' engine_priority."""
    wait_seconds: Annotated[Seconds, RELOADABLE] = 30.0
    """Longest wait, if the caller's deadline is not shorter; then a request goes to the best pod."""
    max_requests: Annotated[int, Meta(gt=0, le=100_000), RELOADABLE] = 10_000
    """Most waiting requests; beyond it those of the lowest class are refused."""
    max_bytes: Annotated[Bytes, RELOADABLE] = 128 * MIB
    """Most bytes of waiting requests, as for max-requests; Pick's messages count here while they wait,
    not in limits.max-in-flight-bytes."""
    max_looks: Annotated[int, Meta(gt=0, le=1024), RELOADABLE] = 32
    """Most waiting requests that are weighed at one event; one takes about 0.1 ms."""
    classes: Annotated[tuple[ClassName, ...], Meta(min_length=1, max_length=16), RELOADABLE] = (
        "low",
        "normal",
        "high",
    )
    """The classes that requests may name, the lowest first. A higher one goes before all lower ones."""
    usual_class: Annotated[ClassName, RELOADABLE] = "normal"
    """The class of requests that name none."""
    shares: Annotated[dict[str, Annotated[float, Meta(gt=0, le=1e6)]], RELOADABLE] = {}
    """Weights of tenants' shares within a class, by uncached tokens: `shares = { team-a = 2.0 }`. A
    tenant that is missing has 1."""


class PickerHeadersTable(Table, frozen=True):
    """[endpoint-picker.headers]: names of HTTP headers; a header without a name is not used.

    Clients' own headers with these names never reach an engine.
    """

    pod: HeaderName = "x-warmpath-pod"
    """In a response: the id of the pod that served it."""
    cached_tokens: HeaderName = "x-warmpath-cached-tokens"
    """In a response: the tokens of the prompt that the pod was predicted to hold."""
    saved_seconds: HeaderName = "x-warmpath-saved-seconds"
    """In a response: the seconds of prefill that these tokens were predicted to save."""
    reason: HeaderName = "x-warmpath-reason"
    """In a response that the picker gives in place of an engine: why, in one word."""
    session: HeaderName = "x-warmpath-session"
    """In a request: its conversation, as `session_id` of a Pick."""
    priority: HeaderName = "x-warmpath-priority"
    """In a request: its class (queue.classes). A class that the gateway may not name counts as the usual
    one."""
    tenant: HeaderName = "x-gateway-inference-fairness-id"
    """In a request: the tenant whose share it uses, as the Gateway API Inference Extension names it. The
    gateway must set or remove it: clients could claim others' shares."""
    rewrite: tuple[HeaderName, ...] = (
        "x-llm-d-model-name-rewrite",
        "x-gateway-model-name-rewrite",
    )
    """In a request: the name of the model that the engine is to be asked for; the first one counts."""
    rank: HeaderName = "x-data-parallel-rank"
    """In a request to a pod with several ranks: the engine's number of the picked one, for vLLM."""
    prefill: HeaderName = ""
    """In a request to a pod that decodes: the address of the pod that is to prefill it, for llm-d's
    sidecars (`x-prefiller-host-port`). Without a name roles of pods play no part
    (docs/reference/http.md#prefill-and-decoding-on-different-pods)."""


class EndpointPickerTable(Table, frozen=True):
    """[endpoint-picker]: answering gateways by Envoy's external processing (docs/reference/http.md)."""

    failure_mode: Literal["fail-close", "fail-open"] = "fail-close"
    """fail-close: a request without a pick, because the router is too busy, too slow or at fault, is
    answered with 429 or 503. fail-open: it goes on without a pick, and the gateway balances it."""
    rewrites: dict[str, str] = {}
    """Models by the name that requests give: the name that engines are asked for."""
    fall_backs: Annotated[int, Meta(ge=0, le=63)] = 7
    """Most endpoints to try after the picked one; 0 for gateways that take one address only."""
    pick_seconds: Seconds = 1.0
    """Longest time from the end of a request's body to its pick; what is not tokenised by then counts
    by its length."""
    body_seconds: Seconds = 30.0
    """Longest time that a request waits for the end of its body; then load alone decides, and the rest
    passes by."""
    max_held_bytes: Bytes = 128 * MIB
    """Most bytes of all bodies that wait for their end or their pick; load alone decides about a request
    beyond it."""
    headers: PickerHeadersTable = PickerHeadersTable()


class TokenizersTable(Table, frozen=True):
    """[tokenizers]: loading them, and asking engines."""

    most: Positive = 32
    """Most loaded tokenizers, of about 100 MB each; beyond it the least recently used is dropped."""
    retry_seconds: Seconds = 10.0
    """Pause before a tokenizer that could not be loaded is tried again."""
    remote_seconds: Seconds = 0.5
    """Longest wait for an engine's tokenizer; well within limits.tokenize-seconds, so that there is time
    for the next engine or the fall-back."""
    skip_seconds: Seconds = 5.0
    """How long an engine is skipped after its tokenizer failed."""


class HubTable(Table, frozen=True):
    """[models.hub]: a tokenizer of the HuggingFace hub, pinned."""

    repo: str = ""
    """OWNER/NAME; empty: not from the hub."""
    revision: str = ""
    """The full commit, 40 hexadecimal digits."""
    files: dict[str, str] = {}
    """The SHA-256 of each file that is used, tokenizer.json for example."""
    token_file: str = ""
    """File with the access token, relative to this one; empty: none is sent. No other token ever is."""
    endpoint: str = ""
    """URL of a mirror; empty: the hub, or what HF_ENDPOINT says."""
    cache_folder: str = ""
    """Folder of downloads, relative to this file; empty: huggingface_hub's own, shared with engines."""
    offline: bool = False
    """Whether only the cache is used."""


class PlaceholdersTable(Table, frozen=True):
    """[models.placeholders]: the text that the engine writes for a medium if its template takes text.

    It is vLLM's `get_placeholder_str` of the model; `{i}` in it is the medium's number, from 1. Chats
    with a medium that has no placeholder are refused (docs/reference/chats.md).
    """

    image: str | None = None
    """Of a picture."""
    audio: str | None = None
    """Of a sound."""
    video: str | None = None
    """Of a film."""

    def given(self) -> dict[str, str]:
        """Return the placeholders that are set, by medium; they may be empty."""
        return {
            name: text for name, text in msgspec.structs.asdict(self).items() if text is not None
        }


class ModelSpec(Table, frozen=True):
    """[[models]]: one base model."""

    name: str
    """The name from which keys derive; requests may use it."""
    aliases: list[str] = []
    """Other names that requests may use."""
    adapters: list[str] = []
    """LoRA adapters that are requested by their own name."""
    tokenizer: str = ""
    """Folder with tokenizer.json, relative to this file."""
    hub: HubTable = HubTable()
    """A tokenizer of the hub, instead of a folder. Without these and `tokenizer-urls`, prompts must be
    token ids."""
    tokenizer_urls: list[str] = []
    """Engines whose own /tokenize is asked, in turn; a folder or the hub is then the fall-back."""
    vocab_size: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    """One more than the highest token id; 0: the tokenizer's, or unchecked if there is none."""
    tokenizer_key_file: str = ""
    """File with the API key of `tokenizer-urls`, relative to this file; empty: none is sent."""
    placeholders: PlaceholdersTable = PlaceholdersTable()
    shared_tiers: list[Literal["cpu", "disk", "remote"]] = []
    """Tiers that all its pods share: a block that one pod holds there counts for all."""


MOST_ID_CHARACTERS = 1024
"""Longest id of a pod: answers, metrics and log lines repeat it."""


class PodSpec(Table, frozen=True):
    """[[pods]]: one engine instance."""

    id: Annotated[str, Meta(max_length=MOST_ID_CHARACTERS)]
    """The pod's name in answers, logs and metrics."""
    model: str
    """The base model that it serves."""
    address: str
    """host:port that serves requests."""
    https: bool = False
    """Whether it serves requests over HTTPS. The router then probes it over HTTPS too, and its
    certificate must be for the host of `address`, or for probe.server-name."""
    key_file: str = ""
    """File with the engine's API key (`--api-key`), one word, relative to the router's configuration;
    empty: none is sent. Without it such an engine's models and adapters are not known. It is read again
    when the engine refuses the key."""
    engine: EngineName = "vllm"
    """The kind of engine."""
    events: str = ""
    """ZeroMQ endpoint of rank 0's events; rank r is r ports further. With trtllm the URL of
    /kv_cache_events. Without `events` and `watch` the pod is followed through [shared-index], where its
    publisher writes; without that too, the prompts that were sent to it are assumed to be cached."""
    watch: str = ""
    """host:port of the publisher beside the engine (`warmpath publish`), instead of `events`."""
    replay: str = ""
    """ZeroMQ endpoint of rank 0's replay; empty: none, and a gap cannot be closed."""
    topic: str = ""
    """The exact topic of its events; empty: any."""
    ranks: Annotated[int, Meta(gt=0, le=1024)] = 1
    """Data-parallel ranks."""
    first_rank: FirstRank = 0
    """The engine's own number of the first rank, if this server has only some ranks of a deployment:
    ports and metrics follow it (docs/start/your-engines.md#some-of-a-deployments-ranks). Answers number
    a pod's ranks from 0."""
    role: Role = "both"
    """Its task if prefill and decoding run on different pods."""
    blocks: Blocks = 0
    """Blocks of a rank's cache. If known, a damaged view heals once the cache has turned over, and drift
    is noticed. 0: the number in vLLM's /metrics, or not known."""
    block_size: BlockSize = 32
    """The tokens_per_block of trtllm, whose events do not have it."""
    eagle: bool = True
    """Whether a vLLM that drafts tokens may do so in the way of EAGLE or MTP. Of a prompt it then finds
    one block less than its events show, unless they tell
    (docs/reference/events.md#what-engines-do-not-announce). false: it has another drafter, such as
    n-grams."""


class PodSetSpec(Table, frozen=True):
    """[[pod-sets]]: pods that come and go, found by name or through the Kubernetes API.

    docs/start/your-engines.md#finding-pods shows both.
    """

    name: str
    """The set's name."""
    model: str
    """The base model that its pods serve."""
    dns: str = ""
    """A name that resolves to all pods' addresses: a headless service."""
    namespace: str = ""
    """A namespace of Kubernetes; it needs one of `selector` and `inference-pool`."""
    selector: str = ""
    """Labels, as in app=vllm,tier=gpu."""
    inference_pool: str = ""
    """An InferencePool's name; its selector and its target ports are used."""
    port: Annotated[int, Meta(gt=0, lt=65536)] = 8000
    """The port at which pods serve requests; those of `inference-pool` go before it."""
    https: bool = False
    """Whether pods serve requests over HTTPS, under the addresses at which they are found."""
    key_file: str = ""
    """As in [[pods]]."""
    engine: EngineName = "vllm"
    """As in [[pods]]."""
    events_port: Annotated[int, Meta(ge=0, lt=65536)] = 5557
    """0: engines' events are not followed; pods are followed through [shared-index] if there is one."""
    replay_port: Annotated[int, Meta(ge=0, lt=65536)] = 5558
    """0: no replay."""
    watch_port: Annotated[int, Meta(ge=0, lt=65536)] = 0
    """The port at which publishers listen; 0: engines are followed directly. Those of a pod's second and
    later target ports listen one port further each."""
    ranks: Annotated[int, Meta(gt=0, le=1024)] = 1
    """As in [[pods]], for each target port."""
    first_rank: FirstRank = 0
    """As in [[pods]], for the first target port; the ranks of the others count on."""
    role: Role = "both"
    """As in [[pods]]."""
    blocks: Blocks = 0
    """As in [[pods]]."""
    block_size: BlockSize = 32
    """As in [[pods]]."""
    eagle: bool = True
    """As in [[pods]]."""
    refresh_seconds: Annotated[float, Meta(gt=0, le=3600)] = 5.0
    """Pause between two look-ups of `dns`."""

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
            id=pod_id,
            model=self.model,
            address=f"{host}:{port}",
            https=self.https,
            key_file=self.key_file,
            engine=self.engine,
            events=events,
            replay=replay,
            watch=f"{host}:{watch_port}" if watch_port else "",
            ranks=self.ranks,
            first_rank=self.first_rank + nth * self.ranks,
            role=self.role,
            blocks=self.blocks,
            block_size=self.block_size,
            eagle=self.eagle,
        )


class ProbeTable(Table, frozen=True):
    """[probe]: asking pods over HTTP whether they are up and what they serve."""

    interval_seconds: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    """Pause between two probes of a pod; 0: no probes."""
    timeout_seconds: Seconds = 2.0
    """Longest wait for an answer."""
    ca: str = ""
    """PEM of the authority that engines with `https` are recognised by, those of `tokenizer-urls` too;
    empty: the system's. Files are relative to this one."""
    cert: str = ""
    """PEM of the certificate that the router shows them."""
    key: str = ""
    """PEM of its private key."""
    server_name: ServerName = ""
    """The name that the certificates of engines with `https` have; empty: the host of each address."""


class WatchTable(Table, frozen=True):
    """[watch]: connections to publishers. Files are relative to this one."""

    ca: str = ""
    """PEM of the authority that publishers are recognised by; empty: plain connections."""
    cert: str = ""
    """PEM of the certificate that the router shows."""
    key: str = ""
    """PEM of its private key."""


class SharedIndexTable(Table, frozen=True):
    """[shared-index]: the index that publishers keep in Redis, for every router of a deployment.

    Pods without `events` and `watch` are followed through it. Files are relative to this one.
    """

    url: str = ""
    """`redis://host:port`, `redis-cluster://host:port,host:port` or
    `redis-sentinel://host:port,host:port/NAME`; `rediss...` with TLS
    (docs/guides/shared-index.md#connecting). Empty: there is none."""
    mode: Literal["replica", "shared"] = "replica"
    """replica: the router copies what its pods hold and keeps that current; no answer waits for Redis.
    shared: it asks Redis for each prompt and keeps only recent answers, which suits pods that hold far
    more than fits into this process (docs/guides/shared-index.md#which-mode)."""
    prefix: str = "warmpath"
    """Prefix of all keys, which separates deployments on one Redis; equal for the publishers and routers
    of one deployment. A router with another one finds nothing, and says that no publisher holds its
    pods."""
    user: str = ""
    """User of Redis's ACL; empty: the default user."""
    password_file: str = ""
    """File with the password, one line; empty: none is sent."""
    ca: str = ""
    """PEM of the authority that servers are recognised by; empty: the system's."""
    cert: str = ""
    """PEM of the certificate that the router shows."""
    key: str = ""
    """PEM of its private key."""
    deadline_seconds: Annotated[float, Meta(gt=0, le=10)] = 0.05
    """mode = "shared": longest time that an answer waits for Redis; then it uses the data at hand.
    It never waits longer than the caller's own deadline."""
    poll_seconds: Annotated[float, Meta(gt=0, le=10)] = 0.05
    """mode = "replica": pause between two reads of changes."""
    stale_seconds: Seconds = 60.0
    """Time without Redis after which data from it no longer count: a failover takes some 10 s, and
    caches turn over in minutes."""
    lease_seconds: Annotated[float, Meta(ge=LEAST_LEASE, le=MOST_LEASE)] = 10.0
    """write = true: how long this router's entries stay valid after it has ended."""
    write: bool = False
    """Whether this router also writes the pods that it follows by `events`, for engines without
    publishers. Of several routers one writes, the others stand by
    (docs/reference/shared-index.md#a-routers-settings)."""
    share_bookings: bool = False
    """Whether routers share their bookings, and know the prompts that others have on their way, so that
    they do not all choose the same pod, nor compute a prompt on several
    (docs/reference/picks.md#several-routers)."""


class TierWeightsTable(Table, frozen=True):
    """[llmd.weights]: the weight of a block in each tier, in scores for llm-d's callers.

    The defaults are llm-d's, which gives 1 to each tier that it does not know
    (`pkg/kvcache/kvblock_scorer.go`).
    """

    gpu: Weight = 1.0
    """Of a block in the GPU's memory."""
    cpu: Weight = 0.8
    """Of a block in the host's memory."""
    disk: Weight = 1.0
    """Of a block on a disk."""
    remote: Weight = 1.0
    """Of a block in storage that pods reach over the network."""


class LlmdTable(Table, frozen=True):
    """[llmd]: scores for llm-d's callers, `indexer.v1.IndexerService` (docs/guides/coming-from.md)."""

    block_size: BlockSize = 16
    """Tokens of a block in scores: llm-d's `blockSizeTokens`."""
    weights: TierWeightsTable = TierWeightsTable()
    identifier: Literal["address", "host", "id"] = "address"
    """How pods are called where a request names none: by host:port, by the host alone, or by id."""


class Config(Table, frozen=True):
    """The whole file."""

    models: list[ModelSpec]
    server: ServerTable = ServerTable()
    clients: list[ClientSpec] = []
    limits: LimitsTable = LimitsTable()
    index: IndexTable = IndexTable()
    shared_index: SharedIndexTable = SharedIndexTable()
    prefix_store: PrefixStoreTable = PrefixStoreTable()
    tokenizers: TokenizersTable = TokenizersTable()
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
    """A file of [[pods]] that is read again when it changes, relative to this one."""
    pod_sets: list[PodSetSpec] = []
