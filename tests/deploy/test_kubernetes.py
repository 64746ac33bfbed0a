"""The chart and the manifests: lint them, render them, check them with the schemas, run their pods as processes."""

import asyncio
import itertools
import json
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import yaml
from typer.main import get_command

import mainspring
from mainspring.cli.main import application
from mainspring.cli.processes import PATIENCE
from mainspring.config.loading import load
from mainspring.core.model.alerts.alert_messages import QUEUE as NOTIFICATIONS
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.events.webhooks import QUEUE as WEBHOOKS
from mainspring.core.runtime.metrics.declared import ALL
from tests.support.command_line import terminate
from tests.support.processes import Processes, free_port
from tests.support.waiting import DEADLINE_SECONDS, eventually
from tools import manifests
from tools.services import ROOT
from tools.services.kubernetes import VERSIONS, Kubeconform

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("system")]

SECRET = {
    "store": "postgresql://mainspring:s3cret@db/mainspring",
    "metrics-token": "t0ken",
    "ui-secret": "x" * 32,
    "autoscale-key": "k",
}
#: Values of the chart that the tests render, by name.
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "bare": {"networkPolicy": {"enabled": False}, "migration": {"enabled": False}},
    "full": {
        "image": {"repository": "registry.example.org/jobs/mainspring", "tag": "1.2.3"},
        "imagePullSecrets": [{"name": "registry"}],
        "settings": {
            "retention.succeeded": "3d",
            "shards": 64,
            # Helm reads it as a float.
            "worker.recycle_memory": 1_000_000_000,
            "tracing.ratio": 0.25,
            "vault.address": "https://vault.example.org:8200",
            "vault.role_id": "mainspring",
            "vault.secret_id_file": "/etc/mainspring/vault/secret-id",
            "production": True,
            "api.trusted_proxies": "10.0.0.0/8",
        },
        "env": [{"name": "MAINSPRING_DISPATCH_KEY", "valueFrom": {"secretKeyRef": {"name": "more", "key": "seal"}}}],
        "api": {"ingress": {"enabled": True, "host": "jobs.example.org", "tlsSecret": "tls"}},
        "workers": {
            "default": None,
            "mail": {"application": "tasks:app", "queues": {"mail": 20}, "autoscaling": {"by": "hpa", "max": 40}},
            "video": {
                "application": "studio.tasks:app",
                "image": "studio:7",
                "queues": {"video": 2, "thumbs": 8},
                "graceSeconds": 600,
                "autoscaling": {"by": "keda", "min": 0},
                "env": [{"name": "MAINSPRING_WORKER_CHILDREN", "value": "4"}],
            },
        },
        "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app": "shop"}}}]},
        "volumes": [{"name": "vault", "secret": {"secretName": "vault"}}],
        "volumeMounts": [{"name": "vault", "mountPath": "/etc/mainspring/vault", "readOnly": True}],
        "serviceAccountName": "jobs",
        "podAnnotations": {"example.org/injected": "true"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "jobs", "operator": "Exists"}],
    },
}


@pytest.fixture(scope="session")
def helm(address_of: Callable[[str], str]) -> str:
    return address_of("helm")


@pytest.fixture(params=VALUES)
def values(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(VALUES[request.param]))
    return file


def objects(text: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(text) if found]


def of_kind(found: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [one for one in found if one["kind"] in kinds]


def pods(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["spec"]["template"] for one in of_kind(found, "Deployment", "Job")]


def environment(container: dict[str, Any]) -> dict[str, str]:
    """Return the environment that a kubelet would give to a container."""
    known = SECRET | {"seal": "s" * 40, "slack-url": "https://hooks.slack.example/x"}
    made = {
        each["name"]: each["value"] if "value" in each else known[each["valueFrom"]["secretKeyRef"]["key"]]
        for each in container["env"]
    }
    assert len(made) == len(container["env"]), "a variable is set twice"
    return made


def test_helm_lint_passes(helm: str, values: Path) -> None:
    command = [helm, "lint", "--strict", f"--kube-version={VERSIONS[-1]}", f"--values={values}", str(manifests.CHART)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_rendered_objects_conform_to_the_kubernetes_schemas(
    helm: str, values: Path, version: str, address_of: Callable[[str], str], tmp_path: Path
) -> None:
    kubeconform = address_of("kubeconform")
    (tmp_path / "rendered.yaml").write_text(manifests.rendered(helm, f"--values={values}"))
    status, output = conform(kubeconform, version, tmp_path / "rendered.yaml", *manifests.FOLDER.glob("[!p]*.yaml"))
    assert status == 0, output


def test_the_schema_check_finds_an_unknown_field(address_of: Callable[[str], str], tmp_path: Path) -> None:
    """Proves that the check of the rendered objects can fail."""
    for number, (old, new) in enumerate(
        {"maxUnavailable": "maxUnavailble", "valueLocation": "valueLoc", "topologyKey: k": "topologyKey: 1 #"}.items()
    ):
        wrong = tmp_path / f"{number}.yaml"
        text = "".join((manifests.FOLDER / name).read_text() for name in ("mainspring.yaml", "keda.yaml"))
        assert old in text
        wrong.write_text(text.replace(old, new))
        status, output = conform(address_of("kubeconform"), VERSIONS[-1], wrong)
        assert status == 1, output


def conform(kubeconform: str, version: str, *files: Path) -> tuple[int, str]:
    schemas = Kubeconform(ROOT / ".services").schemas
    kind = "{{.ResourceKind}}{{.KindSuffix}}.json"
    locations = [
        f"{schemas}/{{{{.NormalizedKubernetesVersion}}}}-standalone{{{{.StrictSuffix}}}}/{kind}",
        f"{ROOT / 'tests' / 'support' / 'keda'}/{kind}",
    ]
    command = [kubeconform, "-strict", "-kubernetes-version", version]
    command += itertools.chain.from_iterable(("-schema-location", place) for place in locations)
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", manifests.FILES)
def test_the_manifests_are_up_to_date_with_the_chart(helm: str, name: str) -> None:
    assert (manifests.FOLDER / name).read_text() == manifests.manifest(helm, name), "run: make manifests"


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--set=scheduler.replica=3", "replica"),
        ("--set=workers.mail.queues.mail=0", "mail"),
        ("--set=workers.mail.replicas=3", "queues"),
        ("--set=worker.autoscaling.by=cpu", "by"),
        ("--set=api.ingress.enabled=true", "api.ingress.host is missing"),
        (r"--set=settings.worker\.grace=60s", "settings: worker.grace is set by the chart; use graceSeconds"),
        ("--set=settings.store=postgresql://db/x", "settings: store is set by the chart"),
        ("--set=settings.port=8080", "settings: port is set by the chart; use api.service.port"),
        ("--set=settings.host=127.0.0.1", "settings: host is set"),
        (r"--set=settings.metrics\.enabled=false", "settings: metrics.enabled is set"),
        (r"--set=settings.metrics\.first_port=9000", "settings: metrics.first_port is set"),
        (r"--set=settings.auth\.mode=none", "auth.mode may not be none"),
        ("--set=env[0].name=MAINSPRING_STORE,env[0].value=x", "env: MAINSPRING_STORE is set by the chart"),
        ("--set=env[0].name=MAINSPRING_AUTH_MODE,env[0].value=jwt", "env: MAINSPRING_AUTH_MODE is set by the chart"),
        ("--set=worker.env[0].name=MAINSPRING_WORKER_GRACE", "worker.env: MAINSPRING_WORKER_GRACE is set by the chart"),
        ("--set=workers.default.env[0].name=MAINSPRING_WORKER_GRACE", "workers.default.env: MAINSPRING_WORKER_GRACE"),
        ("--set=workers.default.autoscaling.by=hpa,workers.default.autoscaling.min=0", "min must be 1 or more by hpa"),
        ("--set=worker.autoscaling.by=keda,worker.autoscaling.min=17", "min 17 is more than max 16"),
        ("--set=worker.autoscaling.by=hpa,workers.default.queues.a b=1", '"a b" cannot be one'),
        ("--set=workers.default.queues.a/b=1", "a/b"),
        ("--set=workers.default.queues.a:b=1", "a:b"),
    ],
)
def test_wrong_values_are_refused_with_their_name(helm: str, option: str, named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        manifests.rendered(helm, option)


def test_the_chart_refuses_every_setting_that_it_sets_itself(helm: str) -> None:
    helpers = (manifests.CHART / "templates" / "_helpers.tpl").read_text()
    owned = yaml.safe_load(helpers.partition('define "mainspring.owned" -}}')[2].partition("{{- end }}")[0])
    variables = {f"MAINSPRING_{name.upper().replace('.', '_')}" for name in owned}
    reference = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert [name for name in owned if f"| `{name}` |" not in reference] == []
    given = {
        each["name"] for pod in pods(objects(manifests.rendered(helm))) for each in pod["spec"]["containers"][0]["env"]
    }
    assert given - variables == {"MAINSPRING_LOG_FORMAT", "MAINSPRING_AUTH_MODE"}


@pytest.mark.parametrize("queue", ["yes", "17", "null", "1.50"])
def test_the_name_of_a_queue_may_look_like_a_number_or_a_yaml_keyword(helm: str, tmp_path: Path, queue: str) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"workers": {"one": {"queues": {queue: 3}, "autoscaling": {"by": "hpa"}}}}))
    made = objects(manifests.rendered(helm, f"--values={file}", release="42"))
    [scaler] = of_kind(made, "HorizontalPodAutoscaler")
    selectors = [metric["external"]["metric"]["selector"]["matchLabels"] for metric in scaler["spec"]["metrics"]]
    assert selectors == [{"queue": queue}] * 2
    assert {one["metadata"]["labels"]["app.kubernetes.io/instance"] for one in made} == {"42"}
    [args] = [
        pod["spec"]["containers"][0]["args"]
        for pod in pods(made)
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "worker-one"
    ]
    assert args == ["worker", f"--queue={queue}:3"]


def test_keda_accepts_a_queue_name_that_is_no_valid_label(helm: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"workers": {"one": {"queues": {"é #1": 3}, "autoscaling": {"by": "keda"}}}}))
    made = objects(manifests.rendered(helm, f"--values={file}"))
    [trigger] = of_kind(made, "ScaledObject")[0]["spec"]["triggers"]
    assert parse_qs(urlsplit(trigger["metadata"]["url"]).query)["queue"] == ["é #1"]
    assert ["worker", "--queue=é #1:3"] in [pod["spec"]["containers"][0]["args"] for pod in pods(made)]


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((manifests.CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == mainspring.__version__
    assert chart["kubeVersion"] == f">={VERSIONS[0]}-0"


def test_a_pod_runs_a_valid_command_with_valid_settings(helm: str, values: Path) -> None:
    for pod in pods(objects(manifests.rendered(helm, f"--values={values}"))):
        [container] = pod["spec"]["containers"]
        command, *arguments = container["args"]
        command = get_command(application).commands[command]  # type: ignore[attr-defined]
        given = command.make_context("mainspring", list(arguments), resilient_parsing=False).params
        loaded = load({"worker.queues": given.get("queue")}, environment(container))
        assert loaded.store == SECRET["store"]
        assert loaded.log.format == "json"
        if probe := container.get("startupProbe"):
            # The kubelet must not kill a pod that still waits for its store.
            assert probe["periodSeconds"] * probe["failureThreshold"] * SECOND >= PATIENCE + 20 * SECOND
        if container["name"] == "api":
            assert (loaded.host, loaded.auth.mode) == ("0.0.0.0", "keys")
            assert loaded.port == container["ports"][0]["containerPort"]
        elif container["name"] in {"scheduler", "worker"}:
            assert list(loaded.metrics.ports) == [container["ports"][0]["containerPort"]]
            assert loaded.metrics.host == "0.0.0.0"
        if container["name"] == "worker":
            # The kubelet kills the pod after this period.
            assert pod["spec"]["terminationGracePeriodSeconds"] * SECOND >= loaded.worker.grace + 10 * SECOND


def test_numbers_in_the_values_reach_a_pod_unchanged(helm: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(VALUES["full"]))
    for pod in pods(objects(manifests.rendered(helm, f"--values={file}"))):
        loaded = load(environment=environment(pod["spec"]["containers"][0]))
        assert (loaded.shards, loaded.worker.recycle_memory, loaded.tracing.ratio) == (64, 1_000_000_000, 0.25)


def test_every_pod_has_the_configured_volumes_and_service_account(helm: str, tmp_path: Path) -> None:
    file, full = tmp_path / "values.yaml", VALUES["full"]
    file.write_text(yaml.safe_dump(full))
    for pod in pods(objects(manifests.rendered(helm, f"--values={file}"))):
        spec = pod["spec"]
        assert spec["volumes"] == [{"name": "tmp", "emptyDir": {}}, *full["volumes"]]
        assert spec["containers"][0]["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}, *full["volumeMounts"]]
        assert spec["serviceAccountName"] == "jobs"
        assert pod["metadata"]["annotations"] == full["podAnnotations"]


def test_a_network_policy_with_clients_still_admits_prometheus(helm: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(VALUES["full"]))
    policies = of_kind(objects(manifests.rendered(helm, f"--values={file}")), "NetworkPolicy")
    named = {one["metadata"]["name"]: one["spec"] for one in policies}
    [api], [metrics] = named["mainspring-api"]["ingress"], named["mainspring-metrics"]["ingress"]
    assert api["from"] == [*VALUES["full"]["networkPolicy"]["clients"], *metrics["from"]]


def test_the_default_workers_serve_the_queues_of_alerts_and_webhooks(helm: str) -> None:
    """A worker with a list of queues serves no others, so these must be in it."""
    served = {
        word.removeprefix("--queue=").partition(":")[0]
        for pod in pods(objects(manifests.rendered(helm)))
        for word in pod["spec"]["containers"][0]["args"]
        if word.startswith("--queue=")
    }
    assert served == {"default", NOTIFICATIONS, WEBHOOKS}


def test_the_values_on_the_page_are_valid(helm: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deploy" / "kubernetes.md").read_text()
    blocks = re.findall(r"```yaml\n# values.yaml\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block)
        for pod in pods(objects(manifests.rendered(helm, f"--values={file}"))):
            [container] = pod["spec"]["containers"]
            loaded = load(environment=environment(container))
            assert loaded.notifications.read().channels.keys() == ({"ops"} if "slack" in block else set())


def test_a_pod_meets_the_restricted_pod_security_standard(helm: str, values: Path) -> None:
    found = objects(manifests.rendered(helm, f"--values={values}"))
    for pod in pods(found):
        spec = pod["spec"]
        [container] = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]
    for deployment in of_kind(found, "Deployment"):
        spec = deployment["spec"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= spec["template"]["spec"]["containers"][0].keys()
        selected = spec["selector"]["matchLabels"]
        [budget] = [
            one for one in of_kind(found, "PodDisruptionBudget") if one["spec"]["selector"]["matchLabels"] == selected
        ]
        assert budget["spec"]["maxUnavailable"]
        for spread in spec["template"]["spec"]["topologySpreadConstraints"]:
            assert spread["labelSelector"]["matchLabels"] == selected
    # A network policy covers both directions of every pod.
    policies = of_kind(found, "NetworkPolicy")
    for pod in pods(found) if policies else ():
        labels = pod["metadata"]["labels"].items()
        held = [one["spec"] for one in policies if one["spec"]["podSelector"]["matchLabels"].items() <= labels]
        assert {way for policy in held for way in policy["policyTypes"]} == {"Ingress", "Egress"}


def test_autoscalers_use_metrics_and_endpoints_that_exist(helm: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(VALUES["full"]))
    found = objects(manifests.rendered(helm, f"--values={file}"))
    deployments = {one["metadata"]["name"]: one for one in of_kind(found, "Deployment")}

    [hpa] = of_kind(found, "HorizontalPodAutoscaler")
    assert "replicas" not in deployments[hpa["spec"]["scaleTargetRef"]["name"]]["spec"]
    metrics = {each["external"]["metric"]["name"]: each["external"]["target"] for each in hpa["spec"]["metrics"]}
    assert metrics == {
        # Kubernetes starts as many pods as together have the recommended slots.
        "mainspring_recommended_slots": {"type": "AverageValue", "averageValue": "20"},
        "mainspring_queue_lag_seconds": {"type": "Value", "value": "10"},
    }
    declared = {metric.name: metric.labels for metric in ALL}
    adapter = (manifests.FOLDER / "prometheus-adapter.yaml").read_text()
    for name in metrics:
        assert declared[name] == ("queue",)
        assert name in adapter

    [scaled] = of_kind(found, "ScaledObject")
    assert scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["spec"]["behavior"]
    assert "replicas" not in deployments[scaled["spec"]["scaleTargetRef"]["name"]]["spec"]
    described = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())
    operation = described["paths"]["/v1/autoscale"]["get"]
    [service] = of_kind(found, "Service")
    for trigger in scaled["spec"]["triggers"]:
        asked = urlsplit(trigger["metadata"]["url"])
        assert asked.path == "/v1/autoscale"
        assert asked.hostname == f"{service['metadata']['name']}.mainspring.svc"
        assert parse_qs(asked.query).keys() <= {parameter["name"] for parameter in operation["parameters"]}
        assert trigger["metadata"]["valueLocation"] in described["components"]["schemas"]["Autoscale"]["properties"]


def test_promtool_accepts_the_scrape_configuration_for_kubernetes(
    address_of: Callable[[str], str], tmp_path: Path
) -> None:
    """Without pod discovery: the promtool of Debian is built without Kubernetes."""
    promtool = f"{address_of('prometheus')}/promtool"
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "kubernetes.yml").read_text())
    *pods, _disks = scraped["scrape_configs"]
    for job in pods:
        assert job.pop("kubernetes_sd_configs")[0]["role"] == "pod"
    file = tmp_path / "kubernetes.yml"
    file.write_text(yaml.safe_dump(scraped))
    command = [promtool, "check", "config", "--syntax-only", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.postgres
async def test_the_pods_as_processes_answer_their_probes_and_stop_on_sigterm(
    postgres_database: str, tmp_path: Path
) -> None:
    """Do what a kubelet would do with the pods."""
    found = objects((manifests.FOLDER / "mainspring.yaml").read_text())
    (tmp_path / "logs").mkdir()
    async with (
        Processes(postgres_database, tmp_path / "logs") as processes,
        httpx2.AsyncClient(trust_env=False, timeout=DEADLINE_SECONDS) as client,
    ):
        [migration] = pods(of_kind(found, "Job"))
        [container] = migration["spec"]["containers"]
        migrated = processes.start(
            *container["args"], **environment(container) | {"MAINSPRING_STORE": postgres_database}
        )
        assert await asyncio.to_thread(migrated.wait) == 0, processes.logs()

        started = []
        for pod in pods(of_kind(found, "Deployment")):
            [container] = pod["spec"]["containers"]
            port = str(free_port())
            # Other tests use the ports that a pod would have to itself.
            moved = {"MAINSPRING_STORE": postgres_database, "MAINSPRING_PORT": port}
            moved |= {f"MAINSPRING_METRICS_{end}_PORT": port for end in ("FIRST", "LAST")}
            process = processes.start(*container["args"], **environment(container) | moved)
            started.append((container, port, process))
        assert [container["name"] for container, _, _ in started] == ["api", "scheduler", "worker", "worker"]
        for container, port, _ in started:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                path = container[probe]["httpGet"]["path"]
                await eventually(partial(is_ok, client, f"http://127.0.0.1:{port}{path}"), processes.logs)
            # Metrics need the token.
            url = f"http://127.0.0.1:{port}/metrics"
            assert (await client.get(url)).status_code == 401
            if container["name"] != "api":
                token = {"authorization": f"Bearer {SECRET['metrics-token']}"}
                assert (await client.get(url, headers=token)).status_code == 200
        for _, _, process in started:
            assert await asyncio.to_thread(terminate, process) == 0, processes.logs()


async def is_ok(client: httpx2.AsyncClient, url: str) -> bool:
    with suppress(httpx2.TransportError):
        return (await client.get(url)).status_code == 200
    return False
