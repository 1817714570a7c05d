"""The JSON Schema of recipes, from the same classes that check them."""

from __future__ import annotations

from typing import Any

from dsgen.recipe.schema import Recipe


def recipe_json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a recipe file.

    Nothing is required but the format's version: a recipe that extends another may say as little as it likes.
    """
    schema = Recipe.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "dsgen recipe"
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "Path of a recipe that this one changes; mappings are merged, anything else is replaced.",
    }
    properties: dict[str, Any] = schema["properties"]
    # Short forms that are read as a mapping with one key.
    shorthand = {"precision": ["fp32", "fp16", "bf16"]}
    for name, values in shorthand.items():
        long = properties[name]
        description = long.pop("description", "")
        properties[name] = {"anyOf": [{"enum": values}, long], "description": description}
    offload = schema["$defs"]["Offload"]["properties"]
    for name in ("optimizer", "parameters"):
        offload[name]["anyOf"].insert(0, {"enum": ["none", "cpu", "nvme"]})
    schema.pop("required", None)
    for definition in schema["$defs"].values():
        definition.pop("required", None)
    return schema
