"""Options that several commands share, and nowhere else: each with its variable and its reason.

This is the one place where the environment is read. A flag beats its HEADRACE_* variable, which
beats the default; what all processes of a model must agree on is not here but in the model spec.
"""

from pathlib import Path
from typing import Annotated

from typer import Option

KAFKA = "localhost:9092"
REDIS = "redis://localhost:6379"

ModelFile = Annotated[
    Path,
    Option(
        "--model",
        envvar="HEADRACE_MODEL",
        metavar="FILE",
        help="The model spec (TOML).",
        show_default=False,
    ),
]
KafkaAddress = Annotated[
    str,
    Option("--kafka", envvar="HEADRACE_KAFKA", metavar="HOST:PORT", help="Kafka's address."),
]
RedisUrl = Annotated[
    str,
    Option(
        "--redis",
        envvar="HEADRACE_REDIS",
        metavar="URL",
        help="Redis or Valkey: redis://HOST:PORT; redis+cluster:// for a cluster, rediss:// for "
        "TLS. User and password better in HEADRACE_REDIS_USER and HEADRACE_REDIS_PASSWORD.",
    ),
]
ToldTo = Annotated[
    str | None,
    Option(
        "--kafka",
        envvar="HEADRACE_KAFKA",
        metavar="HOST:PORT",
        help="Kafka, whose topic `status` is told how this process is. Default: nobody is.",
    ),
]
OwnKafka = Annotated[
    str | None,
    Option(
        "--kafka",
        envvar="HEADRACE_KAFKA",
        metavar="HOST:PORT",
        help="Use this Kafka instead of starting one.",
    ),
]
OwnRedis = Annotated[
    str | None,
    Option(
        "--redis",
        envvar="HEADRACE_REDIS",
        metavar="URL",
        help="Use this Redis or Valkey (one server or a cluster) instead of starting one.",
    ),
]
KafkaJars = Annotated[
    Path | None,
    Option(
        "--kafka-jars",
        envvar="HEADRACE_KAFKA_JARS",
        metavar="DIR",
        help="Start Kafka from the jars in this directory instead of fetching them.",
    ),
]
StateDirectory = Annotated[
    Path | None,
    Option(
        "--state",
        envvar="HEADRACE_STATE",
        metavar="DIR",
        help="Keep Kafka's and Valkey's data and all logs here. Default: a directory that is "
        "removed at the end, unless something failed.",
    ),
]
Partitions = Annotated[
    int,
    Option(
        "--partitions",
        envvar="HEADRACE_PARTITIONS",
        min=1,
        help="Partitions of each topic, fixed for the life of a model.",
    ),
]
Buckets = Annotated[
    int,
    Option(
        "--buckets",
        envvar="HEADRACE_BUCKETS",
        min=1,
        help="Buckets of the model in the parameter server: a power of two, fixed for its life.",
    ),
]
Host = Annotated[
    str, Option("--host", envvar="HEADRACE_HOST", help="Address that the server listens on.")
]
Port = Annotated[
    int,
    Option("--port", envvar="HEADRACE_PORT", min=0, max=65535, help="0: any free port."),
]
MetricsPort = Annotated[
    int,
    Option(
        "--metrics-port",
        envvar="HEADRACE_METRICS_PORT",
        min=0,
        max=65535,
        help="Serve Prometheus metrics on this port. 0: none.",
    ),
]
Instance = Annotated[
    str,
    Option(
        "--instance",
        envvar="HEADRACE_INSTANCE",
        help="A name that stays over restarts and that no other process of the kind has.",
    ),
]
Speed = Annotated[
    str,
    Option(
        "--speed",
        envvar="HEADRACE_SPEED",
        metavar="N|max",
        help="N times as fast as it happened, or as fast as the pipeline follows.",
    ),
]
Data = Annotated[
    list[Path],
    Option(
        "--data",
        metavar="PATH",
        help="Directory with impressions.ndjson[.zst] and clicks.ndjson[.zst], or with --layout "
        "a file. Repeat the option to replay several, one after another.",
    ),
]
LayoutName = Annotated[
    str,
    Option(
        "--layout",
        metavar="NAME|FILE",
        help="Layout that maps the columns of CSV, Parquet or NDJSON to events: criteo, avazu, or "
        "a TOML file.",
    ),
]
KafkaClient = Annotated[
    list[str] | None,
    Option(
        "--kafka-client",
        envvar="HEADRACE_KAFKA_CLIENT",
        metavar="KEY=VALUE",
        help="A setting for Kafka's client, such as security.protocol=SSL; may be repeated.",
    ),
]
Evaluated = Annotated[
    bool,
    Option(
        "--evaluate/--no-evaluate",
        help="Run live evaluation beside the other parts.",
    ),
]
