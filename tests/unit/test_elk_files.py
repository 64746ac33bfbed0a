"""The Elasticsearch files: the index template has exactly the fields of the logs, and the files fit together."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from mainspring.core.runtime.log_lines import FIELDS, LABELS, MORE_FIELDS, OURS, THEIRS

DEPLOY = Path(__file__).parents[2] / "deploy"
ELK = DEPLOY / "elk"
TEMPLATE = json.loads((ELK / "index-template.json").read_text())
LOGSTASH = (ELK / "logstash.conf").read_text()


FILEBEAT = yaml.safe_load((ELK / "filebeat.yml").read_text())
INPUTS = {given["id"].removeprefix("mainspring-"): given for given in FILEBEAT["filebeat.inputs"]}


def flatten_fields(properties: dict[str, Any], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, field in properties.items():
        if "properties" in field:
            found |= flatten_fields(field["properties"], f"{before}{name}.")
        else:
            found[before + name] = field["type"]
    return found


def mapped() -> dict[str, str]:
    return flatten_fields(TEMPLATE["template"]["mappings"]["properties"])


def test_the_template_has_exactly_the_fields_of_the_logs() -> None:
    assert mapped().keys() == {*FIELDS.values(), *MORE_FIELDS, LABELS}


def test_numeric_fields_are_mapped_as_numbers() -> None:
    numbers = {name for name, kind in mapped().items() if kind in ("long", "integer")}
    assert numbers == {"mainspring.attempt", "mainspring.session", "process.pid"}


def test_labels_are_mapped_as_keywords() -> None:
    [rule] = TEMPLATE["template"]["mappings"]["dynamic_templates"]
    assert rule["labels"]["path_match"] == f"{LABELS}.*"
    assert rule["labels"]["mapping"]["type"] == "keyword"


def test_filebeat_and_logstash_write_to_the_data_stream_of_the_template() -> None:
    stream = FILEBEAT["output.elasticsearch"]["index"]
    parts = dict(re.findall(r'data_stream_(type|dataset|namespace) => "(\w+)"', LOGSTASH))
    assert f"{parts['type']}-{parts['dataset']}-{parts['namespace']}" == stream
    assert TEMPLATE["index_patterns"] == [stream.rpartition("-")[0] + "-*"]
    for given in INPUTS.values():
        parser = given["parsers"][-1]["ndjson"]
        assert (parser["target"], parser["expand_keys"]) == ("", True)


def test_container_logs_are_read_where_the_container_runtime_writes_them() -> None:
    manifests = yaml.safe_load_all((DEPLOY / "kubernetes" / "mainspring.yaml").read_text())
    names = {one["metadata"]["name"] for one in manifests if one and one["kind"] in ("Deployment", "StatefulSet")}
    [path] = INPUTS["kubernetes"]["paths"]
    assert names
    for name in names:
        assert Path(f"/var/log/containers/{name}-5d9c-x2k_jobs_api-0a1b.log").match(path)
    assert INPUTS["kubernetes"]["prospector.scanner.symlinks"] is True
    for kind in ("kubernetes", "docker"):
        assert next(iter(INPUTS[kind]["parsers"][0])) == "container"


def test_only_logs_of_mainspring_services_are_read_under_compose() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    _, drop = INPUTS["docker"]["processors"]
    pattern = re.compile(drop["drop_event"]["when"]["not"]["regexp"]["container.name"])
    image = compose["services"]["api"]["image"]
    found = {name for name in compose["services"] if pattern.match(f"{compose['name']}-{name}-1")}
    assert found == {name for name, service in compose["services"].items() if service.get("image") == image}


def test_units_are_read_from_the_journal_by_the_name_of_their_program() -> None:
    [match] = INPUTS["systemd"]["include_matches.match"]
    for unit in (DEPLOY / "systemd").glob("*.service"):
        [program] = re.findall(r"^ExecStart=(\S+)", unit.read_text(), re.MULTILINE)
        assert match == f"SYSLOG_IDENTIFIER={Path(program).name}"


def test_logstash_splits_the_names_of_all_fields() -> None:
    [fields] = re.findall(r"fields => \[(.*?)\]", LOGSTASH, re.DOTALL)
    assert sorted(re.findall(r'"([^"]+)"', fields)) == sorted(name for name in mapped() if "." in name)
    assert LOGSTASH.count("{") - LOGSTASH.count('\\{"') == LOGSTASH.count("}")


def test_saved_searches_use_existing_fields() -> None:
    saved = [json.loads(line) for line in (ELK / "saved-search.ndjson").read_text().splitlines()]
    [view] = [one for one in saved if one["type"] == "index-pattern"]
    assert [view["attributes"]["title"]] == TEMPLATE["index_patterns"]
    searches = [one for one in saved if one["type"] == "search"]
    assert len(searches) == len(saved) - 1
    datasets = set()
    for search in searches:
        assert set(search["attributes"]["columns"]) <= mapped().keys()
        source = json.loads(search["attributes"]["kibanaSavedObjectMeta"]["searchSourceJSON"])
        assert set(re.findall(r"([\w.@]+) :", source["query"]["query"])) <= mapped().keys()
        datasets |= set(re.findall(r'event\.dataset : "([^"]+)"', source["query"]["query"]))
        assert [one["id"] for one in search["references"]] == [view["id"]]
    assert datasets == {OURS, THEIRS}
