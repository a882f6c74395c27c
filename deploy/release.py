"""Makes the files of a release from the last commit, and sends them nowhere: `make release`.

The wheel, the source archive and the chart are the same bytes in each run: their files have the commit's
time, and neither the owner nor the mode that they had here.
"""

import argparse
import gzip
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = ("publisher", "router")
"""The locked sets of packages, and the images. The router's set holds the publisher's."""
PIP = "install", "--quiet", "--disable-pip-version-check", "--no-compile"


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit that is released, and a folder with its files."""

    tree: Path
    version: str
    revision: str
    seconds: int
    """Its time, in seconds since 1970."""


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Return a program's output, with that on standard error. Ends this program where it fails."""
    ended = subprocess.run(
        words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if ended.returncode:
        sys.exit(
            f"{ended.stdout}\nrelease: {shlex.join(map(str, words))}: status {ended.returncode}"
        )
    return ended.stdout.strip()


def export(folder: Path) -> Commit:
    """Write the last commit's files into a folder."""
    archive, tree = folder / "tree.tar", folder / "tree"
    run("git", "archive", "--output", archive, "HEAD")
    with tarfile.open(archive) as packed:
        packed.extractall(tree, filter="data")
    version = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["version"]
    seconds = int(run("git", "log", "-1", "--format=%ct"))
    return Commit(tree, version, run("git", "rev-parse", "HEAD"), seconds)


def pack(folder: Path, archive: Path, seconds: int) -> None:
    """Write a folder's files as a .tar.gz, in order of their names; links become what they lead to."""

    def settled(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = seconds
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=seconds) as zipped,
        tarfile.open(fileobj=zipped, mode="w", dereference=True) as packed,
    ):
        packed.add(folder, folder.name, filter=settled)


def make_packages(commit: Commit, out: Path) -> None:
    """Make the source archive, the wheel from it, and the chart, which Helm could package too."""
    code = "import sys, setuptools.build_meta as made; getattr(made, sys.argv[1])(sys.argv[2])"
    build = "env", f"SOURCE_DATE_EPOCH={commit.seconds}", sys.executable, "-P", "-c", code
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(*build, "build_sdist", folder, cwd=commit.tree)
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        source = folder / archive.name.removesuffix(".tar.gz")
        pack(source, out / archive.name, commit.seconds)
        run(*build, "build_wheel", out, cwd=source)
    chart = commit.tree / "deploy" / "helm" / "warmpath"
    pack(chart, out / f"warmpath-{commit.version}.tgz", commit.seconds)


def list_packages(commit: Commit, out: Path, tool: Path) -> None:
    """Install the wheel with the pinned packages, and list them as CycloneDX with `tool`."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        python = Path(folder) / "bin" / "python"
        pip = sys.executable, "-m", "pip", "--python", python, *PIP
        run(*pip, "--no-deps", "--no-index", "--find-links", out, "warmpath-router")
        for name, command in zip(NAMES, ("publish", "serve"), strict=True):
            lock = f"constraints-{name}.txt"
            shutil.copy(commit.tree / lock, out)
            run(*pip, "--require-hashes", "--only-binary", ":all:", "-r", out / lock)
            run(python, "-m", "warmpath.cli", command, "--help")
            listed = out / f"warmpath-{name}-{commit.version}.cdx.json"
            run(tool, "environment", "--output-reproducible", "--output-file", listed, python)


def make_images(commit: Commit, out: Path, options: Sequence[str]) -> bool:
    """Build the images, and pack them for `docker load`. Return False where no engine answers."""
    answering = [
        program
        for program in map(shutil.which, ("docker", "podman"))
        # Without its daemon, docker's client says so in its status.
        if program
        and not subprocess.run([program, "version"], capture_output=True, check=False).returncode
    ]
    if not answering:
        return False
    for name in NAMES:
        tag = f"warmpath-{name}:{commit.version}"
        print(f"release: the image {tag}", flush=True)
        about = f"VERSION={commit.version}", f"REVISION={commit.revision}"
        words = [word for one in about for word in ("--build-arg", one)]
        file = str(commit.tree / "deploy" / "Dockerfile")
        words += ["--file", file, "--target", name, "--tag", tag, *options, str(commit.tree)]
        run(answering[0], "build", *words)
        with tempfile.NamedTemporaryFile(suffix=".tar") as saved:
            run(answering[0], "save", "--output", saved.name, tag)
            archive = out / f"warmpath-{name}-{commit.version}-image.tar.gz"
            with Path(saved.name).open("rb") as source, gzip.open(archive, "wb", 6) as target:
                shutil.copyfileobj(source, target)
    return True


def notes(commit: Commit, out: Path, left_out: str) -> str:
    """Return what changed, from the changelog, and how to install each file in `out`."""
    versions = re.split(r"^## ", (commit.tree / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    changes = next((one for one in versions if one.startswith(commit.version)), versions[0])
    # Links to files of the checkout lead nowhere from here.
    text = re.sub(r"\[([^]]+)\]\((?!https?:)[^)]*\)", r"\1", changes.partition("\n")[2].strip())
    (wheel,) = (path.name for path in out.glob("*.whl"))
    images = [f"docker load --input {path.name}" for path in sorted(out.glob("*-image.tar.gz"))]
    lines = [
        f"# warmpath {commit.version}", "", text, "", "## Install", "", "```sh",
        "sha256sum --check --ignore-missing SHA256SUMS",
        f"pip install '{wheel}[router]'    # without [router]: the publisher and the clients",
        "# Or with the versions that are tested:",
        "pip install --require-hashes --only-binary :all: -r constraints-router.txt",
        f"pip install --no-deps {wheel}",
        f"helm install warmpath warmpath-{commit.version}.tgz --values YOURS.yaml",
        *images, "```", "", f"Made from commit {commit.revision}.{left_out and ' ' + left_out}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Make a release in a folder that does not exist yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the folder")
    parser.add_argument("--sbom-tool", type=Path, required=True, help="the program cyclonedx-py")
    parser.add_argument("--no-images", action="store_true", help="leave the images out")
    parser.add_argument("--build", default="", help="more options of `docker build`")
    args = parser.parse_args()
    out = args.out.absolute()
    out.mkdir(parents=True)
    os.umask(0o022)
    if run("git", "status", "--porcelain", "--untracked-files=no"):
        print("release: it is made from the last commit; what is not committed is left out")
    with tempfile.TemporaryDirectory() as folder:
        commit = export(Path(folder))
        print("release: the wheel, the source archive, the chart", flush=True)
        make_packages(commit, out)
        print("release: the lists of packages", flush=True)
        list_packages(commit, out, args.sbom_tool.absolute())
        left_out = ""
        if args.no_images:
            left_out = "The images were left out."
        elif not make_images(commit, out, shlex.split(args.build)):
            left_out = "The images are left out: neither docker nor podman answers here."
        (out / "NOTES.md").write_text(notes(commit, out, left_out))
    files = sorted(out.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(sums))
    print("".join(sums) + "\n".join(filter(None, (left_out, str(args.out)))))


if __name__ == "__main__":
    main()
