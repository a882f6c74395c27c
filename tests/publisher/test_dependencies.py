"""What stands in an engine's environment takes nothing that engines pin."""

import importlib.metadata
import re

import pytest

from tests.base_install import run
from warmpath.cli.main import PARTS


def test_the_router_is_an_extra_and_what_it_takes_besides_is_left_out_here() -> None:
    required = importlib.metadata.requires("warmpath-router") or []
    base = {re.split(r"[^\w-]", one)[0] for one in required if "extra ==" not in one}
    router = {
        re.split(r"[^\w-]", one)[0] for one in required if re.search(r"extra == .router.", one)
    }
    module_of = {"grpcio-reflection": "grpc_reflection", "xds-protos": "envoy"}
    assert {module_of.get(name, name.replace("-", "_")) for name in router - base} == set(PARTS)


def test_the_publisher_runs_without_the_routers_parts() -> None:
    done = run("from warmpath.publisher.main import main; main(['--help'])")
    assert "usage: warmpath publish" in done.stdout, done.stderr
    done = run("import warmpath.publisher.assemble, warmpath.publisher.vllm_plugin; print('fine')")
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize("command", ["serve", "pods", "simulate"])
def test_a_command_whose_parts_are_missing_names_the_extra(command: str) -> None:
    code = "from warmpath.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = run(code, command, "--help")
    assert done.returncode == 1
    assert "pip install 'warmpath-router[router]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_there_is_is_listed_all_the_same() -> None:
    done = run("from warmpath.cli.main import main; sys.exit(main([]))")
    assert done.returncode == 0, done.stderr
    assert "  publish       Follow an engine" in done.stdout
    assert "pip install 'warmpath-router[router]'" in done.stdout
