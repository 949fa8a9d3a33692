"""The API as /openapi.json tells it: its operations, what to call them with, and whether an answer is as it says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import jsonschema_rs

Json = dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """One method of one path. document: the whole of which `told` is a part."""

    method: str
    path: str
    told: Json
    document: Json

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def roles(self) -> list[str] | None:
        """Those that may call it; None when it takes no token."""
        return None if self.told.get("security") == [] else self.told["x-roles"]

    @property
    def queue_scope(self) -> str:
        scope: str = self.told["x-queue-scope"]
        return scope

    def parameters(self, where: str) -> list[Json]:
        return [each for each in self.told.get("parameters", []) if each["in"] == where]

    def body(self) -> Json | None:
        """The schema of its body, if it takes one."""
        if "requestBody" not in self.told:
            return None
        schema: Json = self.told["requestBody"]["content"]["application/json"]["schema"]
        return self.resolved(schema)

    @property
    def names_object(self) -> bool:
        """Whether its path names a job or a run."""
        return any(each["name"] == "id" for each in self.parameters("path"))

    @property
    def names_queue(self) -> bool:
        """Whether its path, its query or its body may name queues."""
        parameters = self.parameters("path") + self.parameters("query")
        return any(each["name"] == "queue" for each in parameters) or self._has("queue", "queues")

    @property
    def names_runs(self) -> bool:
        """Whether it is a batch."""
        return self._has("runs")

    @property
    def spends_lease(self) -> bool:
        """Whether a run is not any more as it was, once it was let through."""
        return self._has("leaseToken") or self.names_runs

    def _has(self, *names: str) -> bool:
        return not {*names}.isdisjoint((self.body() or {}).get("properties", {}))

    def resolved(self, schema: Json) -> Json:
        while "$ref" in schema:
            schema = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema

    def value(self, schema: Json, known: Mapping[str, Any], name: str = "") -> Any:
        """The smallest value that the schema takes, with what is `known` of a field by its name."""
        schema = self.resolved(schema)
        if name in known:
            return known[name]
        if "examples" in schema:
            return schema["examples"][0]
        match schema:
            case {"type": "object"}:
                needed = {key for key in schema["properties"] if key in schema["required"] or key in known}
                return {key: self.value(schema["properties"][key], known, key) for key in sorted(needed)}
            case {"type": "array"}:
                return [self.value(schema["items"], known, name.removesuffix("s"))]
            case {"enum": [first, *_]}:
                return first
            case {"type": "integer" | "number"}:
                return schema.get("minimum", 1)
            case {"format": "date-time"}:
                return "2026-01-01T00:00:00Z"
        return "text"

    def mismatch(self, response: httpx.Response) -> str | None:
        """What of an answer is not as the document says."""
        told = self.told["responses"].get(str(response.status_code))
        if told is None:
            return f"{response.status_code} is not told: {response.text}"
        kind = response.headers["content-type"].partition(";")[0]
        if kind not in told["content"]:
            return f"{kind} is not told of {response.status_code}"
        if "json" not in kind:
            return None
        validator = _validator(json.dumps(told["content"][kind]["schema"]), json.dumps(self.document["components"]))
        return next((f"{error}" for error in validator.iter_errors(response.json())), None)


@cache
def _validator(schema: str, components: str) -> jsonschema_rs.Draft202012Validator:
    whole = {**json.loads(schema), "components": json.loads(components)}
    return jsonschema_rs.Draft202012Validator(whole, validate_formats=True)


def operations(document: Json) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            yield Operation(method.upper(), path, told, document)
