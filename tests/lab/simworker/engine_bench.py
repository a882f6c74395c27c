"""An engine that is stepped by hand, whichever it is."""

from typing import Any

from warmpath.lab.simworker.engine import Generation


class EngineBench:
    """An engine, its requests, their answers, and its events."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.sent: dict[str, Generation] = {}
        self.answers: dict[str, list[int]] = {}
        self.ended: list[str] = []
        self.events: list[Any] = []
        self.seconds = 0.0

    def submit(self, name: str, prompt: list[int], tokens: int = 6, **more: Any) -> Generation:
        answer: list[int] = []

        def take(new: list[int], last: bool) -> None:
            assert one is not self.sent.get(name) or name not in self.ended
            answer.extend(new)
            if last:
                self.ended.append(name)
                assert len(answer) == tokens

        one = Generation(name, prompt, tokens, take, **more)
        self.engine.submit(one)
        self.sent[name], self.answers[name] = one, answer
        return one

    def serve(self, name: str, prompt: list[int], tokens: int = 6, **more: Any) -> Generation:
        one = self.submit(name, prompt, tokens, **more)
        self.run()
        return one

    def step(self) -> int:
        """Take a step; return how many tokens it computed."""
        self.seconds += self.engine.begin_step()
        work = self.engine.work
        self.events += self.engine.end_step()
        self.engine.check()
        return sum(new for new, _ in work.prefills) + work.decoding

    def run(self) -> None:
        for _ in range(10_000):
            if not self.engine.busy:
                return
            self.step()
        raise AssertionError("the engine does not come to an end")


def text(start: int, count: int) -> list[int]:
    return list(range(start, start + count))
