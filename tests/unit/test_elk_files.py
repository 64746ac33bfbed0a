"""The files for Elasticsearch: each field that our logs write is in the template and conversely, and the parts fit."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from mainspring.runtime.log_lines import FIELDS, LABELS, MORE_FIELDS, OURS, THEIRS

ELK = Path(__file__).parents[2] / "deploy" / "elk"
TEMPLATE = json.loads((ELK / "index-template.json").read_text())
LOGSTASH = (ELK / "logstash.conf").read_text()


def fields_of(properties: dict[str, Any], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, field in properties.items():
        if "properties" in field:
            found |= fields_of(field["properties"], f"{before}{name}.")
        else:
            found[before + name] = field["type"]
    return found


def mapped() -> dict[str, str]:
    return fields_of(TEMPLATE["template"]["mappings"]["properties"])


def test_the_template_has_exactly_what_our_logs_write() -> None:
    assert mapped().keys() == {*FIELDS.values(), *MORE_FIELDS, LABELS}


def test_what_is_a_number_is_one_there() -> None:
    numbers = {name for name, kind in mapped().items() if kind in ("long", "integer")}
    assert numbers == {"mainspring.attempt", "mainspring.session", "process.pid"}


def test_labels_are_words_whatever_they_are() -> None:
    [rule] = TEMPLATE["template"]["mappings"]["dynamic_templates"]
    assert rule["labels"]["path_match"] == f"{LABELS}.*"
    assert rule["labels"]["mapping"]["type"] == "keyword"


def test_everybody_writes_to_the_stream_that_the_template_is_for() -> None:
    filebeat = yaml.safe_load((ELK / "filebeat.yml").read_text())
    stream = filebeat["output.elasticsearch"]["index"]
    said = dict(re.findall(r'data_stream_(type|dataset|namespace) => "(\w+)"', LOGSTASH))
    assert f"{said['type']}-{said['dataset']}-{said['namespace']}" == stream
    assert TEMPLATE["index_patterns"] == [stream.rpartition("-")[0] + "-*"]
    [parser] = filebeat["filebeat.inputs"][0]["parsers"]
    assert (parser["ndjson"]["target"], parser["ndjson"]["expand_keys"]) == ("", True)


def test_logstash_parts_the_names_of_all_fields() -> None:
    [fields] = re.findall(r"fields => \[(.*?)\]", LOGSTASH, re.DOTALL)
    assert sorted(re.findall(r'"([^"]+)"', fields)) == sorted(name for name in mapped() if "." in name)
    assert LOGSTASH.count("{") - LOGSTASH.count('\\{"') == LOGSTASH.count("}")


def test_saved_searches_look_at_fields_that_there_are() -> None:
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
