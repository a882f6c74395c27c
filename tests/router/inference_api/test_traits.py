"""The traits of a model's template are found by any of its names, and None where they cannot be."""

from datetime import UTC, datetime

import pytest

from tests.prefixstore.chats.inline_renderer import InlineRenderer
from warmpath.prefixstore.chats.chat import ModelTemplate, TemplateTraits
from warmpath.prefixstore.chats.render_worker import RenderCrashedError, RenderTimeoutError
from warmpath.prefixstore.waiting import ClosedError, FullError
from warmpath.router.inference_api.request import traits_of
from warmpath.router.prompt.models import Model, ModelTable


def renderer() -> InlineRenderer:
    return InlineRenderer(clock=lambda: datetime.now(UTC), max_output_bytes=1 << 20)


MODELS = ModelTable()
MODELS.add(Model("base"), ["alias"], ["adapter"])
MODELS.add(Model("ids-only"), [], [])


async def test_a_templates_traits_are_found_by_every_name_of_its_model() -> None:
    known = renderer()
    known.register("base", ModelTemplate("{{ messages[0].content }}"))
    expected = TemplateTraits(
        wants_system_first=False, heeds_no_effort=False, writes_calls_as_given=False
    )
    for name in ("base", "alias", "adapter", "base:other"):
        assert await traits_of(MODELS, known, 1.0, name) == expected
    for name in ("unknown", "ids-only", ""):
        assert await traits_of(MODELS, known, 1.0, name) is None


@pytest.mark.parametrize(
    "error",
    [
        RenderTimeoutError("late"),
        RenderCrashedError("gone"),
        FullError("full"),
        ClosedError("closed"),
    ],
)
async def test_a_template_that_cannot_be_tried_out_now_has_none(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = renderer()

    async def fail(*_: object) -> TemplateTraits:
        raise error

    monkeypatch.setattr(failing, "traits", fail)
    assert await traits_of(MODELS, failing, 1.0, "base") is None
