"""Options that several commands share, each with its environment variable.

A flag overrides its HEADRACE_* variable, which overrides the default. Settings on which all
processes of a model must agree are not options: they are in the model spec.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Option, Typer, echo

if TYPE_CHECKING:
    from headrace.ingest.logs import LogLayout

KAFKA = "localhost:9092"
REDIS = "redis://localhost:6379"
LOOPBACK = "127.0.0.1"


def layout_of(name: str, paths: "list[Path]") -> "LogLayout | None":
    """Return the layout of these logs: named, guessed and printed, or None for directories.

    Raises SpecError.
    """
    from headrace.ingest.logs import load_layout

    if name not in ("", "auto"):
        return load_layout(name)
    return _guessed_layout(paths[0]) if paths[0].is_file() else None


def urls_of_data(data: "list[str] | None", archive: str | None) -> "list[str]":
    """Return the paths and URLs of --data; empty with --archive. Raises BadOption."""
    from headrace.deploy.errors import BadOption

    if bool(data) == bool(archive):
        raise BadOption(f"expected either --data or --archive, got {'both' if data else 'neither'}")
    return [each if "://" in each else str(Path(each).expanduser()) for each in data or ()]


def layout_of_tables(name: str, urls: "list[str]") -> "LogLayout":
    """Return the layout of tables at paths or URLs: named, or guessed from the first and printed.

    Raises SpecError, UnreadableData.
    """
    from headrace.ingest.logs import load_layout
    from headrace.learner.batch import first_file

    if name not in ("", "auto"):
        return load_layout(name)
    with first_file(urls[0]) as first:
        return _guessed_layout(first)


def _guessed_layout(first: Path) -> "LogLayout":
    from headrace.ingest.logs import guess_layout

    guessed = guess_layout(first)
    echo(
        f"# no layout given, using this one (keep it in a file for --layout):\n\n{guessed.text}",
        err=True,
    )
    return guessed.layout


def token_in(file: Path | None) -> str:
    """Return the first token of a file; "" without a file."""
    from headrace.ingest.http import read_grants

    return read_grants(file)[0].token if file else ""


def valid_specs(files: Path | list[Path] | None) -> Path | list[Path] | None:
    """Return the files of model specs. Raises SpecError for an invalid one.

    As the callback of an option it runs before the command imports what it starts. A refusal then
    takes a fraction of a second.
    """
    from headrace.learner.spec import load_spec

    for path in [files] if isinstance(files, Path) else files or []:
        load_spec(path)
    return files


def with_topics_prefix(app: Typer) -> None:
    """Give --topics-prefix to every command of `app` that connects to Kafka or to a store.

    All connections of one process are those of one environment. The prefix therefore goes through
    the environment variable, which `deploy.connections` and child processes read.
    """
    for group in app.registered_groups:
        if group.typer_instance is not None:
            with_topics_prefix(group.typer_instance)
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _prefixed(command.callback)


_CONNECTIONS = frozenset({"kafka", "redis", "store"})
_PREFIX = "topics_prefix"
PREFIX_VARIABLE = "HEADRACE_TOPICS_PREFIX"


def _prefixed(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command, eval_str=True)
    if _PREFIX in signature.parameters or not _CONNECTIONS & set(signature.parameters):
        return command

    @functools.wraps(command)
    def run(**options: Any) -> Any:
        with _environment(options.pop(_PREFIX)):
            return command(**options)

    added = inspect.Parameter(
        _PREFIX, inspect.Parameter.KEYWORD_ONLY, default="", annotation=TopicsPrefix
    )
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), added]
    )
    return run


@contextmanager
def _environment(prefix: str) -> Iterator[None]:
    before = os.environ.get(PREFIX_VARIABLE)
    os.environ[PREFIX_VARIABLE] = prefix
    try:
        yield
    finally:
        if before is None:
            del os.environ[PREFIX_VARIABLE]
        else:
            os.environ[PREFIX_VARIABLE] = before


TopicsPrefix = Annotated[
    str,
    Option(
        "--topics-prefix",
        envvar=PREFIX_VARIABLE,
        metavar="PREFIX",
        help="Prefix of this environment's topics, consumer groups, transactional ids and keys, "
        "such as `team-a.`. Use the same prefix in all its processes. Environments with different "
        "prefixes can share a Kafka and a Redis. Default: none.",
        show_default=False,
    ),
]
ModelFile = Annotated[
    Path,
    Option(
        "--model",
        envvar="HEADRACE_MODEL",
        metavar="FILE",
        help="Model spec (TOML).",
        show_default=False,
        callback=valid_specs,
    ),
]
KafkaAddress = Annotated[
    str,
    Option(
        "--kafka", envvar="HEADRACE_KAFKA", metavar="HOST:PORT", help="Kafka bootstrap servers."
    ),
]
RedisUrl = Annotated[
    str,
    Option(
        "--redis",
        envvar="HEADRACE_REDIS",
        metavar="URL",
        help="Redis or Valkey: redis://HOST:PORT, redis+cluster:// for a cluster, rediss:// for "
        "TLS. Put user and password in HEADRACE_REDIS_USER and HEADRACE_REDIS_PASSWORD, or in the "
        "file that HEADRACE_REDIS_PASSWORD_FILE names.",
    ),
]
StatusKafka = Annotated[
    str | None,
    Option(
        "--kafka",
        envvar="HEADRACE_KAFKA",
        metavar="HOST:PORT",
        help="Kafka bootstrap servers. If set, this process publishes its status to the topic "
        "`status`.",
    ),
]
OwnKafka = Annotated[
    str | None,
    Option(
        "--kafka",
        envvar="HEADRACE_KAFKA",
        metavar="HOST:PORT",
        help="Kafka bootstrap servers. Default: start a Kafka.",
    ),
]
OwnRedis = Annotated[
    str | None,
    Option(
        "--redis",
        envvar="HEADRACE_REDIS",
        metavar="URL",
        help="URL of a Redis or Valkey, one server or a cluster. Default: start a cluster.",
    ),
]
KafkaJars = Annotated[
    Path | None,
    Option(
        "--kafka-jars",
        envvar="HEADRACE_KAFKA_JARS",
        metavar="DIR",
        help="Directory with the jars of Kafka. Default: fetch them once.",
    ),
]
StateDirectory = Annotated[
    Path | None,
    Option(
        "--state",
        envvar="HEADRACE_STATE",
        metavar="DIR",
        help="Directory for logs and for the data of Kafka and Valkey. Default: a temporary "
        "directory, kept only if a part failed.",
    ),
]
RunsFolder = Annotated[
    str,
    Option(
        "--runs",
        envvar="HEADRACE_RUNS",
        metavar="DIR|off",
        help="Folder of recorded runs. Default: headrace/runs in $XDG_STATE_HOME, or in "
        "~/.local/state. off: the run is not recorded.",
        show_default=False,
    ),
]
TrackUri = Annotated[
    str,
    Option(
        "--track",
        envvar="HEADRACE_TRACK",
        metavar="URI",
        help="MLflow server that gets a copy of the run. Needs headrace[mlflow]. An "
        "outage of the server does not stop the run.",
        show_default=False,
    ),
]
Partitions = Annotated[
    int,
    Option(
        "--partitions",
        envvar="HEADRACE_PARTITIONS",
        min=1,
        help="Partitions of each topic. `headrace topics grow` adds more.",
    ),
]
Buckets = Annotated[
    int,
    Option(
        "--buckets",
        envvar="HEADRACE_BUCKETS",
        min=1,
        help="Buckets of the model in the parameter server, a power of two. "
        "`headrace pserver reshard` increases it.",
    ),
]
Host = Annotated[str, Option("--host", envvar="HEADRACE_HOST", help="Address to listen on.")]
Port = Annotated[
    int,
    Option(
        "--port",
        envvar="HEADRACE_PORT",
        min=0,
        max=65535,
        help="Port to listen on. 0: any free port.",
    ),
]
MetricsPort = Annotated[
    int,
    Option(
        "--metrics-port",
        envvar="HEADRACE_METRICS_PORT",
        min=0,
        max=65535,
        help="Port of /metrics, /health/live and /health/ready. 0: no such port.",
    ),
]
MetricsHost = Annotated[
    str,
    Option(
        "--metrics-host",
        envvar="HEADRACE_METRICS_HOST",
        help="Address of the metrics port. In a container: 0.0.0.0.",
    ),
]
Instance = Annotated[
    str,
    Option(
        "--instance",
        envvar="HEADRACE_INSTANCE",
        help="Permanent name of this process, such as the name of its pod in a StatefulSet. "
        "Set it for all processes of a kind or for none. Default: none.",
    ),
]
Speed = Annotated[
    str,
    Option(
        "--speed",
        envvar="HEADRACE_SPEED",
        metavar="N|max",
        help="Multiple of real time, or max: as fast as the pipeline can process.",
    ),
]
Data = Annotated[
    list[Path],
    Option(
        "--data",
        metavar="PATH",
        help="Directory with impressions.ndjson[.zst] and clicks.ndjson[.zst], or a CSV, Parquet "
        "or NDJSON file. Repeat the option to replay several, one after another.",
    ),
]
LayoutName = Annotated[
    str,
    Option(
        "--layout",
        metavar="NAME|FILE|auto",
        help="Layout that maps the columns of CSV, Parquet or NDJSON to events: criteo, avazu, a "
        "TOML file, or auto for a guess from the first file's columns. Default: auto for files.",
    ),
]
TableLayout = Annotated[
    str,
    Option(
        "--layout",
        metavar="NAME|FILE|auto",
        help="Layout of the tables: their columns of time and clicks. auto, the default: a guess "
        "from the first table's columns.",
        show_default=False,
    ),
]
Sort = Annotated[
    bool, Option("--sort", help="Sort each log by event time first, on disk if it is large.")
]
KafkaClient = Annotated[
    list[str] | None,
    Option(
        "--kafka-client",
        envvar="HEADRACE_KAFKA_CLIENT",
        metavar="KEY=VALUE",
        help="Setting of the Kafka client, such as security.protocol=SSL. Repeatable. Put "
        "passwords in a file (sasl.password.file=FILE) or in the environment variable, which takes "
        "KEY=VALUE words or a JSON object without spaces.",
    ),
]
Evaluated = Annotated[
    bool,
    Option(
        "--evaluate/--no-evaluate",
        help="Run live evaluation as well.",
    ),
]


def divides_a_minute(seconds: int) -> int:
    """Return the seconds. Raises BadParameter unless a minute is a multiple of them."""
    if 60 % seconds:
        raise BadParameter(f"expected a divisor of 60, got {seconds}")
    return seconds


SkipDamaged = Annotated[
    list[str] | None,
    Option(
        "--skip-damaged",
        envvar="HEADRACE_SKIP_DAMAGED",
        metavar="TOPIC/PARTITION@OFFSET",
        help="Damaged message to skip and count, as the error names it. Repeatable.",
        show_default=False,
    ),
]
EvaluationWindow = Annotated[
    int,
    Option(
        "--evaluation-window",
        min=1,
        max=60,
        callback=divides_a_minute,
        help="Shortest window of live evaluation, in seconds: window_s in [promotion].",
    ),
]
