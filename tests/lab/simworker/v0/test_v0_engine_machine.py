"""The engine under random requests and aborts."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.lab.simworker.state_machines import LONG
from tests.lab.simworker.v0.serving import MODES, Client, make, prompt_of


class EngineMachine(RuleBasedStateMachine):
    """Requests come, go and are computed; memory reads back right all the time."""

    @initialize(
        mode=st.sampled_from(range(len(MODES))), caching=st.booleans(), blocks=st.integers(7, 10)
    )
    def begin(self, mode: int, caching: bool, blocks: int) -> None:
        limits = MODES[mode]
        caching = caching and not limits.get("enable_chunked_prefill")
        self.engine = make(gpu_blocks=blocks, caching=caching, **(limits | {"max_model_len": 24}))
        self.clients: list[Client] = []
        self.aborted: set[str] = set()

    @rule(length=st.integers(1, 14), family=st.integers(0, 2), tokens=st.integers(1, 8))
    def submit(self, length: int, family: int, tokens: int) -> None:
        number = len(self.clients)
        client = Client(str(number), prompt_of(family * 3, length), tokens, {"priority": -family})
        self.clients.append(client)
        self.engine.submit(client.generation)

    @rule(pick=st.integers(0, 30))
    def abort(self, pick: int) -> None:
        if pick < len(self.clients):
            self.engine.abort(str(pick))
            self.aborted.add(str(pick))

    @rule()
    def step(self) -> None:
        self.engine.begin_step()
        self.engine.end_step()

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(2000):
            if not self.engine.busy:
                break
            self.step()
        assert not self.engine.busy
        self.engine.check()
        assert self.engine.load().kv_cache_usage == 0
        for client in self.clients:
            done = client.finished and len(client.tokens) == client.max_tokens
            assert done or client.request_id in self.aborted


TestEngine = EngineMachine.TestCase
TestEngine.settings = LONG
