"""The access logs of docs/guides/simulate-and-verify.md are read as they are printed."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.docs.test_pages import ROOT
from warmpath.lab.simulate.traffic.access_log import read_traffic

PAGE = (ROOT / "docs" / "guides" / "simulate-and-verify.md").read_text(encoding="utf-8")
LOGS = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
BODY = (
    '{"model": "m", "stream": true, "messages": [{"role": "user", "content": "one\\n\\"two\\""}]}'
)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "access.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("log", LOGS, ids=["hashes", "texts"])
def test_a_printed_log_has_requests_at_two_times(tmp_path: Path, log: str) -> None:
    requests = read_traffic(write(tmp_path, log)).requests
    assert len({one.at for one in requests}) == len(requests) == 2
    assert all(one.keys for one in requests)


def test_a_line_of_the_printed_nginx_format_is_read(tmp_path: Path) -> None:
    [line] = re.findall(r"^log_format warmpath escape=json '(.*)';$", PAGE, re.MULTILINE)
    values = {
        "msec": "1772366400.250",
        # escape=json writes a value as the inside of a JSON string.
        "request_body": json.dumps(BODY)[1:-1],
        "body_bytes_sent": "2200",
        "http_x_session_id": "",
    }
    logged = re.sub(r"\$(\w+)", lambda found: values[found[1]], line)
    [one] = read_traffic(write(tmp_path, logged)).requests
    assert (one.at, one.output_tokens, one.session) == (1772366400.25, 10, "")


def test_a_line_of_the_printed_envoy_format_is_read(tmp_path: Path) -> None:
    [printed] = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    [log] = yaml.safe_load(printed)["access_log"]
    values = {
        "%START_TIME%": "2026-03-01T12:00:00.250Z",
        "%DYNAMIC_METADATA(warmpath:request_body)%": BODY,
        "%BYTES_SENT%": 2200,
        "%REQ(X-SESSION-ID)%": None,
    }
    fields = log["typed_config"]["log_format"]["json_format"]
    line = {name: values[operator] for name, operator in fields.items()}
    [one] = read_traffic(write(tmp_path, json.dumps(line))).requests
    assert (one.at, one.output_tokens) == (1772366400.25, 10)
