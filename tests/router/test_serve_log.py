"""Where the router's own lines about its start go: into the log if that is JSON."""

import argparse
import logging
from pathlib import Path

import pytest

from warmpath.router import serve
from warmpath.router.config.read import parse

MODEL = '[[models]]\nname = "m"\n'
PLAIN = parse(MODEL, "test")
TLS = '[server.tls]\ncert = "c"\nkey = "k"\n'
CLIENT = '[[clients]]\nname = "n"\ntoken-file = "t"\nroles = ["score"]\n'


def options(form: str, process: int | None = None) -> argparse.Namespace:
    return argparse.Namespace(log_format=form, process=process)


def test_the_start_is_a_line_of_the_log_if_that_is_json(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    serve._say_ready(options("json"), PLAIN, "127.0.0.1:7400, HTTP on 127.0.0.1:7401")
    assert "serves gRPC on 127.0.0.1:7400, HTTP on 127.0.0.1:7401" in caplog.text
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("form", "process"), [("text", None), ("text", 0), ("json", 0)])
def test_otherwise_it_is_printed_and_a_parent_always_gets_it(
    form: str,
    process: int | None,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO)
    serve._say_ready(options(form, process), PLAIN, "127.0.0.1:7400")
    said = "warmpath serves gRPC on 127.0.0.1:7400, without TLS, for any caller\n"
    assert capsys.readouterr().out == said
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (TLS, "with TLS, for any caller"),
        (TLS + 'client-ca = "a"\n', "with TLS, for any caller with a certificate"),
        (TLS + CLIENT, "with TLS, for [[clients]]: 1"),
    ],
)
def test_the_start_says_whether_there_is_tls_and_who_may_call(
    tables: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = parse(MODEL + tables, "test")
    serve._say_ready(options("text"), config, "127.0.0.1:7400")
    assert capsys.readouterr().out.endswith(f", {said}\n")


def test_a_wrong_file_is_a_line_of_the_log_if_that_is_json(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "router.toml"
    file.write_text("[server]\nlisten =")
    assert serve.main(["--config", str(file), "--log-format", "json"]) == 2
    assert f"{file}:2: " in caplog.text
    assert "warmpath serve:" not in capsys.readouterr().err
