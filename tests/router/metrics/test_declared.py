"""The metrics of a running router are the declared ones, and so is their page."""

from pathlib import Path

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from tests.router.service_stand import standing
from warmpath.lab.pages.metrics import page
from warmpath.router.metrics.declared import DECLARED, metric, single

ROOT = Path(__file__).parents[3]
OPEN_METRICS = (
    "application/openmetrics-text;version=1.0.0;q=0.75,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=0.0.4;q=0.25,*/*;q=0.1"
)
UNASKED = ("queue_", "shared_")
"""Beginnings of the metrics of parts that a router has only where they are configured."""


async def test_a_router_shows_exactly_the_declared_metrics(
    tmp_path: Path, model_folder: Path
) -> None:
    async with standing(tmp_path, model_folder) as stand:
        url = f"http://{stand.router.http_address}/metrics"
        async with aiohttp.ClientSession() as http:
            async with http.get(url) as answer:
                text = await answer.text()
            # As Prometheus asks; the parser is as strict as the format.
            async with http.get(url, headers={"Accept": OPEN_METRICS}) as answer:
                assert answer.content_type == "application/openmetrics-text"
                strict = list(open_metrics_families(await answer.text()))
            odd = {"Accept": "application/openmetrics-text;version=x"}
            async with http.get(url, headers=odd) as answer:
                assert (answer.status, answer.content_type) == (200, "text/plain")
    plain = {one.name for one in text_string_to_metric_families(text)}
    assert {one.name for one in strict} == plain
    families = text_string_to_metric_families(text)
    seen = {one.name.removeprefix("warmpath_"): one for one in families}
    shown = {name for name in seen if not name.startswith(UNASKED)}
    asked = {name for name in DECLARED if not name.startswith(UNASKED)}
    assert shown == asked
    for name, family in seen.items():
        declared = DECLARED[name]
        assert (family.type, family.documentation) == (declared.kind, declared.text)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(declared.labels), name


def test_the_page_has_what_is_declared() -> None:
    written = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert written == page(), "make docs"


def test_a_metric_that_is_not_declared_so_is_an_error() -> None:
    with pytest.raises(KeyError):
        single("unheard_of", 1)
    with pytest.raises(KeyError, match="histogram"):
        metric("request_seconds")
