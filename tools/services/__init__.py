"""The servers that tests and benchmarks talk to, run on this machine without containers or systemd.

    python -m tools.services start | stop | remove | status [name …]

Only the standard library is used, so that it works before anything is installed.
"""

from pathlib import Path

from tools.services.chromium import Chromium
from tools.services.clients import JavaClient, NodePackages, OapiCodegen, OpenApiGenerator
from tools.services.etcd import Etcd
from tools.services.faketime import Faketime
from tools.services.kafka import Kafka, KafkaCluster
from tools.services.kcat import Kcat
from tools.services.kubernetes import Helm, Kubeconform
from tools.services.nginx import Nginx
from tools.services.patroni import Patroni
from tools.services.pgbouncer import Pgbouncer
from tools.services.postgres import Postgres
from tools.services.prometheus import Alertmanager, Prometheus
from tools.services.rabbitmq import RabbitMQ, RabbitMQCluster
from tools.services.redis import Redis, RedisCluster, RedisSentinel
from tools.services.s3 import S3
from tools.services.service import Service, ServiceUnavailable
from tools.services.systemd import Systemd
from tools.services.vault import Vault
from tools.services.zookeeper import ZooKeeper

__all__ = ["Service", "ServiceUnavailable", "all_services", "ensure"]

ROOT = Path(__file__).parents[2]


def all_services() -> dict[str, Service]:
    kinds: list[type[Service]] = [
        *(Postgres, Pgbouncer, Redis, Etcd, ZooKeeper, RabbitMQ, Kafka, Kcat, Faketime, Chromium),
        *(Prometheus, Alertmanager, Helm, Kubeconform, Nginx, Systemd, S3),
        *(OpenApiGenerator, JavaClient, NodePackages, OapiCodegen),
        *(Vault, Patroni, RabbitMQCluster, KafkaCluster, RedisSentinel, RedisCluster),
    ]
    # A link stands for what it names: servers are known by the folder in their command line.
    home = (ROOT / ".services").resolve()
    return {kind.name: kind(home) for kind in kinds}


def ensure(name: str) -> str:
    """The address of the running service; installs and starts it if need be. Any number of processes may call."""
    return all_services()[name].ensure()
