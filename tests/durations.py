"""Where the tests' time goes: `python tests/durations.py [build/durations.xml]`, seconds by file, the longest first."""

from __future__ import annotations

import sys
from collections import defaultdict
from xml.etree import ElementTree


def by_file(path: str) -> dict[str, float]:
    """Seconds of each test file, set-up and tear-down included, from a report in JUnit's form."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(path).iter("testcase"):
        seconds[case.get("classname", "").replace(".", "/") + ".py"] += float(case.get("time", 0))
    return seconds


if __name__ == "__main__":
    found = by_file(sys.argv[1] if len(sys.argv) > 1 else "build/durations.xml")
    for name, seconds in sorted(found.items(), key=lambda each: -each[1]):
        print(f"{seconds:8.1f} s  {name}")
    print(f"{sum(found.values()):8.1f} s  in {len(found)} files")
