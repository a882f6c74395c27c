"""A router for engines by their addresses: it asks, configures, starts and keeps up."""

import asyncio
import json
import math
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from warmpath.cli.child import OURS, ChildError, Process, addresses_of, again
from warmpath.cli.console import trust_words
from warmpath.cli.engines.ask import CHAT, TEXT, Away, Found, ask_engine
from warmpath.cli.engines.line import lines
from warmpath.cli.engines.place import EngineOptions, Place, PlaceError
from warmpath.cli.engines.written import Asked, configuration, free_server, write
from warmpath.client.async_client import AsyncClient
from warmpath.client.calls import Prompt
from warmpath.client.failure import CallError
from warmpath.process.address import HostPort
from warmpath.process.tasks import Work, cancel, kept
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.config.schema import Config, ServerTable
from warmpath.router.pods.table import WELL, Status

LOOK_SECONDS = 2.0
FIRST_SECONDS = 15.0
"""Longest wait for the first probes and events; what has not come by then is said to be missing."""
PAUSE = 0.1
UNPROBED = Status().reason
AT_ONCE = 32
STOP_SECONDS = 10.0
"""Longest wait for the router's end, above `server.drain-delay-seconds` and `server.drain-seconds`."""

Say = Callable[[str], None]


async def ask_all(places: Sequence[Place]) -> list[Asked]:
    """Return what the engines of all places answer now."""
    room = asyncio.Semaphore(AT_ONCE)

    async def addresses(place: Place) -> list[HostPort] | Away:
        try:
            found = await asyncio.to_thread(place.addresses)
        except PlaceError as error:
            return Away(place.name, str(error))
        return found or Away(place.name, "none of its pods is ready")

    async def one(place: Place, at: HostPort) -> Found | Away:
        async with room:
            return await ask_engine(place, at, is_alone=hosts[at.host] == 1)

    named = await asyncio.gather(*map(addresses, places))
    hosts = Counter(at.host for of_place in named if isinstance(of_place, list) for at in of_place)
    asked = []
    for place, of_place in zip(places, named, strict=True):
        if isinstance(of_place, Away):
            asked.append(Asked(place, (of_place,)))
        else:
            answers = await asyncio.gather(*(one(place, at) for at in of_place))
            asked.append(Asked(place, tuple(answers)))
    return asked


async def answering(places: Sequence[Place], say: Say) -> list[Asked]:
    """Return what engines answer, once at least one can be used; until then `say` what is wrong."""
    told = ""
    while True:
        asked = await ask_all(places)
        if any(one.found for one in asked):
            return asked
        problems = [
            f"{one.at}: {one.problem}"
            for of in asked
            for one in of.answers
            if isinstance(one, Away)
        ]
        text = "; ".join(problems)
        if text != told:
            say(f"waiting for an engine that answers: {text}")
        told = text
        await asyncio.sleep(LOOK_SECONDS)


@dataclass
class Fleet:
    """A running router for engines."""

    file: Path
    """The router's configuration."""
    router: str
    page: str
    """host:port of its live page; `router` is that of its gRPC."""
    process: Process
    words: Sequence[str]
    """The router's command line after `python -m`."""
    client: AsyncClient
    pods: Sequence[pb.Pod] = ()
    """The pods that it listed last."""
    blind: dict[tuple[str, Literal["text", "chat"]], CallError] = field(default_factory=dict)
    """By model and form, why the router cannot make tokens of such prompts, if it cannot."""
    asked: list[Asked] = field(default_factory=list)
    """What engines said."""

    def start(self, options: EngineOptions) -> list[str]:
        """Return the lines to print at its start: its addresses, its file, one for each place or pod."""
        asked = {str(answer.at) for one in self.asked for answer in one.answers}
        others = (pod for pod in self.pods if pod.address not in asked)
        got = [*self.lines(), *(f"{pod.address}  {pod.model}: {said(pod)}" for pod in others)]
        words = ("warmpath", options.command, "--config", str(self.file), *options.router)
        shadow = any(one.startswith("--shadow") for one in options.router)
        is_usual = self.router == ServerTable().listen
        to_reach = "" if is_usual else f" (commands reach it with --router {self.router})"
        return [
            f"the router serves gRPC on {self.router}; its live page: http://{self.page}/{to_reach}",
            *["  in shadow, it decides nothing"] * shadow,
            f"  its configuration: {self.file}; to start from it the next time: {shlex.join(words)}",
            *(f"  {line}" for line in got),
        ]

    @property
    def is_settled(self) -> bool:
        """Whether all pods, those of `asked` included, were probed, and no tokenizer is loading."""
        listed = {pod.address for pod in self.pods}
        found = (one.found[0] for one in self.asked if one.found and one.place.pods is None)
        lacking = {one.model for of in self.asked for one in of.found if not one.makes_tokens}
        is_loading = any(
            one.code.name == "UNAVAILABLE"
            for (model, form), one in self.blind.items()
            if form == "text" and model not in lacking
        )
        is_probed = bool(listed) and all(pod.status != UNPROBED for pod in self.pods)
        return is_probed and not is_loading and all(str(one.at) in listed for one in found)

    def lines(self, only: Sequence[Asked] = ()) -> list[str]:
        """Return the lines of all places, or, unless `only` is empty, of those."""
        blind = {name: one.message for name, one in self.blind.items()}
        return list(lines(self.asked, self.pods, blind, str(self.file), only))

    async def keep(self, say: Say) -> None:
        """Start the router again where it ends, until it is stopped.

        Raises ChildError as `again` does, or if it comes back at another port.
        """
        before = -math.inf
        while True:
            try:
                await self.process.ended()
            except ChildError as error:
                before = again(error, before, say)
                router, _ = addresses_of(await self.process.start(*self.words))
                if router != self.router:
                    raise
            else:
                return


def said(pod: pb.Pod) -> str:
    """Return in words how far the predictions for a pod that was not asked can be trusted."""
    if pod.status not in ("", WELL):
        return pod.status
    return "; ".join(dict.fromkeys(trust_words(rank.trust).plain for rank in pod.ranks))


@asynccontextmanager
async def running(options: EngineOptions, say: Say) -> AsyncIterator[Fleet]:
    """Run a router for engines while the context is open.

    Raises ChildError if it does not start, OSError if its files cannot be written.
    """
    file, log = options.config or options.out / "router.toml", options.out / "router.log"
    config: Config | None = None
    if options.config is None:
        asked = await answering(options.places, say)
        server = free_server()
        if server != ServerTable():
            say(f"its usual ports are taken: {file} lets the router take free ones at each start")
        config = configuration(asked, server, options.tokenizer)
        await asyncio.to_thread(write, config, file, options.command)
    else:
        asked = await ask_all(options.places)
    log.parent.mkdir(parents=True, exist_ok=True)
    in_log = f", whose log is {log}"
    if options.command == "serve":
        log, in_log = OURS, ""
    say(
        f"starting the router{in_log}; the first one of an installation compiles its index for a minute"
    )
    process = Process("the router", log)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(process.stop, STOP_SECONDS)
        words = ("warmpath.cli", "serve", "--config", str(file), *options.router)
        router, page = addresses_of(await process.start(*words))
        client = await stack.enter_async_context(AsyncClient(router, timeout=LOOK_SECONDS))
        fleet = Fleet(file, router, page, process, words, client, asked=asked)
        await first_answers(fleet)
        if config is not None:
            work = Work("taking in engines", lambda: take_in(fleet, config, options, say))
            task = kept(work)
            stack.push_async_callback(cancel, [task])
        yield fleet


async def first_answers(fleet: Fleet, changed: Sequence[Asked] = ()) -> None:
    """Wait until the router has probed its pods, hears the `changed` ones, and makes tokens of texts.

    This lasts FIRST_SECONDS at most.
    """
    heard = {str(one.found[0].at) for one in changed if one.found[0].sends_events}
    try:
        async with asyncio.timeout(FIRST_SECONDS):
            while True:
                fleet.process.check()
                try:
                    fleet.pods = (await fleet.client.pods()).pods
                    fleet.blind = await blind_models(fleet)
                    ready = {pod.address for pod in fleet.pods if pod.ready}
                    if fleet.is_settled and heard <= ready:
                        return
                except CallError:
                    pass
                await asyncio.sleep(PAUSE)
    except TimeoutError:
        # The lines say what is missing.
        pass


async def blind_models(fleet: Fleet) -> dict[tuple[str, Literal["text", "chat"]], CallError]:
    """Return, by model and form, why the router cannot make tokens of such prompts, if it cannot."""
    blind: dict[tuple[str, Literal["text", "chat"]], CallError] = {}
    for model in {pod.model for pod in fleet.pods}:
        body = json.dumps({"model": model, "messages": CHAT}).encode()
        try:
            await fleet.client.score(Prompt(text=TEXT, model=model))
        except CallError as error:
            blind[model, "text"] = error
        try:
            # A router does not take an explained prompt for traffic: not each model has chats.
            await fleet.client.score(Prompt(chat_body=body, model=model), explain=True)
        except CallError as error:
            blind[model, "chat"] = error
    return blind


async def take_in(fleet: Fleet, config: Config, options: EngineOptions, say: Say) -> None:
    """Take in single engines that come, or that send events by now or from other ports, until cancelled.

    The router reads its file again by itself. Sets of pods are the router's own to follow, once it knows
    their model.
    """
    told: set[str] = set()
    models = {model.name for model in config.models}
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        with suppress(CallError):
            fleet.pods = (await fleet.client.pods()).pods
        unheard = {pod.address for pod in fleet.pods if not pod.ready}
        waited = [one.place for one in fleet.asked if is_waited_for(one, unheard)]
        changed = []
        for one in await ask_all(waited) if waited else ():
            [before] = [other for other in fleet.asked if other.place == one.place]
            if not one.found or (before.found and not is_better(one.found[0], before.found[0])):
                continue
            if one.place.pods or one.found[0].model not in models:
                text = f"{one.place.name}: it answers; start this command again to take it in"
                if text not in told:
                    say(text)
                told.add(text)
                continue
            changed.append(one)
        if not changed:
            continue
        places = {one.place: one for one in changed}
        fleet.asked = [places.get(one.place, one) for one in fleet.asked]
        new = configuration(fleet.asked, config.server, options.tokenizer)
        await asyncio.to_thread(write, new, fleet.file, options.command)
        await first_answers(fleet, changed)
        for line in fleet.lines(changed):
            say(f"taken in: {line}")


def is_waited_for(one: Asked, unheard: Container[str]) -> bool:
    """Return whether to ask a place again: no engine answered, or its only one is not heard.

    `unheard` has the addresses of pods whose events are not connected.
    """
    if not one.found or one.place.pods is not None:
        return not one.found
    return not one.found[0].sends_events or str(one.found[0].at) in unheard


def is_better(now: Found, before: Found) -> bool:
    """Return whether an engine has begun to send events, or from other ports, or else to make tokens."""
    if now.ports.events and now.ports != before.ports:
        return True
    return (now.sends_events, now.makes_tokens) > (before.sends_events, before.makes_tokens)
