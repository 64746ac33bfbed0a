"""Builds the brokers that carry hints to workers."""

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.cluster.hints import HintCodec
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import Broker
from mainspring.integrations.kafka.address import SCHEME as KAFKA
from mainspring.integrations.rabbitmq.address import SCHEMES


def make_dispatch(url: str, clock: Clock, codec: HintCodec, datacenter: str = "") -> Broker:
    """``datacenter``: the data center of this process."""
    # Imported on use: most processes need none of the clients.
    if url.startswith(SCHEMES):
        try:
            from mainspring.integrations.rabbitmq.dispatch import RabbitDispatch
        except ModuleNotFoundError as error:
            raise _missing("RabbitMQ", "rabbitmq", error) from error
        return RabbitDispatch(url, clock, codec)
    if url.startswith(KAFKA):
        try:
            from mainspring.integrations.kafka.dispatch import KafkaDispatch
        except ModuleNotFoundError as error:
            raise _missing("Kafka", "kafka", error) from error
        return KafkaDispatch(url, clock, codec, datacenter=datacenter)
    try:
        from mainspring.integrations.redis.dispatch import RedisDispatch
    except ModuleNotFoundError as error:
        raise _missing("Redis", "redis", error) from error
    return RedisDispatch(url, clock, codec)


def _missing(what: str, extra: str, error: ModuleNotFoundError) -> Invalid:
    return Invalid("dispatch.broker", f"{what} needs the package {error.name}", f"pip install 'mainspring[{extra}]'")
