"""`warmpath check-config`: all mistakes, the pods that are found, and the dates of certificates."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Output
from tests.servers.certificates import Authority
from warmpath.cli import check_config

MODEL = '[[models]]\nname = "m"\n'
POD = '[[pods]]\nid = "a"\nmodel = "m"\naddress = "h:1"\n'


def write(folder: Path, text: str) -> Path:
    file = folder / "warmpath.toml"
    file.write_text(text, encoding="utf-8")
    return file


def checked(file: Path, output: Output, *options: str, status: int = 0) -> Any:
    """Return what a check in JSON says."""
    assert check_config.main([str(file), "--json", *options]) == status
    return output.json()


def errors(file: Path, output: Output, status: int = 1) -> str:
    """Return what a check prints as errors and warnings."""
    assert check_config.main([str(file)]) == status
    return output.err()


def test_all_mistakes_are_printed_and_the_status_is_one(tmp_path: Path, output: Output) -> None:
    file = write(tmp_path, f'{MODEL}tokenizer = "none"\n[limits]\nwait-seconds = 0\nx = 1\n')
    assert check_config.main([str(file)]) == 1
    printed = output.both()
    assert [line.split(": ")[:2] for line in printed.err.splitlines()] == [
        [f"{file}:3", "models[0].tokenizer"],
        [f"{file}:5", "limits.wait-seconds"],
        [f"{file}:6", "limits.x"],
    ]
    assert printed.out == ""
    said = checked(file, output, status=1)
    assert said["ok"] is False
    assert len(said["mistakes"]) == 3


def test_what_several_processes_lack_is_one_mistake(tmp_path: Path, output: Output) -> None:
    state = '[index]\nstate-file = "none/state"\n[server]\nlisten = "127.0.0.1:1"\nprocesses = 3\n'
    file = write(tmp_path, state + MODEL)
    said = f"{file}:2: index.state-file: there is no folder {tmp_path / 'none'}\n"
    assert errors(file, output) == said


@pytest.mark.parametrize("name", ["none/decisions.jsonl", "file/decisions.jsonl"])
def test_a_decision_log_needs_a_folder(name: str, tmp_path: Path, output: Output) -> None:
    (tmp_path / "file").touch()
    file = write(tmp_path, f'[pick]\ndecision-log = "{name}"\n{MODEL}')
    folder = (tmp_path / name).parent
    said = f"{file}:2: pick.decision-log: there is no folder {folder}\n"
    assert errors(file, output) == said


@pytest.mark.parametrize("name", ["-", "decisions.jsonl"])
def test_a_decision_log_may_be_new_or_standard_output(name: str, tmp_path: Path) -> None:
    file = write(tmp_path, f'[pick]\ndecision-log = "{name}"\n{MODEL}')
    assert check_config.main([str(file)]) == 0


def test_each_key_that_a_variable_replaces_is_named_with_it(
    tmp_path: Path, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, MODEL)
    monkeypatch.setenv("WARMPATH_PICK__KEPT_DECISIONS", "1000")
    assert check_config.main([str(file)]) == 0
    told = output.out().splitlines()
    assert told[0] == f"{file}: pick.kept-decisions: replaced by WARMPATH_PICK__KEPT_DECISIONS"
    assert checked(file, output)["replaced"] == [
        {"key": "pick.kept-decisions", "variable": "WARMPATH_PICK__KEPT_DECISIONS"}
    ]
    monkeypatch.setenv("WARMPATH_PICK__KEPT_DECISIONS", "many")
    assert errors(file, output).startswith("WARMPATH_PICK__KEPT_DECISIONS: pick.kept-decisions: ")


def test_a_text_that_is_no_toml_is_one_mistake(tmp_path: Path, output: Output) -> None:
    file = write(tmp_path, "x = ]\n")
    [mistake] = checked(file, output, status=1)["mistakes"]
    assert mistake.startswith(f"{file}:1: ")


@pytest.mark.parametrize("seconds", ["0", "601", "x"])
def test_a_time_that_cannot_be_is_refused_with_status_two(seconds: str) -> None:
    with pytest.raises(SystemExit) as ended:
        check_config.main(["x.toml", "--seconds", seconds])
    assert ended.value.code == 2


def test_pods_are_shown_by_source_and_a_source_that_cannot_be_asked_says_why(
    tmp_path: Path, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    file = write(
        tmp_path,
        f'pods-file = "pods.toml"\n{MODEL}{POD}'
        '[[pod-sets]]\nname = "local"\nmodel = "m"\ndns = "localhost"\n'
        '[[pod-sets]]\nname = "k"\nmodel = "m"\nnamespace = "ns"\nselector = "app=vllm"\n',
    )
    (tmp_path / "pods.toml").write_text(POD.replace('"a"', '"b"'))
    said = checked(file, output, "--seconds", "600")
    static, dns, cluster, listed = said["sources"]
    assert static == {"source": "the configuration", "pods": ["a"], "problem": ""}
    assert dns["source"] == "pod-sets local (dns localhost)"
    assert "local-127.0.0.1" in dns["pods"]
    assert cluster["problem"] == "no service account of a cluster and no kubeconfig"
    assert listed["pods"] == ["b"]
    assert check_config.main([str(file), "--seconds", "600"]) == 0
    printed = output.out()
    assert f"{file}: ok: models 1, pods 1" in printed
    assert "pod-sets k (kubernetes ns/app=vllm): cannot be asked from here: no service" in printed


def test_mistakes_in_the_file_of_pods_count(tmp_path: Path, output: Output) -> None:
    file = write(tmp_path, f'pods-file = "pods.toml"\n{MODEL}')
    (tmp_path / "pods.toml").write_text(POD.replace('"m"', '"x"'))
    assert f"{tmp_path}/pods.toml:3: pods[0].model: no model" in errors(file, output)


def test_what_is_hardly_meant_is_a_warning(tmp_path: Path, output: Output) -> None:
    file = write(tmp_path, MODEL + POD + POD.replace('"a"', '"b"'))
    line = file.read_text().count("\n")
    assert f"{file}:{line}: warning: pods[1].address: 'h:1' is also" in errors(file, output, 0)
    said = checked(file, output)
    assert said["ok"] is True
    assert said["warnings"][1].startswith(f"{file}:{line}: pods[1].address: 'h:1' is also")


def test_what_makes_picks_blind_leads_the_warnings(
    tmp_path: Path, output: Output, model_folder: Path
) -> None:
    silent = POD.replace("[[pods]]", '[[pods]]\nengine = "trtllm"')
    said = checked(write(tmp_path, MODEL + silent + "[queue]\nmax-bytes = 8\n"), output)["warnings"]
    assert "models[0].name: none of its pods has /tokenize: picks for texts are blind" in said[0]
    assert "models[0].name: 1 of its 1 pods send no events, such as a" in said[1]
    assert "queue.max-bytes" in said[2]
    (tmp_path / "tokenizer.json").write_bytes((model_folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    said = checked(write(tmp_path, MODEL + 'tokenizer = "."\n'), output)["warnings"]
    assert "models[0].tokenizer: has no chat template: picks for chats are blind" in said[0]


def test_a_warning_names_the_line_of_its_key_or_the_variable_that_replaces_it(
    tmp_path: Path, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, MODEL + "[queue]\nmax-bytes = 8\n")
    monkeypatch.setenv("WARMPATH_QUEUE__MAX_REQUESTS", "9")
    line = file.read_text().count("\n")
    printed = errors(file, output, 0)
    assert f"{file}:{line}: warning: queue.max-bytes: has no effect" in printed
    assert "WARMPATH_QUEUE__MAX_REQUESTS: warning: queue.max-requests: has no effect" in printed


def test_a_pod_of_the_file_of_pods_is_not_to_have_the_address_or_the_id_of_another_one(
    tmp_path: Path, output: Output
) -> None:
    file = write(tmp_path, f'pods-file = "pods.toml"\n{MODEL}{POD}')
    other = POD.replace('"a"', '"b"')
    pods = tmp_path / "pods.toml"
    pods.write_text(POD + other + other.replace('"b"', '"c"').replace("h:1", "h:2"))
    told = errors(file, output, 0).splitlines()
    assert "warning: models[0].name: 3 of its 3 pods send no events" in told.pop(0)
    assert len(told) == 2
    assert told[0].startswith(f"pods-file {pods}: warning: pod 'a': the configuration has it, too")
    twin = "pod 'b': 'h:1' is also the address of pod 'a' of the configuration"
    assert told[1].startswith(f"pods-file {pods}: warning: {twin}")


def in_days(days: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(days=days)


@pytest.mark.parametrize(
    ("begins", "ends", "status", "said"),
    [
        (-1, 30, 0, ""),
        (-1, 13.5, 0, "warning: server.tls.cert: {file} ends in 13 days, on "),
        (-1, 0.5, 0, "warning: server.tls.cert: {file} ends tomorrow or today, on "),
        (-9, -1, 1, ":4: server.tls.cert: {file} has ended, on "),
        (1, 30, 1, ":4: server.tls.cert: {file} does not begin before "),
    ],
)
def test_a_certificate_that_ends_soon_is_a_warning_and_one_that_has_ended_a_mistake(
    tmp_path: Path, output: Output, begins: float, ends: float, status: int, said: str
) -> None:
    authority = Authority(tmp_path)
    shown = authority.certificate("shown", begins=in_days(begins), ends=in_days(ends))
    file = write(
        tmp_path,
        f'{MODEL}[server.tls]\ncert = "{shown.cert.name}"\nkey = "{shown.key.name}"\n'
        'client-ca = "authority.pem"\n',
    )
    assert check_config.main([str(file)]) == status
    printed = output.both()
    assert said.format(file=shown.cert) in printed.err
    assert bool(printed.err) == bool(said)
    if status == 0:
        assert f"server.tls.cert: valid until {in_days(ends):%Y-%m-%d}" in printed.out
        assert "server.tls.client-ca: valid until " in printed.out
