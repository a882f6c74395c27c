"""Ten thousand requests through Envoy while routers are rolled and a pod is killed: none fails."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.router.endpoint_picker.behind_envoy import (
    FAIL_CLOSE,
    PATIENT,
    Change,
    config,
    front,
    full_duplex,
)
from tests.router.endpoint_picker.rolled import REQUESTS, Callers, Process, answers, running
from tests.router.pick_stand import pod, until
from warmpath.lab.local.ports import HOST, HeldPorts


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("changes", [[], full_duplex()], ids=["buffered", "full-duplex"])
async def test_no_request_fails_while_routers_are_rolled_and_a_pod_is_killed(
    tmp_path: Path, held_ports: HeldPorts, changes: list[Change]
) -> None:
    ports = [held_ports.take() for _ in range(13)]
    workers, tables = [], "[probe]\ninterval-seconds = 0.5\n"
    for number in range(3):
        http, events, replay = ports[3 * number : 3 * number + 3]
        workers.append(
            Process(
                tmp_path, f"pod-{number}", "warmpath.lab.simworker", "--model=demo", f"--listen={HOST}:{http}",
                f"--events-endpoint=tcp://{HOST}:{events}", f"--replay-endpoint=tcp://{HOST}:{replay}",
                "--blocks=2000", "--block-size=16", "--vocab-size=2048", "--speed=1000", "--topic=",
            )
        )  # fmt: skip
        tables += pod(
            f"pod-{number}", f"{HOST}:{http}", events=f"tcp://{HOST}:{events}",
            replay=f"tcp://{HOST}:{replay}",
        )  # fmt: skip
    routers, addresses, health = [], [], []
    for number in range(2):
        listen, metrics = ports[9 + 2 * number : 11 + 2 * number]
        file = tmp_path / f"router-{number}.toml"
        file.write_text(
            f'[server]\nlisten = "{HOST}:{listen}"\nmetrics-listen = "{HOST}:{metrics}"\n'
            f'[endpoint-picker]\npick-seconds = 60\n[[models]]\nname = "demo"\n{tables}'
        )
        routers.append(
            Process(tmp_path, f"router-{number}", "warmpath.cli", "serve", "--config", str(file))
        )
        addresses.append(f"{HOST}:{listen}")
        health.append(f"http://{HOST}:{metrics}/readyz")
    engines = [f"{HOST}:{ports[3 * number]}" for number in range(3)]
    text = config(addresses, engines, [*changes, FAIL_CLOSE, *PATIENT])
    async with running(*workers, *routers):
        for url in health:
            await until(lambda url=url: answers(url, 200))  # type: ignore[misc]
        async with front(text) as envoy:
            await envoy.until_routers_are_asked()
            callers = Callers(envoy)
            calling = asyncio.create_task(callers.run())
            for at, router in enumerate((*routers, *routers)):
                await callers.until(0.1 + 0.2 * at)
                await router.roll(signal.SIGTERM)
                await until(lambda at=at: answers(health[at % 2], 200))  # type: ignore[misc]
                await until(lambda: envoy.finds_well(2))
                if at == 1:
                    await workers[0].roll(signal.SIGKILL)
            await calling
    assert callers.outcomes == {"200": REQUESTS}
    assert set(callers.pods) == {"pod-0", "pod-1", "pod-2"}
