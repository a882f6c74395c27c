"""Files that may be gzipped are recognised by their content."""

import gzip
from pathlib import Path

import pytest

from warmpath.lab.local.workload import open_gzipped, read_trace

LINE = b'{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [7]}\n'


@pytest.mark.parametrize("name", ["trace", "trace.gz"])
@pytest.mark.parametrize("is_gzipped", [False, True])
def test_the_name_of_a_file_says_nothing_of_its_content(
    name: str, is_gzipped: bool, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(LINE) if is_gzipped else LINE)
    with open_gzipped(path) as file:
        assert file.read() == LINE
    assert read_trace(path)[0].hash_ids == (7,)
