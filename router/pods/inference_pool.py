"""What an InferencePool says of its pods: their labels, and the ports at which they take requests.

Source: the Gateway API's Inference Extension, `InferencePoolSpec` of v1 (`selector.matchLabels`,
`targetPorts[].number`; each port of a pod is an endpoint of its own) and of v1alpha2 (`selector`,
`targetPortNumber`). The annotation is llm-d's (`llm-d-router`, `pkg/epp/util/pod`): a list of ports with
commas between them, of which those that are among the pool's take requests.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""The annotation, and its name before it was llm-d's; the first that a pod has counts."""
NUMBER = re.compile(r"\s*\+?(\d{1,5})")
"""The beginning of a port in the annotation; llm-d ignores what follows the digits."""


@dataclass(frozen=True, slots=True)
class InferencePool:
    """The part of an InferencePool's specification that says which endpoints it has."""

    selector: str
    """The labels of its pods, such as app=vllm,tier=gpu."""
    ports: tuple[int, ...]
    """The ports at which each pod takes requests, in the pool's order; empty if it names none."""


def read_pool(spec: Mapping[str, Any]) -> InferencePool:
    """Return a pool's labels and ports. Raises KeyError, TypeError or ValueError for another `spec`."""
    selector = spec["selector"]
    labels = selector.get("matchLabels", selector)
    if not labels:
        raise ValueError("a pool without labels would have every pod")
    ports = [one["number"] for one in spec.get("targetPorts") or ()]
    if not ports and "targetPortNumber" in spec:
        ports = [spec["targetPortNumber"]]
    return InferencePool(
        ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        tuple(dict.fromkeys(int(port) for port in ports)),
    )


def active_ports(annotations: Iterable[str | None], ports: tuple[int, ...]) -> frozenset[int]:
    """Return those of a pool's ports at which a pod takes requests: all, if no annotation says which.

    `annotations` are a pod's, in the order of ACTIVE_PORTS.
    """
    said = next((one for one in annotations if one is not None), None)
    if said is None:
        return frozenset(ports)
    found = map(NUMBER.match, said.split(","))
    return frozenset(int(one[1]) for one in found if one).intersection(ports)
