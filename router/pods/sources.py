"""Names the places where the pods of a configuration are found, besides its own [[pods]]."""

from pathlib import Path

from warmpath.router.config.schema import Config
from warmpath.router.pods.discover import PodSource
from warmpath.router.pods.dns import DnsSource
from warmpath.router.pods.file import FileSource
from warmpath.router.pods.kubernetes import KubernetesSource


def sources(config: Config, folder: Path) -> list[PodSource]:
    """Return a source for each of [[pod-sets]], and one for `pods-file`, relative to `folder`."""
    found: list[PodSource] = [
        DnsSource(pods) if pods.dns else KubernetesSource(pods) for pods in config.pod_sets
    ]
    if config.pods_file:
        found.append(FileSource(folder / config.pods_file, config.models))
    return found
