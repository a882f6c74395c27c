"""The pages on configuration have a row for every key of the schema, with its default, and no other."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.config import schema
from router.config.reloadable import reloadable_keys

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "configuration.md").read_text(encoding="utf-8")
SHARED = (DOCS / "shared-index-reference.md").read_text(encoding="utf-8")
TABLES: dict[str, type[schema.Table]] = {
    "`[server]`": schema.ServerTable,
    "`[server.http2]`": schema.Http2Table,
    "`[server.tls]`": schema.ServerTlsTable,
    "`[[clients]]`": schema.ClientSpec,
    "`[limits]`": schema.LimitsTable,
    "`[index]`": schema.IndexTable,
    "`[endpoint-picker]`": schema.EndpointPickerTable,
    "`[endpoint-picker.headers]`": schema.PickerHeadersTable,
    "`[prefix-store]`": schema.PrefixStoreTable,
    "`[templates]`": schema.TemplatesTable,
    "`[tokenizers]`": schema.TokenizersTable,
    "`[events]`": schema.EventsTable,
    "`[booking]`": schema.BookingTable,
    "`[queue]`": schema.QueueTable,
    "`[llmd]`": schema.LlmdTable,
    "`[llmd.weights]`": schema.TierWeightsTable,
    "`[probe]`": schema.ProbeTable,
    "`[watch]`": schema.WatchTable,
    "`[[models]]`": schema.ModelSpec,
    "`[models.hub]`": schema.HubTable,
    "`[models.placeholders]`": schema.PlaceholdersTable,
    "`[[pods]]`": schema.PodSpec,
    "`[[pod-sets]]`": schema.PodSetSpec,
}
ELSEWHERE = {schema.PickTable, schema.SharedIndexTable}


def rows(page: str, heading: str) -> dict[str, str]:
    """Return the defaults of a section's keys, as they are written."""
    section = re.split(r"\n## ", page.partition(f"\n## {heading}\n")[2])[0]
    found = {}
    for keys, default in re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", section, re.MULTILINE):
        for key in re.findall(r"`([a-z0-9-]+)`", keys):
            found[key] = default
    return found


def default_of(written: str) -> Any:
    """Return the value that a default's words stand for; the words themselves where they are none."""
    written = written.strip("`")
    if size := re.fullmatch(r"(\d+) MiB", written):
        return int(size[1]) << 20
    if re.fullmatch(r"[\d.]+", written):
        return float(written)
    return {"true": True, "false": False}.get(written, written)


def check(table: type[schema.Table], page: str, heading: str) -> None:
    written = rows(page, heading)
    assert set(written) == set(table.__struct_encode_fields__)
    for field in msgspec.structs.fields(table):
        told = default_of(written[field.encode_name])
        is_told = isinstance(field.default, int | float) or (
            isinstance(field.default, str) and field.default
        )
        if is_told:
            assert told == field.default, field.encode_name
        is_required = field.default is field.default_factory is msgspec.NODEFAULT
        assert (told == "*required*") is is_required, field.encode_name


@pytest.mark.parametrize("heading", TABLES)
def test_every_key_has_a_row_with_its_default(heading: str) -> None:
    check(TABLES[heading], PAGE, heading)


def test_every_key_of_the_shared_index_has_a_row_with_its_default() -> None:
    check(schema.SharedIndexTable, SHARED, "A router's settings")


def test_every_table_of_the_schema_is_on_a_page() -> None:
    tables = {
        one
        for one in vars(schema).values()
        if isinstance(one, type) and issubclass(one, schema.Table)
    }
    assert tables - {schema.Table, schema.Config} == {*TABLES.values(), *ELSEWHERE}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_every_key_that_a_page_names_with_its_table_exists(page: Path) -> None:
    known: dict[str, type[schema.Table]] = {
        **TABLES,
        "`[pick]`": schema.PickTable,
        "`[shared-index]`": schema.SharedIndexTable,
    }
    keys = {
        (heading.strip("`[]"), key)
        for heading, table in known.items()
        for key in table.__struct_encode_fields__
    }
    tables = {table for table, _ in keys}
    named = re.findall(
        r"`([a-z-]+)\.([a-z][a-z-]+)(?: = [^`]*)?`", page.read_text(encoding="utf-8")
    )
    assert {one for one in named if one[0] in tables and one[1] != "md"} <= keys


def test_the_page_names_every_key_that_a_running_router_takes_over() -> None:
    told = PAGE.partition("\n## ")[0].partition("SIGHUP")[2]
    queue = {f"queue.{key}" for key in schema.QueueTable.__struct_encode_fields__}
    known = set(reloadable_keys())
    assert queue <= known
    named = set(re.findall(r"`([a-z]+\.[a-z-]+)`", told)) | queue | {"pods"}
    assert named == known
