"""One check of one part of a deployment, and the place of the setting that mends it."""

from typing import Literal, NamedTuple

from warmpath.router.config.schema import PodSpec

Verdict = Literal["ok", "WRONG", "not known"]

SET_KEYS = {
    "address": "port",
    "events": "events-port",
    "replay": "replay-port",
    "watch": "watch-port",
}
"""A pod's keys, and those of [[pod-sets]] from which they are made."""


class Check(NamedTuple):
    """The result of one check."""

    subject: str
    """The part that was checked: `pod vllm-0`, `Redis`."""
    check: str
    """The property that was checked: `block size`."""
    verdict: Verdict
    text: str
    """What is the case; of WRONG ones what is wrong."""
    change: str = ""
    """Of WRONG ones the setting to change, or the next step."""

    @property
    def line(self) -> str:
        change = f"; {self.change}" if self.change else ""
        return f"{self.verdict:<9}  {self.subject}: {self.check}: {self.text}{change}"


class Placed(NamedTuple):
    """A pod, and the table of the configuration that describes it."""

    spec: PodSpec
    table: str
    """Such as `pods[0]` or `pod-sets[1]`."""

    def key(self, name: str) -> str:
        """Return where a key of the pod is set."""
        is_set = self.table.startswith("pod-sets")
        return f"{self.table}.{SET_KEYS.get(name, name) if is_set else name}"

    def ok(self, name: str, text: str) -> Check:
        return Check(f"pod {self.spec.id}", name, "ok", text)

    def wrong(self, name: str, text: str, change: str) -> Check:
        return Check(f"pod {self.spec.id}", name, "WRONG", text, change)

    def unknown(self, name: str, text: str) -> Check:
        return Check(f"pod {self.spec.id}", name, "not known", text)
