"""The view of `warmpath index` on the shared index: its schema, the pods' records, damaged keys."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import grpc

from warmpath.indexer.shared.layout.damage import (
    ask_pod,
    ask_type,
    is_wrong_type,
    pod_problems,
    wrong_type,
)
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint, is_credible
from warmpath.indexer.shared.layout.pages import Page, ask_page, read_checkpoint, read_page
from warmpath.indexer.shared.layout.record import (
    BadRecordError,
    Living,
    Record,
    fields_of,
    read_record,
)
from warmpath.indexer.shared.layout.schema import SchemaError, judge
from warmpath.indexer.shared.redis.client import RedisClient
from warmpath.indexer.shared.redis.command import (
    Argument,
    Call,
    Command,
    CommandFailedError,
    CommandRefusedError,
    Fault,
    Reply,
    UnreachableError,
    fault_of,
)
from warmpath.indexer.shared.sweep.mend import batches
from warmpath.process.command_line import NO_ANSWER

NO_NODE = ("CLUSTERDOWN", "MASTERDOWN", "LOADING", "TRYAGAIN")
"""Error codes of Redis nodes that temporarily cannot answer."""
MOST_NAMED = 3


class AccessError(Exception):
    """The index cannot be read; the message has the reason, `fault` its kind.

    `status` is the command's exit status: USAGE if the options or files do not lead to an index.
    """

    def __init__(
        self, message: str, fault: Fault = Fault.OTHER, *, status: int = NO_ANSWER
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.status = status


@dataclass(frozen=True, slots=True)
class PodSeen:
    """One pod, as read from its record and log."""

    name: str
    record: Record | None
    problem: str
    """Why the record cannot be read; empty if it can, or if there is none."""
    lease: float | None
    """Seconds until the record expires; None without a record or without an expiry."""
    log_length: int
    """Number of entries of the pod's log in Redis."""
    is_known: bool = False
    """Whether the list of pods has it: it was claimed, and no sweep has forgotten it since."""


@dataclass(slots=True)
class Access:
    """The index under one prefix. Methods raise AccessError if Redis refuses a command.

    If a node does not answer, `ask` raises AccessError, too; the other methods note it in `silent`, and
    a key of a wrong type in `damaged`.
    """

    redis: RedisClient
    names: KeyNames
    url: str
    timeout: float
    named: str
    """The beginning of settings' names in errors: `--` of options, `shared-index.` of a file."""
    credentials: grpc.ChannelCredentials | None = None
    """Credentials for publishers; None: plain connections."""
    configured: Sequence[str] = ()
    """Pods that the --config file follows through the shared index."""
    lacking: str = ""
    """A sentence that nothing lies under the prefix; empty if something does."""
    silent: list[str] = field(default_factory=list)
    """Nodes that do not answer, each with the reason; their content is not known."""
    damaged: dict[str, str] = field(default_factory=dict)
    """A sentence for each key that no process of warmpath can have written."""
    _fault: Fault = Fault.SILENCE
    """What is wrong with the last of the silent nodes."""
    _away: set[Argument] = field(default_factory=set)
    """Keys on silent nodes, and damaged keys."""

    async def ask(self, asked: Sequence[Command | Call]) -> list[Reply]:
        replies = await self.redis.run(asked, timeout=self.timeout)
        for reply in replies:
            if isinstance(reply, CommandFailedError):
                raise self._failed(reply)
        return replies

    def _failed(self, error: CommandFailedError) -> AccessError:
        return AccessError(problem_of(error, self.url), fault_of(error))

    async def place_of(self, bucket: int) -> str:
        """Return the node of a bucket, with its host and port, or the sentinels' name for it."""
        try:
            return await self.redis.place_of(self.names.bucket(bucket))
        except CommandFailedError as error:
            raise self._failed(error) from error

    async def look(self, asked: Sequence[Command]) -> list[Reply]:
        """Return the replies; None for keys whose node does not answer (see `silent`), or `damaged`."""
        before = frozenset(self._away)
        there = [one for one in asked if one.words[1] not in before]
        replies = iter(await self.redis.run(there, timeout=self.timeout))
        answers = []
        for one in asked:
            reply = None if one.words[1] in before else next(replies)
            if is_wrong_type(reply):
                key = str(one.words[1])
                self._away.add(key)
                self.damaged[key] = wrong_type(key)
                reply = None
            elif isinstance(reply, CommandFailedError):
                if isinstance(reply, CommandRefusedError) and not str(reply).startswith(NO_NODE):
                    raise self._failed(reply)
                self._away.add(one.words[1])
                self._fault = fault_of(reply)
                if str(reply) not in self.silent:
                    self.silent.append(str(reply))
                reply = None
            answers.append(reply)
        return answers

    @property
    def buckets(self) -> list[int]:
        """The buckets whose nodes answer, and that are not damaged."""
        names = self.names
        return [n for n in range(names.buckets) if names.bucket(n) not in self._away]

    def lacks(self) -> str:
        """Return how many buckets could not be read, and why; empty if all could."""
        count, most = self.names.buckets - len(self.buckets), self.names.buckets
        if not (self.silent or count):
            return ""
        return f"{count} of {most} buckets were not reached: {'; '.join(self._problems)}"

    @property
    def _problems(self) -> list[str]:
        return [*self.silent, *self.damaged.values()]

    async def check_schema(self) -> None:
        """Raise AccessError if Redis does not answer, or has an index of another version.

        Without an index, put a sentence into `lacking`.
        """
        names = self.names
        schema, *_ = await self.look(
            [
                Command(("HGETALL", names.schema)),
                *(Command(("HLEN", names.bucket(n))) for n in range(names.buckets)),
            ]
        )
        if not self.buckets:
            problem = _without_place("; ".join(self._problems), self.url)
            raise AccessError(f"no Redis answers at {self.url}: {problem}", self._fault)
        if schema is None:
            return
        if not schema:
            self.lacking = (
                f"no blocks lie under the prefix {names.prefix!r} at {self.url}: no publisher, and no "
                f"router with `write`, has written there ({self.named}prefix)"
            )
            return
        if not is_credible(fields_of(schema).get(b"schema", b"")):
            self.damaged[names.schema] = f"{names.schema} names no version"
            return
        try:
            judge(names, schema)
        except SchemaError as error:
            raise AccessError(str(error)) from error

    async def pods(self, others: Sequence[str] = ()) -> dict[str, PodSeen]:
        (listed,) = await self.look([Command(("HKEYS", self.names.pods))])
        known = {name.decode(errors="replace") for name in listed or ()}
        pods = sorted({*known, *others})
        seen = {}
        for some in batches(pods):
            replies = await self.look([one for pod in some for one in self._ask_pod(pod)])
            for number, pod in enumerate(some):
                one = self._seen(pod, *replies[3 * number : 3 * number + 3])
                seen[pod] = replace(one, is_known=pod in known)
        return seen

    async def pod(self, name: str) -> PodSeen:
        return self._seen(name, *await self.look(self._ask_pod(name)))

    def unread(self, pods: Mapping[str, PodSeen]) -> str:
        """Return which records, needed to know the live slots, were not read; empty if all were."""
        missing = [f"the record of pod {name}" for name, seen in pods.items() if seen.problem]
        if self.names.pods in self._away:
            missing.insert(0, "the list of pods")
        more = f" and of {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        return ", ".join(missing[:MOST_NAMED]) + more

    def empty(self, pods: Mapping[str, PodSeen], written: Collection[str]) -> str:
        """Return a text that no publisher has written under the prefix; empty if one has, or may have.

        `written` are pods that have checkpoints.
        """
        is_written = any(seen.is_known or seen.record or seen.problem for seen in pods.values())
        if self.silent or written or is_written:
            return ""
        return (
            f"nothing under the prefix {self.names.prefix!r} but a schema: "
            "no publisher has written there"
        )

    def _ask_pod(self, pod: str) -> list[Command]:
        record = self.names.record(pod)
        return [
            Command(("HGETALL", record)),
            Command(("PTTL", record)),
            Command(("XLEN", self.names.log(pod))),
        ]

    def _seen(
        self, pod: str, fields: Sequence[bytes] | None, lease: int | None, length: int | None
    ) -> PodSeen:
        if fields is None or lease is None:
            damaged = self.damaged.get(self.names.record(pod), "")
            problem = damaged or "the node of its record does not answer"
            return PodSeen(pod, None, problem, None, length or 0)
        record, problem, left = None, "", lease / 1000 if lease >= 0 else None
        try:
            record = read_record(fields_of(fields))
        except BadRecordError as error:
            problem = str(error)
        return PodSeen(pod, record, problem, left, length or 0)


def living_of(pods: dict[str, PodSeen]) -> Living:
    """Return the slots that the pods' records name."""
    living = Living()
    for name, seen in pods.items():
        living.add(name, seen.record)
    return living


def dead_words(dead: int | None, unread: str) -> str:
    """Return a text about `dead` entries, or, if that is None, why their number is not known."""
    if dead is None:
        return f"how many entries are dead is not known: {unread} could not be read"
    return f"{dead:,} dead entries wait for the sweep"


def problem_of(error: Exception, url: str) -> str:
    """Return the text of a Redis error for the user of the command."""
    text = _without_place(str(error), url)
    if isinstance(error, UnreachableError):
        return f"no Redis answers at {url}: {text}"
    fault = fault_of(error)
    if fault is Fault.LOGIN:
        return f"{url} refuses user or password: {text}"
    if fault is Fault.RIGHT:
        return f"{url} refuses the user a command: {text}"
    return f"{url}: {text}"


def _without_place(problem: str, url: str) -> str:
    return problem.removeprefix(f"{url.partition('://')[2]}: ")


HEALS = "wait a minute for the next sweep, which removes it, or call warmpath index sweep"


async def damage(access: Access) -> list[str]:
    """Return a sentence for each damaged key whose node answers; values in segments are not read."""
    names = access.names
    shared = names.schema, names.pods, names.routers, names.sweeper
    buckets = [names.bucket(number) for number in access.buckets]
    await access.look([ask_type(key) for key in (*shared, *buckets)])
    (left,) = await access.look([Command(("PTTL", names.sweeper))])
    found = [f"{names.sweeper} never expires"] if left == -1 else []
    (listed,) = await access.look([Command(("HKEYS", names.pods))])
    for some in batches([name.decode(errors="replace") for name in listed or ()]):
        await access.look([ask_type(names.log(pod)) for pod in some])
        replies = await access.look([one for pod in some for one in ask_pod(names, pod)])
        for number, pod in enumerate(some):
            problems = pod_problems(names, pod, *replies[3 * number : 3 * number + 3])
            found += [f"{key}: {problem}" for key, problem in problems]
        found += await _checkpoints(access, some)
    return [*access.damaged.values(), *found]


async def _checkpoints(access: Access, pods: Sequence[str]) -> list[str]:
    names, buckets = access.names, access.buckets
    words = [checkpoint(pod) for pod in pods]
    asked = [Command(("HMGET", names.bucket(number), *words)) for number in buckets]
    found: list[str] = []
    for number, values in zip(buckets, await access.look(asked), strict=True):
        for pod, value in zip(pods, values or (), strict=False):
            try:
                read_checkpoint(value or b"0:0")
            except ValueError as error:
                found.append(f"{names.bucket(number)}: pod {pod}: {error}")
    return found


PAGE = 256


async def pages(access: Access) -> AsyncIterator[tuple[int, Page]]:
    """Yield all pages of all reachable buckets by bucket number. A field may come twice."""
    for bucket in access.buckets:
        cursor = b"0"
        while cursor:
            (reply,) = await access.ask([ask_page(access.names, bucket, cursor, PAGE)])
            page = read_page(reply)
            cursor = page.cursor
            yield bucket, page
