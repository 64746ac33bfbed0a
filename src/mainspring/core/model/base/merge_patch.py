"""JSON merge patches (RFC 7396), applied to payloads."""

import msgspec

from mainspring.core.model.base.errors import Invalid


def check_patch(field: str, patch: bytes) -> None:
    """Refuse a patch that is not an object: it would replace the whole payload, which has a separate option."""
    if not isinstance(msgspec.json.decode(patch), dict):
        raise Invalid(field, "is not an object", 'for example {"user": {"mail": null}, "tries": 2}')


def patched(payload: bytes, patch: bytes) -> bytes:
    return msgspec.json.encode(_merge(msgspec.json.decode(payload), msgspec.json.decode(patch)))


def _merge(target: object, patch: object) -> object:
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value)
    return merged
