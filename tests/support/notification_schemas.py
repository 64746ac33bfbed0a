"""The documented request bodies of Slack and PagerDuty, as JSON Schema.

Slack: "Sending messages using incoming webhooks"; PagerDuty: "Events API v2 overview", send an alert event.
"""

from typing import Any

SLACK: dict[str, Any] = {
    "type": "object",
    "required": ["text"],
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 40_000},
        "unfurl_links": {"type": "boolean"},
        "unfurl_media": {"type": "boolean"},
    },
    "additionalProperties": False,
}

_PAYLOAD: dict[str, Any] = {
    "type": "object",
    "required": ["summary", "source", "severity"],
    "properties": {
        "summary": {"type": "string", "minLength": 1, "maxLength": 1024},
        "source": {"type": "string", "minLength": 1},
        "severity": {"enum": ["critical", "error", "warning", "info"]},
        "timestamp": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"},
        "component": {"type": "string"},
        "group": {"type": "string"},
        "class": {"type": "string"},
        "custom_details": {"type": "object"},
    },
    "additionalProperties": False,
}

PAGERDUTY: dict[str, Any] = {
    "type": "object",
    "required": ["routing_key", "event_action"],
    "properties": {
        "routing_key": {"type": "string", "minLength": 32, "maxLength": 32},
        "event_action": {"enum": ["trigger", "acknowledge", "resolve"]},
        "dedup_key": {"type": "string", "minLength": 1, "maxLength": 255},
        "client": {"type": "string"},
        "client_url": {"type": "string"},
        "payload": _PAYLOAD,
        "links": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["href"],
                "properties": {"href": {"type": "string"}, "text": {"type": "string"}},
                "additionalProperties": False,
            },
        },
        "images": {"type": "array"},
    },
    "additionalProperties": False,
    "allOf": [
        {
            "if": {"properties": {"event_action": {"const": "trigger"}}},
            "then": {"required": ["payload"]},
            "else": {"required": ["dedup_key"]},
        }
    ],
}
