"""Recordings of vLLM's scheduler, read: lines by scenario, each beginning with `new_scheduler`."""

import gzip
import json
from pathlib import Path
from typing import Any


def recorded_scenarios(recording: Path) -> dict[str, list[dict[str, Any]]]:
    scenarios: dict[str, list[dict[str, Any]]] = {}
    lines: list[dict[str, Any]] = []
    with gzip.open(recording, "rt") as file:
        for line in map(json.loads, file):
            if line["op"] == "new_scheduler":
                lines = scenarios.setdefault(line["args"]["name"], [])
            lines.append(line)
    return scenarios
