"""Converter for CronJobs of Kubernetes: reads their manifests."""

import re
from collections.abc import Mapping
from typing import Any

from mainspring.core.runtime.plain_yaml import read_yaml
from mainspring.features.schedules.commands.converters.commands import COMMANDS_NOTE, TIMEOUT_NOTE, build_payload
from mainspring.features.schedules.commands.converters.conversion import Conversion, UntranslatableError
from mainspring.features.schedules.commands.converters.kubernetes_schedules import translate_schedule

_OVERLAP = {"Allow": "allow", "Forbid": "skip", "Replace": "cancel"}
_ZONE = re.compile(r"^(?:CRON_TZ|TZ)=(\S+)\s+")
_RETRIES = 6


def convert(text: str, *, where: str, timezone: str | None) -> Conversion:
    found = Conversion()
    others = 0
    for document in read_yaml(text, where):
        items = document.get("items") if isinstance(document, Mapping) and document.get("kind") == "List" else None
        for manifest in items if isinstance(items, list) else [document]:
            if isinstance(manifest, Mapping) and manifest.get("kind") == "CronJob":
                _convert_cron_job(found, manifest, timezone)
            elif manifest is not None:
                others += 1
    if others:
        found.note(f"skipped {others} objects that are not CronJobs")
    if found.translated:
        found.note(COMMANDS_NOTE)
        found.note(TIMEOUT_NOTE)
    return found


def _convert_cron_job(found: Conversion, manifest: Mapping[str, Any], timezone: str | None) -> None:
    metadata = _check_mapping(manifest.get("metadata"))
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    namespace = str(metadata.get("namespace") or "")
    where = f"CronJob {namespace}/{name}" if namespace else f"CronJob {name}"
    warnings: list[str] = []
    try:
        if not name:
            raise UntranslatableError("it has no name")
        spec = _check_mapping(manifest.get("spec"))
        if spec.get("suspend") is True:
            raise UntranslatableError("it is suspended; remove suspend to translate it")
        job = _check_mapping(_check_mapping(spec.get("jobTemplate")).get("spec"))
        pod = _check_mapping(_check_mapping(job.get("template")).get("spec"))
        fields: dict[str, object] = {"name": name, "task": "shell"}
        fields |= _convert_trigger(spec, timezone, warnings)
        fields["payload"] = _build_command(pod, warnings)
        retries = job.get("backoffLimit")
        fields["maxRetries"] = _RETRIES if retries is None else retries
        limit = job.get("activeDeadlineSeconds")
        if limit is not None:
            fields["timeout"] = f"{limit}s"
            if fields["maxRetries"]:
                warnings.append("activeDeadlineSeconds was for all attempts together; timeout is for each")
        if pod.get("activeDeadlineSeconds") is not None:
            fields["timeout"] = f"{pod['activeDeadlineSeconds']}s"
        fields["overlap"] = _OVERLAP.get(str(spec.get("concurrencyPolicy") or "Allow"), "allow")
        deadline = spec.get("startingDeadlineSeconds")
        if deadline is not None:
            # Kubernetes starts the newest missed run if it is at most this late, and no other.
            fields["catchUp"] = {"mode": "all", "cap": 1, "maxAge": f"{deadline}s"}
        several = [option for option in ("parallelism", "completions") if job.get(option) not in (None, 1)]
        warnings += [f"{option} {job[option]} is dropped: a tick creates one run" for option in several]
    except UntranslatableError as error:
        found.refuse(where, name, str(error))
        return
    found.add(where, fields, warnings)


def _convert_trigger(spec: Mapping[str, Any], timezone: str | None, warnings: list[str]) -> dict[str, object]:
    expression = str(spec.get("schedule") or "").strip()
    if not expression:
        raise UntranslatableError("it has no schedule")
    zone = spec.get("timeZone") or timezone
    if inside := _ZONE.match(expression):
        zone, expression = inside[1], expression[inside.end() :]
    if zone is None:
        warnings.append("it has no timeZone; the cluster's zone is read as UTC; see --tz")
        zone = "UTC"
    when = translate_schedule(expression)
    if "every" in when:
        return when
    # How the parser of Kubernetes treats clock changes.
    changes = {} if zone in ("UTC", "Etc/UTC") else {"dstGap": "skip", "dstFold": "twice"}
    return {**when, "timezone": str(zone), **changes}


def _build_command(pod: Mapping[str, Any], warnings: list[str]) -> dict[str, object]:
    containers = _check_list(pod.get("containers"))
    if len(containers) != 1 or pod.get("initContainers"):
        raise UntranslatableError("it must have exactly one container")
    container = _check_mapping(containers[0])
    image = str(container.get("image") or "")
    command = [str(word) for word in _check_list(container.get("command"))]
    if not command:
        raise UntranslatableError(f"it runs the entry point of the image {image}, and an image cannot be translated")
    command += [str(word) for word in _check_list(container.get("args"))]
    if any("$(" in word for word in command) and container.get("env"):
        warnings.append("$(NAME) in its arguments is not substituted")
    environment = {}
    for variable in map(_check_mapping, _check_list(container.get("env"))):
        name = str(variable.get("name"))
        if "valueFrom" in variable:
            warnings.append(f"the variable {name} comes from the cluster and is dropped")
        else:
            environment[name] = str(variable.get("value") or "")
    warnings += [
        f"{option} is dropped" for option in ("envFrom", "volumeMounts", "workingDir") if container.get(option)
    ]
    warnings.append(f"it ran in the image {image}; the workers' machines need the program {command[0]}")
    return build_payload(command, environment)


def _check_list(value: object) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise UntranslatableError(f"{value!r:.40} is not a list")
    return value or []


def _check_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
