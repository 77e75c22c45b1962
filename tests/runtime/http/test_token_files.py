"""Tokens: their comparison, and files of them that change while a server runs."""

import hashlib
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.ingest.collector.collector_process import refuse_models
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, topics_for
from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.http_errors import RequestRefused
from headrace.runtime.http.token_files import RereadTokens, TokenSource
from headrace.runtime.http.token_grants import TokenGrant, TokenLimits
from tests.deploy.command import running

OLD, NEW, FIXED = "the-old-long-secret", "the-new-long-secret", "a-fixed-long-secret"


class Served:
    """Tokens and limits as a server has them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        source = TokenSource((TokenGrant(FIXED),), file)
        grants = source.read()
        self.tokens = Tokens([each.token for each in grants])
        self.limits = TokenLimits(grants)
        self.source = RereadTokens(source, self.tokens, self.limits, refuse_models)

    def client(self, token: str) -> str:
        place = self.tokens.check(f"Bearer {token}")
        self.limits.admit(place)
        return self.limits.name(place)

    def write(self, *lines: str) -> None:
        self.file.write_text("\n".join(lines))
        self.source.reread()


@pytest.fixture
def served(tmp_path: Path) -> Served:
    """A server with one token in a file, and one that is not in it."""
    (tmp_path / "tokens").write_text(f"{OLD} name=search")
    return Served(tmp_path / "tokens")


def test_a_new_token_is_valid_beside_the_old_one_and_alone_after_its_removal(
    served: Served,
) -> None:
    assert served.client(OLD) == "search"
    with pytest.raises(RequestRefused):
        served.client(NEW)
    served.write(f"{NEW} name=search", f"{OLD} name=search")
    assert [served.client(each) for each in (OLD, NEW, FIXED)] == ["search", "search", ""]
    under_way = served.tokens.check(f"Bearer {OLD}")
    served.write(f"{NEW} name=other")
    assert served.limits.name(under_way) == "search"
    assert (served.client(NEW), served.client(FIXED)) == ("other", "")
    with pytest.raises(RequestRefused):
        served.client(OLD)
    with pytest.raises(RequestRefused):
        served.client("")
    served.write(f"{OLD} name=back", f"{NEW} name=other")
    assert (served.client(OLD), served.client(NEW)) == ("back", "other")


@pytest.mark.parametrize(
    "wrong", ["", "short", f"{NEW} name=a\n{OLD} name=a requests_per_second=1", f"{NEW} models=m"]
)
def test_a_wrong_file_leaves_the_tokens_as_they_were(
    served: Served, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    served.write(wrong)
    assert "tokens stay as they were" in caplog.text
    assert served.client(OLD) == "search"
    with pytest.raises(RequestRefused):
        served.client(NEW)
    served.write(f"{NEW} name=search")
    assert served.client(NEW) == "search"


def test_a_file_that_is_replaced_is_read_again_and_a_missing_one_changes_nothing(
    served: Served,
) -> None:
    served.file.unlink()
    served.source.reread()
    assert served.client(OLD) == "search"
    target = served.file.with_name("mounted")
    target.write_text(f"{NEW} name=search")
    served.file.symlink_to(target)
    served.source.reread()
    assert served.client(NEW) == "search"


def test_a_running_collector_takes_a_new_token_without_a_restart(
    kafka: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix = f"{fresh_name('rotated')}."
    file = tmp_path / "tokens"
    file.write_text(OLD)
    options = ("--kafka", kafka, "--topics-prefix", prefix, "--port", "0", "--tokens", str(file))
    ensure_topics(_settings(kafka, prefix), topics_for("m", 1))

    def send(token: str) -> int:
        event = json.dumps({"impression_id": "i", "timestamp_ms": 1_700_000_000_000}).encode()
        asked = urllib.request.Request(f"{url}/v1/impressions", event)
        asked.add_header("Authorization", f"Bearer {token}")
        asked.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    with running("ingest", "collect", *options) as process:
        url = process.wait_for(r"collecting on (http://\S+)")[1]
        assert (send(OLD), send(NEW)) == (200, 401)
        changed = tmp_path / "changed"
        changed.write_text(f"{NEW}\n")
        changed.replace(file)
        process.wait_for(r"read \S+ again: 1 tokens are valid")
        assert (send(OLD), send(NEW)) == (401, 200)


def _settings(kafka: str, prefix: str) -> KafkaSettings:
    from headrace.ingest.kafka.settings import TopicNames

    return KafkaSettings(kafka, names=TopicNames(prefix))


@pytest.mark.parametrize("place", [0, 31])
def test_a_token_whose_digest_equals_the_valid_one_in_a_byte_is_refused(place: int) -> None:
    def digest(token: str) -> bytes:
        return hashlib.sha256(token.encode()).digest()

    guesses = (f"another-token-{number}" for number in itertools.count())
    like = next(guess for guess in guesses if digest(guess)[place] == digest(OLD)[place])
    tokens = Tokens([OLD])
    assert tokens.check(f"Bearer {OLD}") == 0
    with pytest.raises(RequestRefused, match="expected Bearer and a valid token"):
        tokens.check(f"Bearer {like}")
