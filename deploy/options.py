"""Options that several commands share, each with its environment variable.

A flag overrides its HEADRACE_* variable, which overrides the default; `cli/commands.py` reads the
variables. Settings on which all processes of a model must agree are not options: they are in the
model spec.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.connections import kafka_settings
from headrace.deploy.errors import BadOption
from headrace.runtime.settings import same, setting

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings
    from headrace.ingest.logs.layout import LogLayout
    from headrace.learner.spec.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A file with a model spec.

    The options of a command read it before the command imports what it starts. A refusal then takes
    a fraction of a second.
    """

    path: Path
    spec: "ModelSpec"

    @classmethod
    def read(cls, path: str | Path) -> "SpecFile":
        """Read a file. Raises SpecError."""
        from headrace.learner.spec.model_spec import load_spec

        return cls(Path(path), load_spec(Path(path)))


def layout_of(name: str, paths: "list[Path]") -> "LogLayout | None":
    """Return the layout of these logs: named, guessed and printed, or None for directories.

    Raises SpecError.
    """
    from headrace.ingest.logs.layout import load_layout

    if name not in ("", "auto"):
        return load_layout(name)
    return _guessed_layout(paths[0]) if paths[0].is_file() else None


def urls_of_data(data: "list[str] | None", archive: str | None) -> "list[str]":
    """Return the paths and URLs of --data; empty with --archive. Raises BadOption."""
    if bool(data) == bool(archive):
        raise BadOption(f"expected either --data or --archive, got {'both' if data else 'neither'}")
    return [each if "://" in each else str(Path(each).expanduser()) for each in data or ()]


def layout_of_tables(name: str, urls: "list[str]") -> "LogLayout":
    """Return the layout of tables at paths or URLs: named, or guessed from the first and printed.

    Raises SpecError, UnreadableData.
    """
    from headrace.ingest.logs.layout import load_layout
    from headrace.learner.batch.data_files import first_file

    if name not in ("", "auto"):
        return load_layout(name)
    with first_file(urls[0]) as first:
        return _guessed_layout(first)


def _guessed_layout(first: Path) -> "LogLayout":
    from headrace.ingest.logs.layout_guess import guess_layout

    guessed = guess_layout(first)
    click.echo(
        f"# no layout given, using this one (keep it in a file for --layout):\n\n{guessed.text}",
        err=True,
    )
    return guessed.layout


def token_in(file: Path | None) -> str:
    """Return the first token of a file; "" without a file."""
    from headrace.runtime.http.token_grants import read_grants

    return read_grants(file)[0].token if file else ""


PREFIX_VARIABLE = "HEADRACE_TOPICS_PREFIX"
TOPICS_PREFIX = setting(
    "",
    "Prefix of this environment's topics, consumer groups, transactional ids and keys, "
    "such as `team-a.`. Use the same prefix in all its processes. Environments with different "
    "prefixes can share a Kafka and a Redis. Default: none.",
    env=PREFIX_VARIABLE,
    metavar="PREFIX",
)
MODEL = setting(help="Model spec (TOML).", env="HEADRACE_MODEL", metavar="FILE")
KAFKA = setting(
    "localhost:9092", "Kafka bootstrap servers.", env="HEADRACE_KAFKA", metavar="HOST:PORT"
)
REDIS = setting(
    "redis://localhost:6379",
    "Redis or Valkey: redis://HOST:PORT, redis+cluster:// for a cluster, rediss:// for "
    "TLS. Put user and password in HEADRACE_REDIS_USER and HEADRACE_REDIS_PASSWORD, or in the "
    "file that HEADRACE_REDIS_PASSWORD_FILE names.",
    env="HEADRACE_REDIS",
    metavar="URL",
)
STATUS_KAFKA = setting(
    None,
    "Kafka bootstrap servers. If set, this process publishes its status to the topic `status`.",
    env="HEADRACE_KAFKA",
    metavar="HOST:PORT",
)
RUNS_FOLDER = setting(
    "",
    "Folder of recorded runs. Default: headrace/runs in $XDG_STATE_HOME, or in "
    "~/.local/state. off: the run is not recorded.",
    env="HEADRACE_RUNS",
    metavar="DIR|off",
)
TRACK_URI = setting(
    "",
    "MLflow server that gets a copy of the run. Needs headrace[mlflow]. An "
    "outage of the server does not stop the run.",
    env="HEADRACE_TRACK",
    metavar="URI",
)
PARTITIONS = setting(
    4,
    "Partitions of each topic. `headrace topics grow` adds more.",
    env="HEADRACE_PARTITIONS",
    least=1,
)
BUCKETS = setting(
    64,
    "Buckets of the model in the parameter server, a power of two. "
    "`headrace pserver reshard` increases it.",
    env="HEADRACE_BUCKETS",
    least=1,
)
HOST = setting("127.0.0.1", "Address to listen on.", env="HEADRACE_HOST")
PORT = setting(0, "Port to listen on. 0: any free port.", env="HEADRACE_PORT", least=0, most=65535)
METRICS_PORT = setting(
    0,
    "Port of /metrics, /health/live and /health/ready. 0: no such port.",
    env="HEADRACE_METRICS_PORT",
    least=0,
    most=65535,
)
METRICS_HOST = setting(
    "127.0.0.1",
    "Address of the metrics port. In a container: 0.0.0.0.",
    env="HEADRACE_METRICS_HOST",
)
INSTANCE = setting(
    "",
    "Permanent name of this process, such as the name of its pod in a StatefulSet. "
    "Set it for all processes of a kind or for none. Default: none.",
    env="HEADRACE_INSTANCE",
)
SPEED = setting(
    "max",
    "Multiple of real time, or max: as fast as the pipeline can process.",
    env="HEADRACE_SPEED",
    metavar="N|max",
)
DATA = setting(
    help="Directory with impressions.ndjson[.zst] and clicks.ndjson[.zst], or a CSV, Parquet "
    "or NDJSON file. Repeat the option to replay several, one after another.",
    metavar="PATH",
)
LAYOUT_NAME = setting(
    "",
    "Layout that maps the columns of CSV, Parquet or NDJSON to events: criteo, avazu, a "
    "TOML file, or auto for a guess from the first file's columns. Default: auto for files.",
    metavar="NAME|FILE|auto",
)
TABLE_LAYOUT = setting(
    "",
    "Layout of the tables: their columns of time and clicks. auto, the default: a guess "
    "from the first table's columns.",
    metavar="NAME|FILE|auto",
)
SORT = setting(False, "Sort each log by event time first, on disk if it is large.")
KAFKA_CLIENT = setting(
    None,
    "Setting of the Kafka client, such as security.protocol=SSL. Repeatable. Put "
    "passwords in a file (sasl.password.file=FILE) or in the environment variable, which takes "
    "KEY=VALUE words or a JSON object without spaces.",
    env="HEADRACE_KAFKA_CLIENT",
    metavar="KEY=VALUE",
)


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The Kafka of a command."""

    kafka: str = same(KAFKA)
    kafka_client: list[str] | None = same(KAFKA_CLIENT)

    def settings(self) -> "KafkaSettings":
        """Return the settings of Kafka clients. Raises BadOption."""
        return kafka_settings(self.kafka, self.kafka_client)


def divides_a_minute(seconds: int) -> int:
    """Return the seconds. Raises BadParameter unless a minute is a multiple of them."""
    if 60 % seconds:
        raise click.BadParameter(f"expected a divisor of 60, got {seconds}")
    return seconds


SKIP_DAMAGED = setting(
    None,
    "Damaged message to skip and count, as the error names it. Repeatable.",
    env="HEADRACE_SKIP_DAMAGED",
    metavar="TOPIC/PARTITION@OFFSET",
)


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options of a pipeline on this machine: of `headrace run`, `up` and `demo`.

    `deploy.local.pipeline` adds what the command sets.
    """

    kafka: str | None = setting(None, env="HEADRACE_KAFKA", metavar="HOST:PORT")
    """Kafka bootstrap servers. Default: start a Kafka."""
    kafka_client: list[str] | None = same(KAFKA_CLIENT)
    redis: str | None = setting(None, env="HEADRACE_REDIS", metavar="URL")
    """URL of a Redis or Valkey, one server or a cluster. Default: start a Valkey."""
    kafka_jars: Path | None = setting(None, env="HEADRACE_KAFKA_JARS", metavar="DIR")
    """Directory with the jars of Kafka. Default: fetch them once."""
    state: Path | None = setting(None, env="HEADRACE_STATE", metavar="DIR")
    """Directory for logs and for the data of Kafka and Valkey. Default: a temporary directory, kept
    only if a part failed."""
    partitions: int = same(PARTITIONS, 2)
    buckets: int = same(BUCKETS, 8)
    # few, because each bucket is a call in every push and an entry for every follower
    evaluate: bool = setting(True)
    """Run live evaluation as well."""
    evaluation_window: int = setting(60, least=1, most=60, check=divides_a_minute)
    """Shortest window of live evaluation, in seconds: window_s in [promotion]."""
    host: str = same(HOST)
    metrics_host: str = same(METRICS_HOST)
