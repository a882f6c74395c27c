"""`warmpath version`: the version, its commit, and the versions of its formats in files and Redis."""

import importlib.metadata
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.shared.layout.names import BUCKETS, SCHEMA
from warmpath.process.command_line import command_parser, version
from warmpath.proto.pb.indexer.v1 import indexer_pb2
from warmpath.proto.pb.warmpath.v1 import router_pb2
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2
from warmpath.router import state_file

REVISION = "WARMPATH_REVISION"
"""The environment variable that has the commit in an image (`deploy/Dockerfile`)."""
CONTRACTS = (router_pb2, cache_watch_pb2, indexer_pb2)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the version, its commit where that is known, and the versions of data that it reads."""
    parser = command_parser("version", main.__doc__, "warmpath version --json")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    found: dict[str, Any] = {
        "version": version(),
        "commit": commit(),
        "contracts": [module.DESCRIPTOR.package for module in CONTRACTS],
        "shared_index": {"schema": SCHEMA, "buckets": BUCKETS, "segment": SEGMENT},
        "state_file": state_file.VERSION,
    }
    if args.json:
        print(json.dumps(found))
        return 0
    print(f"warmpath {found['version']}, commit {found['commit'] or 'not known'}")
    print(f"gRPC contracts: {', '.join(found['contracts'])}")
    layout = ", ".join(f"{name} {value}" for name, value in found["shared_index"].items())
    print(f"shared index in Redis: {layout}")
    print(f"state file: {found['state_file']}")
    return 0


def commit() -> str:
    """Return the commit of an image, an installation from Git or a checkout; else an empty text."""
    given = os.environ.get(REVISION, "").removeprefix("unknown")
    return given or _installed_commit() or _checked_out()


def _installed_commit() -> str:
    try:
        # pip's note (PEP 610).
        noted = importlib.metadata.distribution("warmpath-router").read_text("direct_url.json")
        return str(json.loads(noted or "{}")["vcs_info"]["commit_id"])
    except (importlib.metadata.PackageNotFoundError, KeyError, TypeError, ValueError):
        return ""


def _checked_out() -> str:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603  words of ours
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
