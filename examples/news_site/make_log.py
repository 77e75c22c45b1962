"""Writes the log of an invented news site: one line for each article shown, clicked or not.

    python make_log.py log.csv

Readers have favourite sections, articles have an appeal, and the first position of a page is seen
most. The seed is fixed, so that every run writes the same file.
"""

import csv
import math
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

VIEWS = 8_000
SHOWN = 5
"""Articles a page view."""
START = datetime(2025, 3, 3, 6, 0, tzinfo=UTC)
SECTIONS = ["politics", "sport", "culture", "science", "local"]
TOPICS = ["budget", "election", "football", "tennis", "film", "music", "space", "health"]
COLUMNS = ["view", "time", "user", "article", "section", "tags", "device", "position", "clicked_at"]


def main(path: str) -> None:
    """Write the log to `path`."""
    draw = random.Random(7)
    articles = [
        (f"a{number}", draw.choice(SECTIONS), draw.sample(TOPICS, 2), draw.gauss(-2.4, 0.8))
        for number in range(150)
    ]
    tastes = [{section: draw.gauss(0, 1.3) for section in SECTIONS} for _ in range(400)]
    now = START
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        log = csv.writer(file, lineterminator="\n")
        log.writerow(COLUMNS)
        for view in range(VIEWS):
            now += timedelta(seconds=draw.expovariate(1 / 9))
            user = min(int(draw.expovariate(1 / 80)), len(tastes) - 1)
            device = draw.choice(["phone", "phone", "desktop"])
            for position, (name, section, tags, appeal) in enumerate(draw.sample(articles, SHOWN)):
                log_odds = appeal + tastes[user][section] - 0.35 * position
                clicked_at = ""
                if draw.random() < 1 / (1 + math.exp(-log_odds)):
                    delay = timedelta(seconds=draw.uniform(2, 40))
                    clicked_at = f"{now + delay:%Y-%m-%d %H:%M:%S}"
                time = f"{now:%Y-%m-%d %H:%M:%S}"
                row = [f"v{view}", time, f"u{user}", name, section, "|".join(tags), device]
                log.writerow([*row, position, clicked_at])


if __name__ == "__main__":
    main(sys.argv[1])
