"""OpenAPI 3.1 of the whole port, made from the tables that the handlers are made from. Core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import tandemmq
from tandemmq.admin.commands import SECTIONS
from tandemmq.admin.shape import AdminCommand
from tandemmq.plane import messagepaths as messages
from tandemmq.plane.options import Parameter, Parameters, parameters, usage
from tandemmq.plane.results import RESULTS
from tandemmq.plane.schemas import Schema, schema_of

TOKEN: Final[list[Any]] = [{"token": []}]
#: reading wants nothing on the machine of the process, and the token from elsewhere
EITHER: Final[list[Any]] = [{}, {"token": []}]
NOBODY: Final[list[Any]] = []
ABOUT: Final = (
    "What `tandem admin` can ask and do, messages, and what changes. Reading wants no token on the machine of the "
    "process, unless access control is on; everything else wants `Authorization: Bearer TOKEN`, the process's "
    "httpToken. docs/howto/http.md has examples."
)
STATUSES: Final[Mapping[str, str]] = {
    "400": "a parameter or the body is wrong",
    "401": "the token is missing or wrong",
    "403": "a host name that is not ours, a page of another origin, or no right to it",
    "404": "there is no such thing",
    "408": "the body did not come",
    "409": "a server of the cluster said no: its code and words",
    "413": "the body is too long",
    "415": "the body has a Content-Encoding",
    "502": "a server of the cluster cannot be reached",
    "503": "too many requests, or nobody to ask: come back after Retry-After seconds",
    "504": "it took too long; whether it was carried out is unknown",
}


def document(role: str) -> dict[str, Any]:
    """The document of a process of this role."""
    paths: dict[str, Any] = {
        "/healthz": _get(
            "it runs; with the token: what it is and how far it came", _HEALTH, NOBODY
        ),
        "/readyz": _ready(),
        "/version": _get("which program this is", _VERSION, NOBODY),
        "/metrics": _metrics(),
        "/api/admin": _get("every command", _COMMANDS, EITHER),
        "/api/openapi.json": _get("this document", {"type": "object"}, EITHER),
    }
    paths |= messages.paths()
    for title, commands in SECTIONS:
        for command in commands:
            paths[f"/api/admin/{command.name}"] = _command(title, command)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"TandemMQ, {role}",
            "version": tandemmq.__version__,
            "description": ABOUT,
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": _PROBLEM, "Warning": _WARNING},
            "responses": {f"Problem{status}": _problem(text) for status, text in STATUSES.items()},
        },
    }


def answer_schema(document: Mapping[str, Any], path: str, method: str, status: int = 200) -> Schema:
    """The schema of a JSON answer. Raises KeyError where the document has none."""
    found = document["paths"][path][method]["responses"][str(status)]
    schema: Schema = found["content"]["application/json"]["schema"]
    return schema


_TEXT: Final = {"type": "string"}
_PROBLEM: Final = {
    "type": "object",
    "properties": {"error": _TEXT, "hint": _TEXT},
    "required": ["error", "hint"],
}
_WARNING: Final = {
    "type": "object",
    "properties": {"broker": _TEXT, "remark": _TEXT},
    "required": ["broker", "remark"],
}
_HEALTH: Final = {
    "type": "object",
    "properties": {"status": {"const": "ok"}},
    "required": ["status"],
}
_READY: Final = {
    "type": "object",
    "properties": {
        "status": {"enum": ["ready", "not ready"]},
        "role": _TEXT,
        "why": {"type": "array", "items": _TEXT},
    },
    "required": ["status", "role", "why"],
}
_VERSION: Final = {
    "type": "object",
    "properties": {"name": {"const": "TandemMQ"}, "version": _TEXT, "role": _TEXT, "python": _TEXT},
    "required": ["name", "version", "role", "python"],
}
_COMMANDS: Final = {
    "type": "object",
    "properties": {
        "commands": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": _TEXT,
                    "section": _TEXT,
                    "summary": _TEXT,
                    "writes": {"type": "boolean"},
                    "parameters": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "name": _TEXT,
                                "required": {"type": "boolean"},
                                "help": _TEXT,
                                "schema": {"type": "object"},
                            },
                            "required": ["name", "required", "help", "schema"],
                        },
                    },
                },
                "required": ["name", "section", "summary", "writes", "parameters"],
            },
        }
    },
    "required": ["commands"],
}


def _problem(text: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": text, "content": content}


def responses(schema: Schema, what: str, statuses: tuple[str, ...] = tuple(STATUSES)) -> Schema:
    """200 with this JSON, and the errors."""
    found: Schema = {
        "200": {"description": what, "content": {"application/json": {"schema": schema}}}
    }
    return found | {each: {"$ref": f"#/components/responses/Problem{each}"} for each in statuses}


def _get(summary: str, schema: Schema, security: list[Any]) -> Schema:
    errors = ("401", "403")
    found = {
        "summary": summary,
        "security": security or EITHER,
        "responses": responses(schema, summary, errors),
        "tags": ["process"],
    }
    return {"get": found}


def _ready() -> Schema:
    found = _get("whether it serves what its role promises", _READY, NOBODY)
    content = {"application/json": {"schema": _READY}}
    found["get"]["responses"]["503"] = {"description": "it does not, and why", "content": content}
    return found


def _metrics() -> Schema:
    page = {"text/plain": {"schema": _TEXT}}
    answers: Schema = {"200": {"description": "for Prometheus", "content": page}}
    answers["401"] = {"description": "not from another machine, unless httpMetricsOpen=true"}
    operation = {
        "summary": "metrics",
        "security": EITHER,
        "responses": answers,
        "tags": ["process"],
    }
    return {"get": operation}


# --- commands ---


def _command(title: str, command: AdminCommand) -> Schema:
    found = parameters(command)
    result = RESULTS[command.name]
    asked = schema_of(result)
    ordered = {} if command.token_for else asked
    options = [each for each in found.all if each.dest not in command.token_for]
    text = _either_text(found)
    paths: Schema = {
        "post": {
            "operationId": f"{command.name}Post" if not command.writes else command.name,
            "summary": command.summary,
            "description": text,
            "tags": [title],
            "security": TOKEN,
            "requestBody": {
                "required": any(each.required for each in found.all),
                "content": {"application/json": {"schema": _body(found)}},
            },
            "responses": responses(answer_of(ordered), "what --json prints"),
        }
    }
    if not command.writes:
        paths["get"] = {
            "operationId": command.name,
            "summary": command.summary,
            "description": text,
            "tags": [title],
            "security": EITHER,
            "parameters": [_query(each) for each in options],
            "responses": responses(answer_of(asked), "what --json prints"),
        }
    return paths


def answer_of(result: Schema) -> Schema:
    """What a command answers: adminapi.Answer."""
    return {
        "type": "object",
        "properties": {
            "result": result,
            "exit_code": {"type": "integer", "description": "how the command would end; 0: well"},
            "warnings": {"type": "array", "items": {"$ref": "#/components/schemas/Warning"}},
            "truncated": {"type": "boolean", "description": "there was more"},
        },
        "required": ["result", "exit_code"],
    }


def _either_text(found: Parameters) -> str:
    lines = [
        f"{'Exactly' if required else 'At most'} one of {usage(names)}."
        for names, required in found.either
    ]
    return " ".join(lines)


def _query(option: Parameter) -> Schema:
    return {
        "name": option.name,
        "in": "query",
        "required": option.required,
        "description": option.help,
        "schema": dict(option.schema),
    }


def _body(found: Parameters) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {each.name: {**each.schema, "description": each.help} for each in found.all},
        "additionalProperties": False,
    }
    if required := [each.name for each in found.all if each.required]:
        schema["required"] = required
    choices = [
        {"oneOf": [{"required": [name]} for name in names]} for names, must in found.either if must
    ]
    if choices:
        schema["allOf"] = choices
    return schema
