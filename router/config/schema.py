"""The router's configuration: one frozen tree, read from TOML once.

Every default stands beside its unit and its reason. `router.config.read` reads and checks it.
One file has every key, however many there are, as the file that it describes is one.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from indexer.shared.layout.record import LEAST_LEASE, MOST_LEASE

MIB = 1 << 20
MOST_BYTES = 1 << 42
"""More memory than any machine has that a router would be given: a larger figure is a slip."""

Positive = Annotated[int, Meta(gt=0, le=1 << 30)]
"""A number of things."""
Bytes = Annotated[int, Meta(gt=0, le=MOST_BYTES)]
Blocks = Annotated[int, Meta(ge=0, lt=1 << 32)]
ServerName = Annotated[str, Meta(pattern=r"^([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)?$")]
"""A host's name, or none."""
FirstRank = Annotated[int, Meta(ge=0, lt=1 << 16)]
BlockSize = Annotated[int, Meta(gt=0, le=1 << 20)]
"""Tokens of a block."""
Seconds = Annotated[float, Meta(gt=0, le=86400)]

Role = Literal["both", "prefill", "decode"]


class Table(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """A table of the file; its keys are the fields with dashes."""


class Server(Table, frozen=True):
    """[server]: where the router listens."""

    listen: str = "127.0.0.1:7400"
    """host:port of gRPC. Loopback unless told otherwise."""
    metrics_listen: str = "127.0.0.1:7401"
    """host:port of /metrics, /healthz and /readyz; empty: none."""
    processes: Annotated[int, Meta(gt=0, le=64)] = 1
    """Processes that share `listen`, each with an index of its own and the next port for metrics: one
    answers about 1,500 to 3,000 scores a second, on one core."""
    drain_seconds: Seconds = 5.0
    """How long calls that are being answered may take after SIGTERM."""


class Limits(Table, frozen=True):
    """[limits]: what one prompt, and all that wait, may be at most."""

    max_prompt_bytes: Annotated[int, Meta(gt=0, le=1 << 30)] = 8 * MIB
    """Of a text or a body: about two million tokens."""
    max_prompt_tokens: Annotated[int, Meta(gt=0, le=1 << 28)] = 1_000_000
    """Longer than the longest context that engines serve today."""
    tokenize_seconds: Seconds = 2.0
    """Longest wait for the tokenizer where the caller set no shorter deadline."""
    max_queued_prompts: Positive = 1024
    """Prompts that wait for a tokenizer."""
    max_queued_bytes: Bytes = 64 * MIB
    """Bytes of the prompts that wait for a tokenizer."""
    max_in_flight_bytes: Bytes = 160 * MIB
    """Bytes of the messages of all calls, from before one is read until it is answered: one that is not
    read yet counts as the largest, 17 MiB. Memory may grow by twice this."""
    message_seconds: Seconds = 2.0
    """How long a message may take to come while other calls wait for the room that is kept for it."""

    @property
    def largest_message(self) -> int:
        """Bytes: a prompt past its limit is to be refused by name, so the transport takes more."""
        largest = 2 * max(self.max_prompt_bytes, 5 * self.max_prompt_tokens) + MIB
        return min(largest, (1 << 31) - 1)


class IndexTable(Table, frozen=True):
    """[index]: the block-to-pods index."""

    hash_seed: str = ""
    """Seeds every key; equal wherever keys are compared."""
    max_bytes: Annotated[int, Meta(ge=16 * MIB, le=MOST_BYTES)] = 1024 * MIB
    """What the index may take; at the bound it gives up the least recently matched prefixes."""
    state_file: str = ""
    """Where index and stream positions are saved when the router ends, and loaded from when it
    starts, relative to this file; empty: nowhere."""


class PrefixStoreTable(Table, frozen=True):
    """[prefix-store]: text to tokens."""

    kind: Literal["lru", "trie"] = "lru"
    """lru: beginnings by their digest, about 2 bytes for a byte of text. trie: the texts themselves,
    compared byte for byte, about 3."""
    max_bytes: Bytes = 256 * MIB
    """What may be kept of each model's texts, tokens and block keys; past it the texts used least
    recently go."""
    workers: Annotated[int, Meta(gt=0, le=256)] = 2
    """Threads that tokenise; they run without the interpreter lock."""
    hang_seconds: Seconds = 30.0
    """When a thread is given up, and another takes its place: a text of 8 MB takes about 5 s."""


class Templates(Table, frozen=True):
    """[templates]: rendering chats, in processes that can be ended."""

    workers: Annotated[int, Meta(gt=0, le=64)] = 2
    """Processes, of about 30 MB each; a chat of 10,000 tokens keeps one busy for about 2 ms."""
    render_seconds: Seconds = 5.0
    """Of one rendering; past it the process is ended: what takes this long does not end by itself."""
    max_output_bytes: Annotated[int, Meta(gt=0, le=1 << 30)] = 16 * MIB
    """Of one rendered text: twice the longest body, since templates write JSON and tags of their own."""
    max_memory_bytes: Annotated[int, Meta(ge=128 * MIB, le=MOST_BYTES)] = 512 * MIB
    """Of one process's address space: a body of 8 MiB, of nothing but small objects, took 200 MB."""


class Events(Table, frozen=True):
    """[events]: following the engines' event streams."""

    pending_bytes: Bytes = 64 * MIB
    """Live batches of a rank that wait while others are followed, and that are held while a replay runs,
    each; past it they are let go and asked for again."""
    orphan_bytes: Bytes = 16 * MIB
    """Stores of a rank kept until the parent that was missed is told of again. Those of all ranks count
    in index.max-bytes, and go before any block that is held does."""
    replay_seconds: Seconds = 10.0
    """Longest wait for each message of a replay; an engine answers between two steps."""
    reconnect_seconds: Seconds = 0.25
    """Pause between attempts to connect."""
    stale_seconds: Seconds = 1.0
    """How long a connection may be gone before the rank is stale."""
    lag_seconds: Seconds = 2.0
    """How late events may be followed before the rank is degraded, until that is halved."""
    max_frame_bytes: Bytes = 64 * MIB
    """The largest message taken: a step of a million tokens is 5 MB."""
    trusted_network: bool = False
    """Whether engines on other machines may send their events in plain text without a warning in the log
    and a finding of `warmpath doctor`."""


class Booking(Table, frozen=True):
    """[booking]: the work of picked requests."""

    expire_seconds: Seconds = 600.0
    """When a booking that is never reported ends by itself."""
    max_bookings: Positive = 100_000
    """Bookings kept; past it the oldest ends."""


class Pick(Table, frozen=True):
    """[pick]: choosing a pod."""

    policy: str = "warmpath"
    """Its name; `warmpath simulate` compares them on your own traffic."""
    options: dict[str, float] = {}
    """Of the policy; docs/pick-reference.md lists them."""
    prefill_base_seconds: Annotated[float, Meta(gt=0, le=60)] = 0.020
    """A prefill, whatever its length. The three constants are a 70B model's on 4 GPUs; the choice
    depends little on them, the predicted times do."""
    prefill_token_seconds: Annotated[float, Meta(gt=0, le=1)] = 70e-6
    """An uncached token."""
    prefill_context_seconds: Annotated[float, Meta(ge=0, le=1e-3)] = 1.3e-9
    """An uncached token and a token before it."""
    load_stale_seconds: Seconds = 5.0
    """How long a load that an engine or a gateway told of counts."""
    confirm_seconds: Seconds = 5.0
    """How long after a first token events may need to tell of the prompt's blocks."""
    assumed_seconds: Seconds = 600.0
    """How long what was sent to a pod without events is believed to be there, and what events told
    before they ceased."""
    assumed_blocks: Positive = 32_768
    """Blocks of a pod without events that are believed to be there: its `blocks` where that is given."""
    max_believed_blocks: Positive = 1_000_000
    """Blocks that may be believed to be anywhere, of about 200 bytes each; past it the oldest go."""
    session_seconds: Seconds = 1800.0
    """How long a session's pod is remembered."""
    max_sessions: Positive = 100_000
    """Sessions remembered; past it the least recently used goes."""
    group_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """How long a pick may wait for others of the same prompt, to be placed with them; 0: not at all."""
    group_size: Positive = 16
    """How many of them one pod takes before another gets any."""
    kept_decisions: Annotated[int, Meta(ge=0, le=100_000)] = 256
    """Picks that `warmpath decisions` shows."""


class Tokenizers(Table, frozen=True):
    """[tokenizers]: loading them, and asking engines."""

    most: Positive = 32
    """Tokenizers kept; a large vocabulary takes about 100 MB. Past it the least recently used goes."""
    retry_seconds: Seconds = 10.0
    """Pause before a tokenizer that could not be loaded is tried again."""
    load_seconds: Seconds = 60.0
    """Longest wait for the hub; a download that takes longer goes on, and is found by the next try."""
    remote_seconds: Seconds = 0.5
    """Longest wait for an engine's tokenizer; well within limits.tokenize-seconds, so that there is time
    for the next engine or the fall-back."""
    skip_seconds: Seconds = 5.0
    """How long an engine whose tokenizer failed is not asked."""


class Hub(Table, frozen=True):
    """[models.hub]: a tokenizer of the HuggingFace hub, pinned."""

    repo: str = ""
    """OWNER/NAME; empty: not from the hub."""
    revision: str = ""
    """The full commit, 40 hexadecimal digits."""
    files: dict[str, str] = {}
    """Each file that is used, tokenizer.json for one, with its SHA-256."""
    token_file: str = ""
    """File with the access token, relative to this one; empty: none is sent."""
    endpoint: str = ""
    """URL of a mirror; empty: the hub, or what HF_ENDPOINT says."""
    cache_folder: str = ""
    """Relative to this file; empty: huggingface_hub's own, shared with engines on this machine."""
    offline: bool = False
    """Only what lies in the cache."""


class Placeholders(Table, frozen=True):
    """[models.placeholders]: what the engine writes for a medium where the template takes text.

    It is vLLM's `get_placeholder_str` of the model; `{i}` in it is the medium's number, from 1. Where
    it is not given, chats with such a medium are refused.
    """

    image: str | None = None
    audio: str | None = None
    video: str | None = None

    def given(self) -> dict[str, str]:
        """Return those that are given, by medium."""
        return {
            name: text for name, text in msgspec.structs.asdict(self).items() if text is not None
        }


class Model(Table, frozen=True):
    """[[models]]: one base model."""

    name: str
    """Seeds the keys, and is one of the names that requests give."""
    aliases: list[str] = []
    """Other names of it."""
    adapters: list[str] = []
    """LoRA adapters that are requested by their own name."""
    tokenizer: str = ""
    """Folder with tokenizer.json, relative to this file."""
    hub: Hub = Hub()
    """Instead of a folder. Without any tokenizer prompts are token ids."""
    tokenizer_urls: list[str] = []
    """Engines whose own /tokenize is asked, in turn; a folder or the hub is then the fall-back."""
    vocab_size: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    """Token ids lie below it; 0: the tokenizer's, or unchecked where there is none."""
    tokenizer_key_file: str = ""
    """File with the API key that these engines ask for, relative to this file; empty: none."""
    placeholders: Placeholders = Placeholders()
    shared_tiers: list[Literal["cpu", "disk", "remote"]] = []
    """Tiers that all of its pods read alike: what one holds there counts for each."""


class Pod(Table, frozen=True):
    """[[pods]]: one engine instance."""

    id: str
    model: str
    address: str
    """host:port that serves requests."""
    https: bool = False
    """Whether it serves them over HTTPS: it is asked so then, and has to be who `address` says."""
    engine: Literal["vllm", "sglang", "trtllm"] = "vllm"
    """Whose events they are."""
    events: str = ""
    """ZeroMQ endpoint of rank 0's events; rank r is r ports further. With trtllm the URL of
    /kv_cache_events. Without it and `watch` the pod is followed through [shared-index], where its
    publisher writes; without that too, what was sent to it stands in."""
    watch: str = ""
    """host:port of the publisher beside the engine (`warmpath publish`), instead of `events`."""
    replay: str = ""
    """ZeroMQ endpoint of rank 0's replay; empty: none, and a gap cannot be closed."""
    topic: str = ""
    """The exact topic of its events; empty: any."""
    ranks: Annotated[int, Meta(gt=0, le=1024)] = 1
    """Data-parallel ranks."""
    first_rank: FirstRank = 0
    """The engine's own number of the first of them, where one server has only some of a deployment's: it
    counts in ports and metrics. Answers number a pod's ranks from 0."""
    role: Role = "both"
    """What it is for, where prefill and decoding are apart."""
    blocks: Blocks = 0
    """Blocks of a rank's cache; with it a damaged view heals once the cache has turned over, and more
    than fits is seen. 0: what vLLM's /metrics says, else not known."""
    block_size: BlockSize = 32
    """The tokens_per_block of trtllm, whose events do not say it."""


class PodSet(Table, frozen=True):
    """[[pod-sets]]: pods that come and go, found by name or through the Kubernetes API."""

    name: str
    model: str
    dns: str = ""
    """A name that resolves to all pods' addresses: a headless service."""
    namespace: str = ""
    """Of Kubernetes; with it one of `selector` and `inference-pool`."""
    selector: str = ""
    """Labels, as in app=vllm,tier=gpu."""
    inference_pool: str = ""
    """An InferencePool's name; its selector is used."""
    port: Annotated[int, Meta(gt=0, lt=65536)] = 8000
    """Where pods serve requests."""
    https: bool = False
    """Whether they serve them over HTTPS, under the addresses at which they are found."""
    engine: Literal["vllm", "sglang", "trtllm"] = "vllm"
    events_port: Annotated[int, Meta(ge=0, lt=65536)] = 5557
    """0: engines' events are not followed; [shared-index] is, where there is one."""
    replay_port: Annotated[int, Meta(ge=0, lt=65536)] = 5558
    """0: no replay."""
    watch_port: Annotated[int, Meta(ge=0, lt=65536)] = 0
    """Where publishers listen; 0: engines are followed directly."""
    ranks: Annotated[int, Meta(gt=0, le=1024)] = 1
    first_rank: FirstRank = 0
    role: Role = "both"
    blocks: Blocks = 0
    block_size: BlockSize = 32
    refresh_seconds: Annotated[float, Meta(gt=0, le=3600)] = 5.0
    """Pause between two look-ups of `dns`."""

    def pod(self, pod_id: str, address: str) -> Pod:
        """Return the pod at an address."""
        host = f"[{address}]" if ":" in address else address
        if self.watch_port or not self.events_port:
            events = replay = ""
        elif self.engine == "trtllm":
            scheme = "https" if self.https else "http"
            events, replay = f"{scheme}://{host}:{self.port}/kv_cache_events", ""
        else:
            events = f"tcp://{host}:{self.events_port}"
            replay = f"tcp://{host}:{self.replay_port}" if self.replay_port else ""
        return Pod(
            id=pod_id,
            model=self.model,
            address=f"{host}:{self.port}",
            https=self.https,
            engine=self.engine,
            events=events,
            replay=replay,
            watch=f"{host}:{self.watch_port}" if self.watch_port else "",
            ranks=self.ranks,
            first_rank=self.first_rank,
            role=self.role,
            blocks=self.blocks,
            block_size=self.block_size,
        )


class Probe(Table, frozen=True):
    """[probe]: asking pods over HTTP whether they are up and what they serve."""

    interval_seconds: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    """Pause between two looks at a pod; 0: never."""
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


class Watch(Table, frozen=True):
    """[watch]: connections to publishers. Files are relative to this one."""

    ca: str = ""
    """PEM of the authority that publishers are recognised by; empty: plain connections."""
    cert: str = ""
    """PEM of the certificate that the router shows."""
    key: str = ""
    """PEM of its private key."""


class SharedIndex(Table, frozen=True):
    """[shared-index]: the index that publishers keep in Redis, for every router of a deployment.

    Pods without `events` and `watch` are followed through it. Files are relative to this one.
    """

    url: str = ""
    """`redis://host:port`, `redis-cluster://host:port,host:port` or
    `redis-sentinel://host:port,host:port/NAME`; `rediss...` with TLS. Empty: there is none."""
    mode: Literal["replica", "shared"] = "replica"
    """replica: the router copies what its pods hold and keeps that current; no answer waits for Redis.
    shared: it asks for each prompt, and keeps what was asked for last: for pods that hold far more than
    fits into this process."""
    prefix: str = "warmpath"
    """Of every key; what tells two deployments on one Redis apart."""
    user: str = ""
    """Of Redis's ACL; empty: its default user."""
    password_file: str = ""
    """File with the password, one line; empty: none is sent."""
    ca: str = ""
    """PEM of the authority that servers are recognised by; empty: the system's."""
    cert: str = ""
    """PEM of the certificate that the router shows."""
    key: str = ""
    """PEM of its private key."""
    deadline_seconds: Annotated[float, Meta(gt=0, le=10)] = 0.05
    """mode = "shared": the longest that an answer waits for Redis; then it is made of what is there."""
    poll_seconds: Annotated[float, Meta(gt=0, le=10)] = 0.05
    """mode = "replica": pause between two looks at what has changed."""
    stale_seconds: Seconds = 60.0
    """How long Redis may be away before what is known from it counts no more: a failover takes some
    10 s, and caches turn over in minutes."""
    lease_seconds: Annotated[float, Meta(ge=LEAST_LEASE, le=MOST_LEASE)] = 10.0
    """write: how long what this router wrote outlives it."""
    write: bool = False
    """Whether this router also writes what it follows by `events`, where nobody else does; of several
    routers one does. With publishers beside the engines nobody needs to."""
    share_bookings: bool = False
    """Whether routers tell each other what they have picked, so that they do not all choose one pod."""


class Config(Table, frozen=True):
    """The whole file."""

    models: list[Model]
    server: Server = Server()
    limits: Limits = Limits()
    index: IndexTable = IndexTable()
    shared_index: SharedIndex = SharedIndex()
    prefix_store: PrefixStoreTable = PrefixStoreTable()
    tokenizers: Tokenizers = Tokenizers()
    templates: Templates = Templates()
    events: Events = Events()
    booking: Booking = Booking()
    pick: Pick = Pick()
    watch: Watch = Watch()
    probe: Probe = Probe()
    pods: list[Pod] = []
    pods_file: str = ""
    """A file of [[pods]] that is read again when it changes, relative to this one."""
    pod_sets: list[PodSet] = []
